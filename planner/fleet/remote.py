"""A worker of a device elsewhere, as the pool of the driver sees it: asked as one of its own processes, over a `HostLine` to its host."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from fuseplan.errors import ExecutorError
from fuseplan.fleet.host import ANSWERED, LostWorker, NoWorker
from fuseplan.measure.jobs import JOBS, Job, Outcome, Rest, Setup
from fuseplan.measure.process import WorkerLostError
from fuseplan.wire import codec


class HostLostError(ExecutorError):
    """A device elsewhere cannot be asked any more: what it was at, another of its kind does."""


class HostLine(Protocol):
    """The way to one `DeviceHost`."""

    def call(self, method: str, *given: Any, heard: Callable[[int, str, str], None] | None = None) -> Any:
        """What the host answers. HostLostError where it is gone; `heard` is told from time to time what its workers are at."""

    def tell(self, method: str, *given: Any) -> None:
        """Ask for something, and wait for nothing; a host that is gone is noticed by whoever calls it next."""


class RemoteProcess:
    """One worker of a host, by its number there."""

    def __init__(self, line: HostLine, number: int, setup: Setup, start_s: float) -> None:
        self.setup = setup
        self.holds = False  # whether it may keep something of the device's memory
        self._line, self._number, self._start_s = line, number, start_s
        self._told = codec.to_json(setup, Setup)

    def start(self) -> None:
        """Start it, and do not wait for it."""
        self._line.tell("start", self._number, self._told, self._start_s)

    def ask(self, job: Job, limit_s: float, on_at: Callable[[str, str], None] | None = None) -> Outcome:
        """As a process of one's own answers; HostLostError where its device is gone."""
        self.holds = not isinstance(job, Rest)
        last: list[tuple[str, str]] = [("", "")]

        def heard(number: int, name: str, stage: str) -> None:
            if number == self._number and on_at is not None and last[0] != (name, stage):
                last[0] = (name, stage)
                on_at(name, stage)

        given = self._number, self._told, self._start_s, codec.to_json(job, JOBS), limit_s
        match codec.from_json(ANSWERED, self._line.call("ask", *given, heard=heard)):
            case Outcome() as outcome:
                return outcome
            case LostWorker(status, detail, at):
                self.holds = False
                raise WorkerLostError(status, detail, at)
            case NoWorker(detail):
                raise ExecutorError(detail)
        raise AssertionError("there is no other answer")

    def hurry(self, seconds: float) -> None:
        """Let it go on for so long over the job that it is at."""
        self._line.tell("hurry", self._number, seconds)

    def unhurried(self) -> None:
        """Its next job has all the time that it is given."""
        self._line.tell("hurry", self._number, None)

    def kill(self) -> None:
        """End what it is at: before anything else is asked of it."""
        self.holds = False
        with suppress(HostLostError):  # and so is what it was at
            self._line.call("kill", self._number)

    def strike(self) -> None:
        """End it, without waiting for that: nothing more is asked of it."""
        self._line.tell("kill", self._number)

    def end(self) -> None:
        """End it: it is struck already, and its host ends with the line to it."""
