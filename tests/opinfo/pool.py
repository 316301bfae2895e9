"""Drives workers and outlives them: a case that kills or hangs its worker becomes a row, and the run goes on."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fuseplan.wire import codec
from fuseplan.wire.process import Child, LostError, Started
from opinfo.cases import Case, Group
from opinfo.verdict import Row
from opinfo.worker import ANSWERS, Begins, Done, Request, Settings

START_TIMEOUT = 300.0  # importing torch and op_db on a busy machine
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Job:
    """What to run: the groups, how many cases of each (None: all), and which are answered already."""

    groups: tuple[Group, ...]
    settings: Settings
    pick: int | None = None
    done: frozenset[str] = frozenset()
    timeout: float = 120.0  # seconds for one way of running one case
    workers: int = 1


class WorkerDiedError(Exception):
    """The worker was killed by its case, or had to be."""


def run(job: Job, emit: Callable[[Row], None]) -> None:
    """Answer every group; `emit` gets each row as soon as it is known, one at a time."""
    lock = threading.Lock()
    waiting = iter(job.groups)

    def next_group() -> Group | None:
        with lock:
            return next(waiting, None)

    def emit_one(row: Row) -> None:
        with lock:
            emit(row)

    with ThreadPoolExecutor(job.workers) as threads:
        for future in [threads.submit(_serve, job, next_group, emit_one) for _ in range(job.workers)]:
            future.result()


def unsampled(group: Group, reason: str, detail: str, status: str = "not applicable") -> Row:
    """The row of a group whose samples cannot even be made."""
    return Row(group.op, "function", group.dtype, -1, "forward", status, reason, detail)


def case_of(row: Row) -> Case:
    """The case that a row is about."""
    return Case(row.op, row.variant, row.dtype, row.sample, row.direction)


def _serve(job: Job, next_group: Callable[[], Group | None], emit: Callable[[Row], None]) -> None:
    with _Worker(job.settings, job.timeout) as worker:
        while (group := next_group()) is not None:
            if case_of(unsampled(group, "", "")).key not in job.done:
                _answer(worker, group, job, emit)


def _answer(worker: _Worker, group: Group, job: Job, emit: Callable[[Row], None]) -> None:
    """All rows of a group, over as many workers as its cases kill."""
    skip = set(job.done)
    while True:
        known = tuple(sorted(key for key in skip if key.startswith(f"{group.op}|")))
        try:
            for row in worker.rows(Request(group, known, job.pick)):
                skip.add(case_of(row).key)
                emit(row)
            return
        except WorkerDiedError as death:
            row = _crash_row(group, worker.at, str(death))
            emit(row)
            if row.sample < 0:
                return
            skip.add(case_of(row).key)


def _crash_row(group: Group, at: Begins | None, death: str) -> Row:
    if at is None:
        return unsampled(group, "sample inputs kill the process", death)
    case, stage = at.case, at.stage
    status = "not applicable" if stage in ("eager", "aot_eager") else "crashed"
    aot = "failed: crashed" if stage == "aot_eager" else "not run"
    reason = f"{stage} {death.splitlines()[0]}"
    return Row(case.op, case.variant, case.dtype, case.sample, case.direction, status, reason, death[:600], aot)


class _Worker:
    """One worker process at a time; a dead one is replaced at the next question."""

    def __init__(self, settings: Settings, timeout: float) -> None:
        self._settings = settings
        self._timeout = timeout
        self._child: Child | None = None
        self.at: Begins | None = None

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.kill()

    def rows(self, request: Request) -> Iterator[Row]:
        """The rows of a group; raises WorkerDiedError where the worker, started if there is none, does not live to say so."""
        self.at = None
        child = self._child = self._child or self._start()
        try:
            child.tell(request)
            while not isinstance(answer := child.hear(self._timeout), Done):
                if isinstance(answer, Begins):
                    self.at = answer
                else:
                    yield answer
        except LostError as lost:
            self._child = None
            raise WorkerDiedError(self._obituary(child, lost)) from None

    def _start(self) -> Child:
        path = os.pathsep.join(filter(None, [str(ROOT / "tests"), str(ROOT), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-m", "opinfo.worker", codec.to_json(self._settings)]
        child = Child(Started(command, {"PYTHONPATH": path}), ANSWERS)
        child.hear(START_TIMEOUT)
        return child

    def _obituary(self, child: Child, lost: LostError) -> str:
        """What a worker died of, and its last words: faulthandler's report, or else the end."""
        if lost.status == "timeout":
            return f"hangs for {self._timeout:.0f} s"
        fatal = child.stderr.rfind("Fatal Python error")
        return f"{lost.detail}\n{child.stderr[fatal:] if fatal >= 0 else child.stderr[-500:]}"
