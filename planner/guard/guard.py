"""The guard of one program: most calls run its plan, a few timed ones the default beside it, and what is found is written down. A plan
that has become slower is taken back: the default runs from then on, which was compiled for this.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from time import monotonic
from typing import Any

import torch

from fuseplan.capture.dynamo.compilations import is_computed_again, is_in_checkpoint, keeps_graph
from fuseplan.guard.rounds import DEFAULT, PLAN, Finding, Pace, Round, TimedRounds, Turn
from fuseplan.guard.times import CallClock, CallTime, backward_of, is_traced
from fuseplan.log import logger
from fuseplan.stats import count
from fuseplan.tuning_db.notify import notify

Call = Callable[..., Any]
REPORT_S = 3600.0
"""So often what is found is written down, if the like of it was before."""
_MOST_PENDING = 16
"""Calls whose time is not known yet; the oldest are given up then, such as those whose backward never came."""
_NEVER = 2**62


@dataclass(eq=False)
class PlanGuard:
    """Which call runs what, and when that is over."""

    name: str
    """Of the plan, for people."""
    clock: CallClock
    write: Callable[[Finding, int, bool], None]
    """Writes down what was found after how many calls, and whether the plan is taken back for it. In a thread of its own."""
    keeps: str | None = None
    """Why a plan that is slower is not taken back here, where that is so."""
    counts: frozenset[int] = frozenset()
    """Where among the arguments numbers are that only count: they say nothing of how much there is to do."""
    pace: Pace = field(default_factory=Pace)
    report_s: float = REPORT_S
    calls: int = 0
    stood_down: str | None = None
    """Why it looks no more, where that is so."""
    found: Finding | None = None
    """What it has found last."""
    taken_back: bool = False

    def __post_init__(self) -> None:
        self._due = 1
        self._is_first = True
        """The plan has the first call, which shows how the program's backward is called before the default has any."""
        self._turns = 0
        self._rounds = TimedRounds(self.pace)
        self._pending: deque[tuple[Turn, CallTime]] = deque()
        self._one_at_a_time = threading.Lock()
        self._written_at = 0.0
        self._said: set[str] = set()
        """Comparisons that were written down: where two take turns, each look would else be a row."""

    def around(self, plan: Call, default: Call) -> Call:
        """What is called in the place of the plan."""
        self._plan, self._default = plan, default
        self._usual = plan

        @wraps(plan)  # Dynamo looks for what a backend has said of it
        def call(*args: Any) -> Any:
            self.calls = calls = self.calls + 1
            return self._usual(*args) if calls < self._due else self._sampled(args)

        return call

    def told(self) -> str:
        """What it does and has found, in a line."""
        if self.stood_down is not None:
            return f"guard: it looks no more, since {self.stood_down}"
        if self.found is None:
            return f"guard: {self.calls:,} calls, too few of one size, each with its backward, to tell how fast the plan is beside the default"
        found = self.found
        times = f"{found.plan_us:,.0f} us a call where the default takes {found.default_us:,.0f}"
        beside = f"{found.comparison} than the default" if found.comparison != "same" else "as fast as the default"
        kept = f"; it stays, since {self.keeps}" if found.comparison == "slower" and self.keeps is not None else ""
        back = "; it is taken back, and the default runs" if self.taken_back else kept
        return f"guard: after {self.calls:,} calls the plan is {beside} ({times}, noise {found.noise:.1%}){back}"

    def _sampled(self, args: Sequence[Any]) -> Any:
        """A call that is timed, if nothing speaks against it."""
        if not self._one_at_a_time.acquire(blocking=False):
            return self._usual(*args)
        try:
            turn = self._turn(args)
        finally:
            self._one_at_a_time.release()
        if turn is None:
            return self._usual(*args)
        time = CallTime(self.clock)
        try:
            outputs = time.run(self._default if turn.side == DEFAULT else self._plan, args)
        except torch.OutOfMemoryError:
            if turn.side == DEFAULT:  # the plan may need less: who goes on after this is not to meet it again
                self._stand_down("there is no memory for the default here")
            raise
        if self._backward_is_seen(time, outputs, args):
            self._pending.append((turn, time))
        return outputs

    def _turn(self, args: Sequence[Any]) -> Turn | None:
        if self.stood_down is not None or self.taken_back:
            self._due = _NEVER  # which another thread may have overwritten
            return None
        if is_computed_again() or is_in_checkpoint():
            self._stand_down("some of it is computed again in the backward, where it has to be what it was")
            return None
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return None
        if self._is_first:
            self._is_first, self._due = False, self.pace.first
            return Turn(Round((PLAN,), counts=False), 0)
        self._hear()
        if self.taken_back:
            return None
        self._turns += 1
        if self._turns % 4 == 0:
            self._due = self.calls + self._apart() - 3
        return self._rounds.turn(tuple(_size(one) for place, one in enumerate(args) if place not in self.counts))

    def _apart(self) -> int:
        """How many calls lie between the beginnings of rounds: more where sizes vary so that there are never enough of one."""
        pace = self.pace
        return pace.later if self._rounds.are_given or self.calls > 3 * pace.rounds * pace.first else pace.first

    def _backward_is_seen(self, time: CallTime, outputs: Any, args: Sequence[Any]) -> bool:
        """Time the backward of this call, too, if it has one; whether that can be done."""
        node, has_backward = backward_of(outputs, args)
        if node is not None:
            node.register_prehook(self._before_backward)
            time.await_backward(node)
        elif has_backward:
            self._stand_down("its backward is not one piece, and can't be timed")
        return node is not None or not has_backward

    def _before_backward(self, *_: Any) -> None:
        """The default may be found in torch's cache, where its backward may be one that torch runs once alone."""
        if not is_traced() and keeps_graph():
            self._stand_down("its backward leaves what was saved for it (retain_graph), which the default's may not")

    def _hear(self) -> None:
        """Take the times that are known by now."""
        complete = False
        for turn, time in [self._pending.popleft() for _ in range(len(self._pending))]:
            us = time.us()
            if us is None:
                self._pending.append((turn, time))
            else:
                complete |= self._rounds.hear(turn, us)
        while len(self._pending) > _MOST_PENDING:
            self._pending.popleft()
        if complete:
            self._decide()

    def _decide(self) -> None:
        found = self._rounds.finding()
        if found is None:
            return
        self.found = found
        back = found.comparison == "slower" and self.keeps is None
        if back:
            self._taken_back()
        elif found.comparison in self._said and monotonic() - self._written_at < self.report_s:
            return
        self._said.add(found.comparison)
        self._written_at = monotonic()
        thread = threading.Thread(target=self._write, args=(found, self.calls, back), name="fuseplan guard")
        with suppress(RuntimeError):  # the interpreter ends, and starts none any more
            thread.start()

    def _taken_back(self) -> None:
        self.taken_back, self._usual, self._due = True, self._default, _NEVER
        count("plans taken back")
        notify(f"plan {self.name} is taken back, and what torch.compile does is done instead: {self.told()}")

    def _stand_down(self, why: str) -> None:
        self.stood_down, self._due = why, _NEVER
        logger.info("a plan is not looked after: %s", why)

    def _write(self, found: Finding, calls: int, back: bool) -> None:
        try:
            self.write(found, calls, back)
        except Exception:  # noqa: BLE001 -- whatever the database holds, the program runs on
            logger.warning("what a guard has found could not be written down", exc_info=True)


def _size(one: Any) -> Any:
    """What of an argument tells how much there is to do."""
    if isinstance(one, torch.Tensor):
        return one.shape
    return one if isinstance(one, int) else None
