"""What runs where a device is: its workers, which are asked from elsewhere. Nothing here knows what lies between, where `remote` is."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fuseplan import __version__
from fuseplan.errors import ExecutorError
from fuseplan.measure.environment import RunFacts, environment, run_facts
from fuseplan.measure.idle import why_busy
from fuseplan.measure.jobs import JOBS, Outcome, Setup
from fuseplan.measure.pool import cores
from fuseplan.measure.process import MakeWorker, WorkerLostError, WorkerProcess
from fuseplan.tuning_db import Environment
from fuseplan.wire import codec

_THREADS = "OMP_NUM_THREADS"
"""Who starts a process for a GPU and gives it no core, as Ray does, means one thread by that: workers have all that the machine has."""


@dataclass(frozen=True)
class HostFacts:
    """What a driver wants to know of a device before it has it measure."""

    environment: Environment
    run: RunFacts
    cores: int
    threads: int
    """What an op on the CPU gets."""
    fuseplan: str
    torch: str
    python: str
    busy: str | None = None
    """Who else uses the device, where somebody does."""


@dataclass(frozen=True)
class LostWorker:
    """The answer where a worker died over its job: as `WorkerLostError`."""

    status: str
    detail: str
    at: str | None = None


@dataclass(frozen=True)
class NoWorker:
    """The answer where no worker can be started."""

    detail: str


ANSWERED = Outcome | LostWorker | NoWorker
"""All that a job may come back as."""


@dataclass(frozen=True)
class WorkerStage:
    """Which candidate a worker is at, and what it does with it."""

    number: int
    at: str
    stage: str


class DeviceHost:
    """The workers of one device, by number. All that goes in and out is text, or numbers."""

    def __init__(self, device: str, make: MakeWorker = WorkerProcess) -> None:
        if device != "cpu" and os.environ.pop(_THREADS, None) is not None:
            torch.set_num_threads(cores())
        self.device = device
        self._make = make
        self._workers: dict[int, Any] = {}
        self._stages: dict[int, WorkerStage] = {}
        self._lock = threading.Lock()

    def facts(self) -> str:
        """JSON of `HostFacts`."""
        busy = why_busy(self.device) if self.device != "cpu" else None  # a CPU always has others
        found = HostFacts(
            environment(self.device),
            run_facts(self.device),
            cores(),
            torch.get_num_threads(),
            __version__,
            str(torch.__version__),
            platform.python_version(),
            busy,
        )
        return codec.to_json(found)

    def start(self, number: int, setup: str, start_s: float) -> None:
        """Start a worker, unless it was; nobody waits for it."""
        self._worker(number, setup, start_s).start()

    def ask(self, number: int, setup: str, start_s: float, job: str, limit_s: float) -> str:
        """JSON of what comes of a job."""
        worker = self._worker(number, setup, start_s)

        def at(name: str, stage: str) -> None:
            self._stages[number] = WorkerStage(number, name, stage)

        try:
            found: Any = worker.ask(codec.from_json(JOBS, job), limit_s, at)
        except WorkerLostError as lost:
            found = LostWorker(lost.status, lost.detail, lost.at)
        except ExecutorError as error:
            found = NoWorker(str(error))
        finally:
            self._stages.pop(number, None)
        return codec.to_json(found, ANSWERED)

    def beat(self) -> str:
        """JSON of what all workers are at: whoever asks knows that this lives."""
        return codec.to_json(tuple(self._stages.copy().values()), tuple[WorkerStage, ...])

    def hurry(self, number: int, seconds: float | None) -> None:
        """Let a worker go on for so long over its job; None: as long as the job says."""
        worker = self._workers.get(number)
        if worker is not None:
            worker.unhurried() if seconds is None else worker.hurry(seconds)

    def kill(self, number: int) -> None:
        """End what a worker is at; its next job starts it anew."""
        worker = self._workers.get(number)
        if worker is not None:
            worker.kill()

    def end(self) -> None:
        """End all workers; those that are asked for after that are others."""
        with self._lock:
            workers, self._workers = list(self._workers.values()), {}
        for worker in workers:
            worker.strike()
        for worker in workers:
            worker.end()

    def _worker(self, number: int, setup: str, start_s: float) -> Any:
        with self._lock:
            if number not in self._workers:
                self._workers[number] = self._make(codec.from_json(Setup, setup), start_s)
            return self._workers[number]


def read_facts(text: str) -> HostFacts:
    """What `facts` gives."""
    return codec.from_json(HostFacts, text)


def read_stages(text: str) -> Mapping[int, WorkerStage]:
    """What `beat` gives, by the number of the worker."""
    return {one.number: one for one in codec.from_json(tuple[WorkerStage, ...], text)}
