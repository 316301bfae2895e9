"""The processes that collect, and their time: all compile, then one after another measures what it has, and again.

Nothing else runs while one measures. The parent alone writes rows.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import IO, Any

from fuseplan.graph import Graph

PHASE_S = 60.0
"""How long processes compile before they measure; the first time half of that, to learn how long measuring takes."""
GRACE_S = 2.0
"""What a process may take longer; then it stands still while others measure, in the middle of what it compiles."""
CHOICE_S = 40.0
"""What one step with one choice may take before its process is killed."""
START_S = 180.0
FIRST_GUESS_S = 0.1
"""What measuring a region takes, before that is known."""


@dataclass(eq=False)
class Item:
    """A region on its way: who is not to be tried any more, since a process died of it."""

    number: int
    graph: Graph
    text: str
    without: list[list[str]] = field(default_factory=list)


def command(device: str, threads: int) -> list[str]:
    """What starts a process."""
    return [sys.executable, "-m", "benchmarks.collect.worker", device, str(threads)]


Rows = Sequence[Mapping[str, Any]]
Heard = Callable[[Item, Rows], None]
"""Gets the rows of an item as they come."""


class LostError(Exception):
    """A process died or hung, over a choice of an item if it had said so."""

    def __init__(self, status: str, number: int | None, choice: list[str] | None, stage: str) -> None:
        super().__init__(status)
        self.status, self.number, self.choice, self.stage = status, number, choice, stage


class Hand:
    """One process, as the parent sees it."""

    def __init__(self, device: str, index: int, threads: int) -> None:
        self.device, self.index, self.threads = device, index, threads
        self.holds: dict[int, Item] = {}
        self._paused: float | None = None
        self._stood_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._messages: queue.Queue[str | None] = queue.Queue()

    def start(self) -> None:
        """Start it, if it is not there; it takes seconds until it answers."""
        if self._process is not None:
            return
        variables = dict(os.environ)
        if self.device.startswith("cuda"):
            seen = [one for one in variables.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
            variables["CUDA_VISIBLE_DEVICES"] = seen[self.index] if seen else str(self.index)
        self._process = subprocess.Popen(
            command(self.device, self.threads), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=variables,
        )  # fmt: skip
        self._messages = queue.Queue()
        threading.Thread(target=_read, args=(self._process.stdout, self._messages), daemon=True).start()
        self._started = False

    def prepare(self, item: Item) -> Rows:
        """Compile a region; the rows of choices that failed."""
        self._ask({"prepare": item.number, "graph": item.text, "without": item.without})
        while True:
            message = self._receive(CHOICE_S)
            if "prepared" in message:
                if message["kept"]:
                    self.holds[item.number] = item
                rows: Rows = message["rows"]
                return rows

    def measure(self, seconds: float, heard: Heard) -> None:
        """Measure what it holds; `heard` gets the rows of each region."""
        self._ask({"measure": seconds})
        while True:
            message = self._receive(CHOICE_S)
            if "left" in message:
                return
            if "measured" in message:
                heard(self.holds.pop(message["measured"]), message["rows"])

    def _ask(self, message: Mapping[str, Any]) -> None:
        self.start()
        if not self._started:
            self._at: Mapping[str, Any] = {}
            self._receive(START_S)
            self._started = True
        self._at = {}
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._lost("crashed") from None

    def _receive(self, limit_s: float) -> Mapping[str, Any]:
        while True:
            text = self._next(limit_s)
            if text is None:
                raise self._lost("crashed")
            message: dict[str, Any] = json.loads(text)
            if "lost" in message:
                raise self._lost("crashed")
            if "at" not in message:
                return message
            self._at = message

    def _next(self, limit_s: float) -> str | None:
        """The next line; the time in which the process had to stand still does not count."""
        begin, stood = monotonic(), self._stood_s
        while self._paused is not None or monotonic() - begin - (self._stood_s - stood) <= limit_s:
            with contextlib.suppress(queue.Empty):
                return self._messages.get(timeout=1.0)
        raise self._lost("timeout")

    def pause(self) -> None:
        """Let it and what it has started stand still."""
        self._paused = monotonic()
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        if self._paused is not None:
            self._stood_s += monotonic() - self._paused
            self._paused = None
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def _lost(self, status: str) -> LostError:
        self.kill()
        at = self._at
        return LostError(status, at.get("at"), list(at["choice"]) if at else None, str(at.get("stage", "starting")))

    def kill(self) -> None:
        """End it and all that it has started."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _started(work: Callable[[Any], None], on: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=(on,), daemon=True)
    thread.start()
    return thread


def _read(pipe: IO[bytes] | None, into: queue.Queue[str | None]) -> None:
    assert pipe is not None
    for text in pipe:
        into.put(text.decode())
    into.put(None)


class Crew:
    """All processes of all devices, and what is left to be done."""

    def __init__(
        self, device: str, devices: int, hands: int, threads: int, items: Sequence[Item], heard: Heard, ends: float
    ) -> None:
        """`ends` is when measuring has to be over, by `monotonic`."""
        self.hands = [[Hand(device, index, threads) for _ in range(hands)] for index in range(devices)]
        self.waiting = deque(items)
        self.ends = ends
        self._heard = heard
        self._lock = threading.Lock()
        self.measured, self.measuring_s = 0, 0.0
        self._compile_ends = self._stopped = monotonic()
        self.log: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)

    @property
    def every(self) -> list[Hand]:
        """The processes of all devices."""
        return [hand for hands in self.hands for hand in hands]

    def run(self) -> None:
        """Until all is measured, or the time is over."""
        for hand in self.every:
            hand.start()
        at_it: dict[Hand, threading.Thread] = {}
        try:
            while self.waiting or at_it or any(hand.holds for hand in self.every):
                self._compile_ends = min(monotonic() + (PHASE_S if self.measured else PHASE_S / 2), self.ends)
                if not self._may_compile():
                    break
                at_it = {hand: thread for hand, thread in at_it.items() if thread.is_alive()}
                at_it |= {hand: _started(self._compile, hand) for hand in self.every if hand not in at_it}
                at_it = self._await(at_it)
                self._measure_all(list(at_it))
        finally:
            for hand in self.every:
                hand.kill()

    def _await(self, at_it: dict[Hand, threading.Thread]) -> dict[Hand, threading.Thread]:
        """Until all have compiled what they can, or the time for it is over; those that are still at it."""
        while any(thread.is_alive() for thread in at_it.values()) and (
            self._may_compile() or monotonic() < self._stopped + GRACE_S
        ):
            for thread in at_it.values():
                thread.join(0.05)
        return {hand: thread for hand, thread in at_it.items() if thread.is_alive()}

    def _measure_all(self, at_it: Sequence[Hand]) -> None:
        """Each in turn measures what it has, a device for itself; who still compiles stands still."""
        begin, before = monotonic(), self.measured
        for hand in at_it:
            hand.pause()
        free = [[hand for hand in hands if hand not in at_it] for hands in self.hands]
        for thread in [_started(self._measure_each, hands) for hands in free]:
            thread.join()
        for hand in at_it:
            hand.resume()
        self.measuring_s += monotonic() - begin
        self.log(
            f"{self.measured - before} regions measured in {monotonic() - begin:.0f} s ({len(at_it)} stood still), "
            f"{len(self.waiting)} left, {self.ends - monotonic():.0f} s to go"
        )

    def _compile(self, hand: Hand) -> None:
        while self._may_compile():
            try:
                item = self.waiting.popleft()
            except IndexError:
                return
            try:
                self._hear(item, hand.prepare(item))
            except LostError as lost:
                self._after(hand, lost, item)

    def _may_compile(self) -> bool:
        """Whether what is compiled so far leaves time to measure more."""
        held = max(sum(len(hand.holds) for hand in hands) for hands in self.hands)
        each = self.measuring_s * len(self.hands) / self.measured if self.measured >= 50 else FIRST_GUESS_S
        may = monotonic() + held * each + GRACE_S < self.ends and monotonic() < self._compile_ends
        if may:
            self._stopped = monotonic()
        return may

    def _measure_each(self, hands: Sequence[Hand]) -> None:
        for hand in hands:
            while hand.holds and self.ends - monotonic() > 0:
                self._measure(hand)

    def _measure(self, hand: Hand) -> None:
        try:
            hand.measure(self.ends - monotonic(), self._counted)
        except LostError as lost:
            self._after(hand, lost, None)

    def _counted(self, item: Item, rows: Rows) -> None:
        self.measured += 1
        self._hear(item, rows)

    def _hear(self, item: Item, rows: Rows) -> None:
        with self._lock:
            self._heard(item, rows)

    def _after(self, hand: Hand, lost: LostError, item: Item | None) -> None:
        """What a process held goes to others, without what it died of."""
        left = {one.number: one for one in (*hand.holds.values(), *([item] if item else []))}
        hand.holds.clear()
        culprit = left.get(lost.number) if lost.number is not None else None
        if culprit is not None and lost.choice is not None:
            executor, variant = lost.choice
            culprit.without.append(lost.choice)
            row = {"executor": executor, "variant": variant, "status": lost.status, "detail": f"while {lost.stage}"}
            self._hear(culprit, [row])
        self.waiting.extendleft(one for one in left.values() if one is culprit or one is not item)
        self.log(f"a process {lost.status} while {lost.stage} {lost.choice}")
