"""Runs of tuning on replayed timings, of which many are killed: a process of its own, which forks one for each run.

All is imported and captured once, so that a run takes a second and not ten. What came of it is for the test to judge:

    python killed_tuning.py FOLDER KILLS SEED MODEL [SHARD]

leaves in FOLDER `whole.sqlite3`, the database of a run that nobody disturbed, and of runs that were killed again and again
until they had all verdicts `killed.0.sqlite3`, `killed.1.sqlite3` …, each with a `.log` of what was measured, and when that
was acknowledged. It prints at which moments it killed.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.replay.answers import OnDone
from fuseplan.capture.trace.format import Trace
from fuseplan.measure.environment import environment
from fuseplan.measure.jobs import Capture, CapturedProgram, Job, Outcome, RacePlans, RaceRegion, choice_name
from fuseplan.tune import tune
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.traces import traces_of
from replaying import ReplayingPool, captured

JOB_S = 0.004
"""What a job takes, so that there is time to be killed in."""
SHARE = 0.6
"""Of the time that a run takes, at most this passes until it is killed."""


class Mixer(nn.Module):
    """Islands around matmuls."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(16, 32), nn.Linear(32, 16), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.gelu(self.first(self.norm(x))) * 2
        return (x + self.second(hidden)).view(4, 4, 16).tanh()


def scaled(x: Tensor) -> Tensor:
    return torch.softmax((x * 2).sin() + x, -1).T


def programs() -> list[Trace]:
    """Three: two of one module, that share regions, and another."""
    found = traces_of(Mixer(), torch.randn(16, 16), name="training")
    with torch.no_grad():
        found += traces_of(Mixer(), torch.randn(16, 16), name="inference")
        found += traces_of(scaled, torch.randn(16, 16), name="scaled")
    return found


@dataclass
class Logging(ReplayingPool):
    """Writes down what it measures: when it begins, and when that is kept."""

    log: Path = Path()
    graphs: Mapping[str, CapturedProgram] = field(default_factory=dict)

    def map(self, jobs: Sequence[Job], on_done: OnDone | None = None, limit_s: float | None = None) -> list[Outcome]:
        def done(job: Job, outcome: Outcome) -> None:
            if on_done is not None:
                on_done(job, outcome)
            self._write("kept", job)

        return super().map(jobs, done, limit_s)

    def _answer(self, job: Job) -> Outcome:
        if isinstance(job, Capture):
            return Outcome(found=self.graphs[Trace.from_json(job.trace).key])
        self._write("measured", job)
        time.sleep(JOB_S)
        return super()._answer(job)

    def _write(self, what: str, job: Job) -> None:
        if isinstance(job, RaceRegion):
            with self.log.open("a") as log:
                log.writelines(f"{what} {job.graph.key} {choice_name(choice)}\n" for choice in job.choices)
        elif isinstance(job, RacePlans) and what == "measured":
            with self.log.open("a") as log:
                log.write(f"{what} {Trace.from_json(job.trace).key} whole\n")


def main(folder: Path, kills: int, seed: int, model: str, shard: str | None = None) -> None:
    traces = programs()
    graphs = {trace.key: captured(trace.to_json()) for trace in traces}
    environment("cpu")  # which asks the compiler its name
    torch.set_num_threads(1)

    def run(name: str) -> int:
        """Start one, and return its process."""
        pid = os.fork()
        if pid:
            return pid

        @contextmanager
        def replayed(device: str, effort: Effort) -> Iterator[ReplayingPool]:
            yield Logging(log=folder / f"{name}.log", graphs=graphs)

        ended: Callable[[int], None] = os._exit
        try:
            tune(traces, db=folder / f"{name}.sqlite3", workers=replayed, progress=Silent(), model=model, shard=shard)
        except BaseException as error:  # noqa: BLE001 -- the child must not go on as its parent
            print(repr(error), file=sys.stderr, flush=True)
            ended(1)
        ended(0)
        return 0

    def wait(pid: int, seconds: float) -> bool:
        """Whether it came to its end by itself within so many seconds."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                assert status == 0, f"a run failed with {status}"
                return True
            time.sleep(0.002)
        return False

    if model != "roofline":
        assert wait(run("first"), 240)  # which fits the model, and keeps the fit
        for path in folder.glob("first.*"):
            path.unlink()
    begin = time.monotonic()
    assert wait(run("whole"), 120)
    takes = time.monotonic() - begin
    print(f"undisturbed: {takes:.2f} s", flush=True)
    rng, databases = random.Random(seed), 0
    while kills:
        pid, moment = run(f"killed.{databases}"), rng.uniform(0.02, SHARE * takes)
        if wait(pid, moment):
            databases += 1
            continue
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        kills -= 1
        print(f"killed.{databases} after {moment:.2f} s", flush=True)
    assert wait(run(f"killed.{databases}"), 120)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
