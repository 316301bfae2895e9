"""How long it takes until a folder of many traces is being tuned: read, told apart, put in order, the first worker at work.

1,000 files of 100 distinct programs, as a recording of many runs leaves them: layers of transformers and of perceptrons at
several sizes, each in ten files with other counts of its calls.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import torch
from torch import nn

from benchmarks.given import nothing
from fuseplan.capture.trace.calls import Calls
from fuseplan.capture.trace.format import Trace
from fuseplan.measure.jobs import Capture, Job, Outcome, VetPlan
from fuseplan.measure.pool import OnDone, Workers
from fuseplan.measure.vetters import Ask
from fuseplan.tune import tune
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.queue.agenda import agenda_of
from fuseplan.tuning.queue.sources import files, read_programs, read_traces
from fuseplan.tuning.traces import traces_of
from fuseplan.tuning_db import Places, Store

FILES = 1000
PROGRAMS = 100
LIMIT_S = 10.0
ROUNDS = 3
PHASES = ("list_s", "read_s", "dedupe_s", "order_s", "begin_s")


def measure(arguments: list[str]) -> dict[str, Any]:
    """The seconds of each phase, the phases of a round one after the other, in several rounds; and of the command itself."""
    nothing("traces", __doc__, arguments)
    with TemporaryDirectory() as folder:
        traces = Path(folder) / "traces"
        size = write(traces, programs(PROGRAMS), FILES)
        rounds = [phases(traces, Path(folder) / f"{i}.sqlite3") for i in range(ROUNDS)]
        command = [
            sys.executable,
            "-c",
            "from fuseplan.cli import main; main()",
            "tune",
            str(traces),
            "--dry-run",
            "--db",
            f"{folder}/none.sqlite3",
        ]
        begin = perf_counter()
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
        dry_run_s = perf_counter() - begin
    return {
        "files": FILES, "programs": PROGRAMS, "bytes": size, "limit_s": LIMIT_S,
        "rounds": rounds, "total_s": median(sum(one[name] for name in PHASES) for one in rounds),
        "dry_run_command_s": dry_run_s, "dry_run_said": said,
    }  # fmt: skip


def programs(count: int) -> list[Trace]:
    """So many distinct programs."""
    found: list[Trace] = []
    kinds = (_perceptron, _encoder)
    i = 0
    while len(found) < count:
        module, x = kinds[i % len(kinds)](i)
        with torch.no_grad():
            found += traces_of(module, x, name=f"{type(module).__name__} {i}")
        torch._dynamo.reset()
        i += 1
    return found[:count]


def _perceptron(i: int) -> tuple[nn.Module, torch.Tensor]:
    layers = [layer for _ in range(4 + i % 8) for layer in (nn.Linear(64, 64), nn.GELU())]
    return nn.Sequential(*layers), torch.randn(8 + i, 64)


def _encoder(i: int) -> tuple[nn.Module, torch.Tensor]:
    layers = (nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(1 + i % 4))
    return nn.Sequential(*layers), torch.randn(2, 8 + i, 64, requires_grad=True)


def write(folder: Path, traces: Sequence[Trace], count: int) -> int:
    """So many files of these programs, each with its own count of calls; returns their bytes."""
    folder.mkdir()
    for i in range(count):
        trace = traces[i % len(traces)]
        text = replace(trace, calls=(Calls({}, 1 + i, 0.1),)).to_text()
        (folder / f"{i:04}.json").write_text(text, encoding="utf-8")
    return sum(path.stat().st_size for path in folder.iterdir())


def phases(folder: Path, database: Path) -> dict[str, float]:
    """Seconds to list, to read, to tell apart what was read, to order, and to give the first program to its workers.

    `cpu_s` are those of the processor for all this, which other processes of the machine disturb less; how long the
    workers take to import torch, look at the machine, and capture that program is `captured_after_s`, and no part of it.
    """
    busy = process_time()
    marks = [perf_counter()]
    listed = files(folder)
    marks.append(perf_counter())
    traces = [trace for file in listed for trace in read_traces(file)]
    marks.append(perf_counter())
    store = Store(Places(database))
    found = read_programs(traces, store)
    marks.append(perf_counter())
    todo = agenda_of(found, store, effort="quick", launches=("plain",))
    store.close()
    marks.append(perf_counter())
    assert (len(traces), len(todo.items)) == (FILES, PROGRAMS)
    steps = dict(zip(PHASES, (later - before for before, later in pairwise(marks)), strict=False))
    cpu = process_time() - busy
    begun, captured = _first_capture(todo.items[0].trace, database)
    return {**steps, "begin_s": begun, "cpu_s": cpu, "captured_after_s": captured}


class Started(Exception):  # noqa: N818
    """Tuning is under way."""


def _first_capture(trace: Trace, database: Path) -> tuple[float, float]:
    """Seconds until real workers are asked, and until they have captured the first program."""
    begin = perf_counter()
    begun: list[float] = []

    class First:
        def __init__(self, inner: Workers) -> None:
            self.inner = inner

        def start(self) -> None:
            self.inner.start()

        def begin(self, job: VetPlan) -> None:
            self.inner.begin(job)

        def map(
            self, jobs: Sequence[Job], on_done: OnDone | None = None, limit_s: float | None = None
        ) -> list[Outcome]:
            found = self.inner.map(jobs, on_done, limit_s)
            if any(isinstance(job, Capture) for job in jobs):
                raise Started
            return found

        def stream(self, ask: Ask, on_done: OnDone | None = None) -> list[Outcome]:
            return self.inner.stream(ask, on_done)

    @contextmanager
    def workers(device: str, effort: Effort) -> Iterator[First]:
        with Workers(device) as inner:
            inner.start()
            begun.append(perf_counter() - begin)
            yield First(inner)

    try:
        tune([trace], db=database, workers=workers, progress=Silent(), model="roofline")
    except Started:
        return begun[0], perf_counter() - begin
    raise AssertionError("it was tuned without being captured")
