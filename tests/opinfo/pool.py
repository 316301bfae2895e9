"""Drives workers and outlives them: a case that kills or hangs its worker becomes a row, and the run goes on."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from opinfo.cases import Case, Group
from opinfo.verdict import Row
from opinfo.worker import Settings

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
        worker.ask(group, [key for key in skip if key.startswith(f"{group.op}|")], job.pick)
        try:
            for row in worker.rows():
                skip.add(case_of(row).key)
                emit(row)
            return
        except WorkerDiedError as death:
            row = _crash_row(group, worker.at, str(death))
            emit(row)
            if row.sample < 0:
                return
            skip.add(case_of(row).key)


def _crash_row(group: Group, at: tuple[Case, str] | None, death: str) -> Row:
    if at is None:
        return unsampled(group, "sample inputs kill the process", death)
    case, stage = at
    status = "not applicable" if stage in ("eager", "aot_eager") else "crashed"
    aot = "failed: crashed" if stage == "aot_eager" else "not run"
    reason = f"{stage} {death.splitlines()[0]}"
    return Row(case.op, case.variant, case.dtype, case.sample, case.direction, status, reason, death[:600], aot)


class _Worker:
    """One worker process at a time; a dead one is replaced at the next question."""

    def __init__(self, settings: Settings, timeout: float) -> None:
        self._settings = settings
        self._timeout = timeout
        self._process: subprocess.Popen[str] | None = None
        self._messages: queue.Queue[str | None] = queue.Queue()
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- closed in __exit__
        self.at: tuple[Case, str] | None = None

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._errors.close()

    def ask(self, group: Group, skip: list[str], pick: int | None) -> None:
        """Send a group to the worker, which is started if there is none."""
        self.at = None
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"group": asdict(group), "skip": skip, "pick": pick}) + "\n")
        self._process.stdin.flush()

    def rows(self) -> Iterator[Row]:
        """The answers, until the group is done; raises WorkerDiedError where the worker does not live to say so."""
        while True:
            message = self._receive(self._timeout)
            if "begins" in message:
                self.at = Case(**message["begins"]), message["stage"]
            elif "row" in message:
                yield Row(**message["row"])
            else:
                return

    def _start(self) -> None:
        path = os.pathsep.join(filter(None, [str(ROOT / "tests"), str(ROOT), os.environ.get("PYTHONPATH")]))
        self._messages = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "opinfo.worker", json.dumps(asdict(self._settings))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert self._process.stdout is not None
        threading.Thread(target=_pump, args=(self._process.stdout, self._messages), daemon=True).start()
        self._receive(START_TIMEOUT)

    def _receive(self, timeout: float) -> dict[str, Any]:
        try:
            line = self._messages.get(timeout=timeout)
        except queue.Empty:
            self._stop()
            raise WorkerDiedError(f"hangs for {timeout:.0f} s") from None
        if line is None:
            raise WorkerDiedError(self._obituary())
        told: dict[str, Any] = json.loads(line)
        return told

    def _obituary(self) -> str:
        assert self._process is not None
        code = self._process.wait()
        self._process = None
        cause = f"dies of {signal.Signals(-code).name}" if code < 0 else f"exits with {code}"
        return f"{cause}\n{self._last_words()}"

    def _last_words(self) -> str:
        """What the dead worker wrote to stderr: faulthandler's report, or else the end."""
        self._errors.seek(0)
        said = self._errors.read()
        self._errors.seek(0)
        self._errors.truncate()
        fatal = said.rfind("Fatal Python error")
        return said[fatal:] if fatal >= 0 else said[-500:]

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _pump(pipe: Iterable[str], messages: queue.Queue[str | None]) -> None:
    for line in pipe:
        messages.put(line)
    messages.put(None)
