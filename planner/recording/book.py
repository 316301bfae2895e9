"""What is recorded: each program once, for each box of its sizes, with its calls; and what could not be, and why.

Nothing here imports torch: a recording begins before the script does, and a script may set variables that torch reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

from fuseplan.capture.trace.calls import Calls, larger
from fuseplan.capture.trace.format import Trace
from fuseplan.errors import FuseplanError
from fuseplan.graph.words import counted
from fuseplan.recording.folder import keep
from fuseplan.tuning_db import Box

if TYPE_CHECKING:
    from fuseplan.recording.counting import Sizes, Tally

_WRITE_AGAIN_S = 20.0
"""How often counts are written while a script runs, so that one that is killed has about the right ones."""
_MOST_SIZES = 256
"""Choices of sizes that a trace lists; the rest is counted with the most frequent one."""


class PendingTimes(Protocol):
    """Times of calls, some of which are still to be read."""

    def settle(self) -> None:
        """Read them."""
        ...


@dataclass
class RecordedProgram:
    """One program in one box of sizes."""

    trace: Trace
    names: tuple[str, ...]
    tallies: dict[Sizes, Tally] = field(default_factory=dict)
    written: bool = False
    """Whether its file was written, be it with earlier counts."""
    problem: str = ""
    """Why the last attempt to write it failed, if it did."""

    def counted(self) -> Trace:
        """The trace with its calls, most calls first."""
        calls = [
            Calls(dict(zip(self.names, sizes, strict=True)), tally.forward.runs, tally.seconds)
            for sizes, tally in list(self.tallies.items())
            if tally.forward.runs
        ]
        return replace(self.trace, calls=_shortened(larger(calls, ())))


def _shortened(calls: tuple[Calls, ...]) -> tuple[Calls, ...]:
    if len(calls) <= _MOST_SIZES:
        return calls
    first, rest = calls[0], calls[_MOST_SIZES:]
    more, seconds = sum(one.calls for one in rest), sum(one.seconds for one in rest)
    return (replace(first, calls=first.calls + more, seconds=first.seconds + seconds), *calls[1:_MOST_SIZES])


class Recording:
    """The programs that are met, while it is open. Nothing that goes wrong here reaches the script."""

    def __init__(self, folder: Path | None = None, *, name: str = "", device: str | None = None) -> None:
        self.folder = folder
        self._place = None if folder is None else folder.absolute()  # a script may change where it stands
        self.device = device
        self.heard: Callable[[], None] = lambda: None
        """Called when one more program has its file."""
        self.open = True
        self.came = False
        """Whether any program came, be it recorded or not."""
        self._name = name
        self._entries: dict[tuple[str, Box], RecordedProgram] = {}
        self._notes: dict[str, int] = {}
        self._clocks: WeakSet[PendingTimes] = WeakSet()
        self._lock = threading.RLock()
        self._written = monotonic()

    @property
    def programs(self) -> list[Trace]:
        """The trace of each program that was met, for the device that was asked for, with its calls up to now.

        What could not be written to the folder is not among them.
        """
        with self._lock:
            return [entry.counted() for entry in self._entries.values() if entry.written or self.folder is None]

    @property
    def notes(self) -> list[str]:
        """What was not recorded, and why."""
        with self._lock:
            noted = [text if times == 1 else f"{text} (met {times} times)" for text, times in self._notes.items()]
            return noted + [entry.problem for entry in self._entries.values() if entry.problem]

    def __repr__(self) -> str:
        programs = self.programs
        lines = [f"{counted(len(programs), 'program')}{f' in {self.folder}' if self.folder else ''}"]
        lines += [f"  {trace.name} {trace.key[:12]}: {_times(trace)}" for trace in programs]
        return "\n".join([*lines, *(f"  not recorded: {note}" for note in self.notes)])

    def called(self, name: str) -> str:
        """The whole name of a program."""
        return f"{self._name}.{name}" if self._name else name

    def entry(self, box: Box, trace: Trace, names: tuple[str, ...]) -> RecordedProgram:
        """Where this program is kept; one that is new is written at once."""
        self.came = True
        with self._lock:
            found = self._entries.get((trace.key, box))
            if found is None:
                found = self._entries[trace.key, box] = RecordedProgram(self._aimed(trace), names)
                self._write([found])
            return found

    def note(self, text: str) -> None:
        """One line on what was not recorded."""
        text = " ".join(text.split())
        with self._lock:
            self._notes[text] = self._notes.get(text, 0) + 1

    def settle_at_end(self, clock: PendingTimes) -> None:
        """Have this clock read its last times before the counts are written."""
        self._clocks.add(clock)

    def write_now_and_then(self) -> None:
        """Write the counts up to now, if that was long ago."""
        if monotonic() - self._written > _WRITE_AGAIN_S:
            with self._lock:
                self._write(self._entries.values())

    def close(self) -> None:
        """Stop counting, and write the last counts."""
        if not self.open:
            return
        for clock in list(self._clocks):
            clock.settle()
        self.open = False
        with self._lock:
            self._write(self._entries.values())

    def _aimed(self, trace: Trace) -> Trace:
        """The trace for the device that was asked for."""
        if self.device is None:
            return trace
        from fuseplan.capture.trace.key import native

        aimed, reasons = native(trace, self.device)
        for reason in reasons:
            self.note(f"{trace.name} may not be found again on {self.device}: {reason}")
        return aimed

    def _write(self, entries: Iterable[RecordedProgram]) -> None:
        self._written = monotonic()
        if self._place is None:
            return
        for entry in entries:
            self._keep(self._place, entry)

    def _keep(self, folder: Path, entry: RecordedProgram) -> None:
        try:
            keep(folder, entry.counted())
        except (OSError, FuseplanError) as error:
            what = "the last calls of " if entry.written else ""
            why = f"{what}{entry.trace.name} could not be written: {getattr(error, 'strerror', None) or error}"
            entry.problem = " ".join(why.split())
        else:
            new, entry.written, entry.problem = not entry.written, True, ""
            if new:
                self.heard()


def _times(trace: Trace) -> str:
    if not trace.calls:
        return "not called"
    seconds = sum(one.seconds for one in trace.calls)
    return f"{counted(trace.times, 'call')}, {seconds:.2f} s"
