"""How often a compiled program is called with which sizes, and how long that takes. It changes nothing that is computed.

On a GPU a call returns before its work is done; events on the stream are read later, when they have passed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch

from fuseplan.runtime.unasked import compiled_backward

Sizes = tuple[int, ...]


@dataclass
class Watch:
    """Counts runs, and adds up times. First runs compile and warm up: they say little of how long the others take."""

    runs: int = 0
    usual: int = 0
    usual_s: float = 0.0
    first_s: float = 0.0

    def add(self, seconds: float, first: bool) -> None:
        """The time of one run, when it is known."""
        if first:
            self.first_s += seconds
        else:
            self.usual += 1
            self.usual_s += seconds

    @property
    def seconds(self) -> float:
        """The time of all runs, had each been as long as those after the first.

        >>> watch = Watch(runs=2)
        >>> watch.add(9.0, True), watch.add(0.5, False), watch.seconds
        (None, None, 1.0)
        """
        return self.usual_s / self.usual * self.runs if self.usual else self.first_s


@dataclass
class Tally:
    """One program with one choice of its sizes: its calls, and its backward passes."""

    forward: Watch = field(default_factory=Watch)
    backward: Watch = field(default_factory=Watch)

    @property
    def seconds(self) -> float:
        """Of both."""
        return self.forward.seconds + self.backward.seconds


@dataclass(frozen=True)
class SizeReader:
    """Finds the dynamic sizes of a program among the arguments of a call."""

    places: tuple[tuple[int, int | None], ...]
    """For each size, the argument that is it, or the argument and the dimension that has it."""

    @staticmethod
    def of(fields: Mapping[str, Any]) -> SizeReader:
        """For the inputs of a trace; a size that nothing shows by itself is left out."""
        found = (_place(name, fields["inputs"]) for name in SizeReader._varying(fields))
        return SizeReader(tuple(place for place in found if place is not None))

    @staticmethod
    def names(fields: Mapping[str, Any]) -> tuple[str, ...]:
        """The names of what `read` gives."""
        return tuple(name for name in SizeReader._varying(fields) if _place(name, fields["inputs"]) is not None)

    @staticmethod
    def _varying(fields: Mapping[str, Any]) -> list[str]:
        """All but what only counts, which is another number at each call."""
        return [symbol["name"] for symbol in fields["symbols"] if not symbol.get("counts")]

    def read(self, args: Sequence[Any]) -> Sizes:
        """The sizes of this call."""
        return tuple([int(args[i] if dim is None else args[i].shape[dim]) for i, dim in self.places])


def _place(name: str, inputs: Sequence[Mapping[str, Any]]) -> tuple[int, int | None] | None:
    for i, item in enumerate(inputs):
        if item["kind"] == "size" and item["size"] == name:
            return i, None
    for i, item in enumerate(inputs):
        if item["kind"] != "size" and name in item["shape"]:
            return i, item["shape"].index(name)
    return None


class Counted:
    """What a backend made, and a count of its calls: `call` is called in its place."""

    def __init__(
        self, compiled: Callable[..., Any], tally_of: Callable[[Sequence[Any]], Tally | None], on_cuda: bool
    ) -> None:
        self.compiled, self.tally_of = compiled, tally_of
        self.clock = _CudaClock() if on_cuda else _HostClock()
        self._first = self._first_backward = True

    def call(self, *args: Any) -> Any:
        """One call; where nobody counts any more, no more than that."""
        tally = self.tally_of(args)
        if tally is None:
            return self.compiled(*args)
        started = self.clock.start()
        outputs = self.compiled(*args)
        self.clock.stop(started, tally.forward, self._first)
        self._first = False
        self._watch_backward(outputs, tally)
        return outputs

    def _watch_backward(self, outputs: Any, tally: Tally) -> None:
        """Time the backward, if AOTAutograd made one; not where Dynamo traces backwards, since it would see this too."""
        if torch._dynamo.config.compiled_autograd or not isinstance(outputs, (tuple, list)):
            return
        node = next((found for out in outputs if (found := compiled_backward(out)) is not None), None)
        if node is None:
            return
        running: list[Any] = []

        def before(grad_outputs: Any) -> None:
            running.append(self.clock.start())

        def after(grad_inputs: Any, grad_outputs: Any) -> None:
            if running:
                self.clock.stop(running.pop(), tally.backward, self._first_backward)
                self._first_backward = False

        node.register_prehook(before)
        node.register_hook(after)


class _HostClock:
    def start(self) -> Any:
        return perf_counter()

    def stop(self, started: Any, watch: Watch, first: bool) -> None:
        watch.runs += 1
        watch.add(perf_counter() - started, first)

    def settle(self) -> None:
        """Nothing is open."""


class _CudaClock:
    """The longer of what a call takes on the host and on the device. What fails here fails for the script too, later."""

    def __init__(self) -> None:
        self._open: deque[tuple[Any, Any, float, Watch, bool]] = deque()

    def start(self) -> Any:
        return perf_counter(), _mark()

    def stop(self, started: Any, watch: Watch, first: bool) -> None:
        began, event = started
        host = perf_counter() - began
        watch.runs += 1
        end = None if event is None else _mark()
        if end is None:
            watch.add(host, first)
            return
        self._open.append((event, end, host, watch, first))
        self._collect()

    def settle(self) -> None:
        """Wait for what is open."""
        with suppress(RuntimeError):
            if self._open:
                self._open[-1][1].synchronize()
        self._collect()

    def _collect(self) -> None:
        with suppress(RuntimeError):
            while self._open and self._open[0][1].query():
                event, end, host, watch, first = self._open.popleft()
                watch.add(max(host, event.elapsed_time(end) / 1e3), first)


def _mark() -> Any:
    """An event on the stream; None where a graph is being captured, into which it would go."""
    with suppress(RuntimeError):
        if not torch.cuda.is_current_stream_capturing():
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event
    return None
