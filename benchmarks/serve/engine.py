"""A small engine: requests arrive, wait, are taken in and answered; the same for whoever computes.

Of decoders it is continuous batching over a fixed number of slots, since that is what servers do: a request that is done makes room for
the next, and no row of a batch is computed that nobody waits for. Between two steps of decoding at most one request is taken in, so
that those under way wait for one prefill at a time. An encoder has nothing to go on with: it gets all that wait, as many as there are
slots, padded to the longest.

The time is that of the steps alone, each waited for, as an engine does that has to send tokens: while nothing is to do, the clock goes
on to the next arrival and the device has no work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Protocol, TypeVar

from torch._dynamo.utils import counters

from benchmarks.serve.requests import Request, percentile
from fuseplan.stats import counts

_T = TypeVar("_T")


@dataclass(frozen=True)
class Step:
    """One piece of work that the engine had done, and how much was compiled for it meanwhile."""

    kind: str
    seconds: float
    compiled: int


@dataclass
class Served:
    """What became of a pass: the answers, when their tokens were there, and all steps."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    times: dict[int, list[float]] = field(default_factory=dict)
    """Of each request, when it arrived and when each of its tokens came."""
    counted: int = 0
    """Tokens made; of an encoder, tokens read."""
    seconds: float = 0.0
    """By the clock of the engine, from the first arrival to the last token."""
    steps: list[Step] = field(default_factory=list)

    def firsts(self) -> list[float]:
        """Seconds from the arrival of each request to its first token."""
        return [times[1] - times[0] for times in self.times.values()]

    def between(self) -> list[float]:
        """Seconds between one token of a request and the next."""
        return [b - a for times in self.times.values() for a, b in pairwise(times[1:])]

    def compilations(self) -> int:
        """What was compiled: graphs, and of ours also plans for boxes of sizes."""
        return sum(step.compiled for step in self.steps)

    def stalls(self) -> list[Step]:
        """The steps that had to wait for something to be compiled."""
        return [step for step in self.steps if step.compiled]

    def usual_s(self, kind: str) -> float | None:
        """What a step of a kind takes; None where there was none."""
        taken = [step.seconds for step in self.steps if step.kind == kind]
        return median(taken) if taken else None


class Server(Protocol):
    """Whoever computes for the engine."""

    slots: int

    def take(self, slot: int, request: Request) -> int:
        """Compute the first token of a request, which has a slot from now on."""
        ...

    def step(self) -> list[int]:
        """Compute one more token of every slot."""
        ...

    def free(self, slot: int) -> None:
        """Have a slot back."""
        ...

    def read(self, requests: Sequence[Request]) -> None:
        """Compute all of some requests at once, as an encoder does."""
        ...


def compiled_so_far() -> int:
    """How many graphs torch.compile has given to a backend in this process, and how many plans a call has waited for besides.

    A graph that our backend compiles counts as a program and as a call that waits. A call waits without being one where it is the first
    in a box of sizes and loads its plan: of that Dynamo knows nothing.
    """
    ours = counts()
    loaded = ours.get("calls that waited for a compilation", 0) - ours.get("programs", 0)
    return int(counters["stats"]["unique_graphs"]) + loaded


class _Clock:
    """The time of the engine, which goes on by what steps take."""

    def __init__(self, wait: Callable[[], object]) -> None:
        """`wait` returns once the device has done all that it was given."""
        self.now, self.wait = 0.0, wait
        self.steps: list[Step] = []

    def taken(self, kind: str, call: Callable[[], _T]) -> _T:
        """Have a step done."""
        self.wait()
        before, begin = compiled_so_far(), perf_counter()
        found = call()
        self.wait()
        seconds = perf_counter() - begin
        self.now += seconds
        self.steps.append(Step(kind, seconds, compiled_so_far() - before))
        return found

    def idle_until(self, when: float) -> None:
        """Let time pass in which nobody asks for anything."""
        self.now = max(self.now, when)


def serve(server: Server, requests: Sequence[Request], wait: Callable[[], object], *, whole: bool = False) -> Served:
    """Answer all requests; `whole` where an answer comes at once, as an encoder's does, and not token by token."""
    clock, waiting = _Clock(wait), deque(sorted(requests, key=lambda one: one.arrives))
    served = Served(times={one.number: [one.arrives] for one in requests}, steps=clock.steps)
    first = waiting[0].arrives if waiting else 0.0
    (_answer_whole if whole else _answer)(server, waiting, clock, served)
    served.seconds = clock.now - first
    return served


def _answer(server: Server, waiting: deque[Request], clock: _Clock, served: Served) -> None:
    """Take one in where there is room, compute a token of each that was taken in, and again."""
    running: dict[int, Request] = {}

    def got(slot: int, token: int) -> None:
        request = running[slot]
        tokens = served.tokens.setdefault(request.number, [])
        tokens.append(token)
        served.times[request.number].append(clock.now)
        served.counted += 1
        if len(tokens) == request.new:
            del running[slot]
            server.free(slot)

    while waiting or running:
        if not running:
            clock.idle_until(waiting[0].arrives)
        if waiting and waiting[0].arrives <= clock.now and len(running) < server.slots:
            slot = next(i for i in range(server.slots) if i not in running)
            request = running[slot] = waiting.popleft()
            got(slot, clock.taken("prefill", partial(server.take, slot, request)))
        if running:
            tokens = clock.taken("decode", server.step)
            for slot in list(running):
                got(slot, tokens[slot])


def _answer_whole(server: Server, waiting: deque[Request], clock: _Clock, served: Served) -> None:
    """Take in all that wait, as many as there is room for, and answer them together."""
    while waiting:
        clock.idle_until(waiting[0].arrives)
        batch: list[Request] = []
        while waiting and waiting[0].arrives <= clock.now and len(batch) < server.slots:
            batch.append(waiting.popleft())
        clock.taken("batch", partial(server.read, batch))
        for request in batch:
            served.times[request.number].append(clock.now)
            served.counted += request.prompt


def latencies(passes: Sequence[Served]) -> dict[str, float]:
    """Milliseconds to the first token and between tokens, at P50 and P99, over all requests of some passes."""
    found: dict[str, float] = {}
    for name, values in (
        ("first", [one for served in passes for one in served.firsts()]),
        ("between", [one for served in passes for one in served.between()]),
    ):
        for share in (0.5, 0.99) if values else ():
            found[f"{name}_p{share * 100:.0f}_ms"] = round(1e3 * percentile(values, share), 3)
    return found
