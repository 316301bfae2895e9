"""One worker as the pool sees it: a process that is started when it is asked, and again as soon as it was lost."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from fuseplan.errors import ExecutorError, FuseplanError
from fuseplan.log import logger
from fuseplan.measure.jobs import ANSWERS, JOBS, At, DeviceGone, Job, Outcome, Ready, Rest, Setup
from fuseplan.wire.branches import Stem, changed
from fuseplan.wire.process import Child, LostError, Started

_COMMAND = (sys.executable, *(("-P",) if sys.version_info >= (3, 11) else ()), "-m", "fuseplan.measure.worker")
_STEM = (*_COMMAND[:-1], "fuseplan.measure.worker.stem")
_TRACEBACK = "Traceback (most recent call last):\n"

TORCHS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_MODULE_LOADING")
"""Variables that torch sets for itself where nobody has."""
_LATE = (*TORCHS, "CUDA_VISIBLE_DEVICES", "HOME", "TMPDIR", "PYTEST_CURRENT_TEST")
"""Variables that nothing reads while it is imported …"""
_OURS = ("FUSEPLAN_", "XDG_")
"""… nor those that begin so."""


@dataclass(frozen=True)
class _Standing:
    """A stem, and what it has inherited."""

    stem: Stem
    variables: Mapping[str, str]
    cores: frozenset[int]

    def is_for(self, wanted: Mapping[str, str]) -> bool:
        """Whether it becomes workers with these variables."""
        return self.stem.alive and self.cores == _cores() and _comes_in_time(self.variables, wanted)


_stem_lock = threading.Lock()
_standing: _Standing | None = None
"""What workers of this process are forked from."""


def _forget() -> None:
    """In a fork: the stem is the parent's, and another thread of that may have held the lock."""
    global _standing, _stem_lock
    _standing, _stem_lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def start_ahead() -> None:
    """Have what workers need imported while this process imports it, unless that is under way. It ends with this one."""
    with contextlib.suppress(OSError):  # which is told when a worker is needed
        _stem_for(dict(os.environ))


def _stem_for(wanted: Mapping[str, str]) -> _Standing | None:
    """What a worker with these variables is forked from; None where it has to begin by itself. OSError where no process can be started."""
    global _standing
    here = dict(os.environ)
    if sys.platform != "linux" or not _comes_in_time(here, wanted):
        return None
    with _stem_lock:
        if _standing is not None and _standing.stem.barren:  # so would another be
            return None
        if _standing is None or not _standing.is_for(wanted):
            if _standing is not None:
                _standing.stem.close()
            _standing = _Standing(Stem(_STEM), here, _cores())
        return _standing


def _cores() -> frozenset[int]:
    """The cores that this process may use, by their numbers."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def _comes_in_time(inherited: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether one's variables may become the other's once all is imported.

    >>> _comes_in_time({"HOME": "a"}, {"HOME": "b", "FUSEPLAN_DB": "c"}), _comes_in_time({}, {"OMP_NUM_THREADS": "1"})
    (True, False)
    """
    return all(name in _LATE or name.startswith(_OURS) for name in changed(inherited, wanted))


def _started(variables: Mapping[str, str] | None) -> Child:
    """A worker with these variables, beside those that it inherits: a branch of the stem, or one by itself where it could not be that."""
    wanted = {**os.environ, **(variables or {})}
    with contextlib.suppress(OSError):
        if (found := _stem_for(wanted)) is not None:
            return Child(found.stem.branch(changed(found.variables, wanted)), ANSWERS)
    return _by_itself(variables)


def _by_itself(variables: Mapping[str, str] | None) -> Child:
    return Child(Started(_COMMAND, variables), ANSWERS)


class WorkerLostError(FuseplanError):
    """The worker died over a job, or had to be killed: with which status, and at which candidate if it had said so."""

    def __init__(self, status: str, detail: str, at: str | None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.at = at


MakeWorker = Callable[[Setup, float], Any]
"""What is asked as a `WorkerProcess` is, by what it is told and within how many seconds it has to start."""


class WorkerProcess:
    """A worker, started at the first question, and again once it was lost over one."""

    def __init__(self, setup: Setup, start_s: float, variables: Mapping[str, str] | None = None) -> None:
        """`variables` are for the environment of the process, beside those that it inherits."""
        self.setup = setup
        self.variables = variables
        self.start_s = start_s
        self.at: str | None = None
        self.stage = ""
        self.holds = False  # whether it may keep something of the device's memory
        self._child: Child | None = None
        self._lock = threading.Lock()
        self._ready = False
        self._ended = False
        self._busy = False
        self._hurried_s: float | None = None

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Start the process if there is none, and do not wait for it: importing torch takes seconds."""
        with self._lock:  # else a worker could be started while another thread ends them all
            if self._child is None and not self._ended:
                try:
                    # One that stands back has its session stand back too, and that of a branch is its stem's.
                    begun = _by_itself(self.variables) if self.setup.nice else _started(self.variables)
                    self._child, self._ready = begun, False
                except OSError as error:  # such as too many processes
                    raise ExecutorError(f"no worker process can be started: {error}") from None
                with contextlib.suppress(LostError):  # one that is gone already will be missed when it is asked
                    self._child.tell(self.setup)

    def ask(self, job: Job, limit_s: float, on_at: Callable[[str, str], None] | None = None) -> Outcome:
        """Return what the worker answers. WorkerLostError where it dies over the job, or is silent for `limit_s`.

        `on_at` hears which candidate the worker is at, and what it does with it; so does whoever debugs by the log, of all of them.
        """
        self._renew()
        self.start()
        child = self._child
        if child is None:
            raise WorkerLostError("crashed", "it was ended", self.at)
        if not self._ready:
            child = self._awaited(child)
        self.at, self.stage = None, ""
        self.holds = not isinstance(job, Rest)
        since = began = monotonic()
        logger.debug("worker %s begins: %s", self.pid, type(job).__name__)
        try:
            with self._lock:
                child.tell(job, JOBS)
                self._busy = True
                if self._hurried_s is not None:  # before it was ready
                    child.hurry(self._hurried_s)
            while True:
                match child.hear(limit_s):
                    case Outcome() as outcome:
                        self._ended_with(f"{outcome.status}, at work for {outcome.seconds:.2f} s", began)
                        return outcome
                    case DeviceGone(detail):
                        self._ended_with("crashed", began)
                        self._start_anew()
                        raise WorkerLostError("crashed", detail, self.at)
                    case At(name, stage):
                        self.at, self.stage, since = name, stage, monotonic()
                        logger.debug("worker %s: %s, %s", self.pid, name, stage)
                        if on_at is not None:
                            on_at(name, stage)
        except LostError as lost:
            self._ended_with(lost.status, began)
            self._start_anew()
            raise WorkerLostError(lost.status, self._told(lost, monotonic() - since), self.at) from None
        finally:
            with self._lock:
                self._busy, self._hurried_s = False, None

    def _ended_with(self, status: str, began: float) -> None:
        logger.debug("worker %s ends: %s after %.2f s", self.pid, status, monotonic() - began)

    def hurry(self, seconds: float) -> None:
        """Let it go on for so long over the job that it is at, or that waits for it to be ready."""
        with self._lock:
            if self._busy and self._child is not None:
                self._child.hurry(seconds)
            else:
                self._hurried_s = seconds

    def unhurried(self) -> None:
        """Its next job has all the time that it is given."""
        with self._lock:
            self._hurried_s = None

    def _renew(self) -> None:
        """Start another where it has ended while it waited: that says nothing of the job to come."""
        child = self._child
        if child is not None and self._ready and not child.alive:
            self._start_anew()

    def _start_anew(self) -> None:
        """End it, and start another, which is there by the time that it is asked."""
        self.kill()
        self.start()

    def kill(self) -> None:
        """End the process and all of its group, now."""
        with self._lock:
            child, self._child, self._ready = self._child, None, False
            self.holds = False
        if child is not None:
            child.kill()

    def strike(self) -> None:
        """Kill it without waiting for it to be gone, and start no other."""
        with self._lock:
            self._ended = True
            if self._child is not None:
                self._child.strike()

    def end(self) -> None:
        """Kill it, and start no other."""
        self.strike()
        self.kill()

    def _awaited(self, child: Child) -> Child:
        """The process, once it is ready: this one, or another where it was never there. ExecutorError where there is none."""
        self.at, self.stage, began = None, "", monotonic()
        try:
            ready = child.hear(self.start_s)
        except LostError as lost:
            if not child.is_there and (other := self._another(child)) is not None:
                return self._awaited(other)
            self.kill()
            why = f"{self._told(lost, self.start_s)}{_last_words(child)}"
            raise ExecutorError(f"no worker process can be started: {why}") from None
        self._ready = True
        took_s = ready.seconds if isinstance(ready, Ready) else 0.0
        waited_s = monotonic() - began
        logger.debug("worker %s took %.2f s to be there, and was waited for %.2f s", self.pid, took_s, waited_s)
        return child

    def _another(self, lost: Child) -> Child | None:
        """One that begins by itself, since the stem could not become one, which says why if it can't either; None if this was ended."""
        with self._lock:
            if self._ended or self._child is not lost:  # it was killed meanwhile
                return None
            try:
                self._child = _by_itself(self.variables)
            except OSError as error:
                self._child = None
                raise ExecutorError(f"no worker process can be started: {error}") from None
            with contextlib.suppress(LostError):
                self._child.tell(self.setup)
            return self._child

    def _told(self, lost: LostError, took_s: float) -> str:
        """What became of the worker, and over what, after so long."""
        if lost.status == "timeout":
            doing = f"{self.stage} of {self.at}" if self.at else self.stage or "starting"
            return f"{doing} took more than {took_s:.0f} s"
        return f"{lost.detail} during {self.stage}" if self.stage else lost.detail


def _last_words(child: Child) -> str:
    """What it said last; of a traceback the error, behind which CUDA has lines of advice."""
    from fuseplan.measure.failures import line  # which imports torch

    _, _, traceback = child.stderr.rpartition(_TRACEBACK)
    said = [entry for entry in traceback.splitlines() if entry.strip()]
    if _TRACEBACK in child.stderr:
        said = [entry for entry in said if not entry.startswith(" ")][:1] or said
    return f": {line(said[-1])}" if said else ""
