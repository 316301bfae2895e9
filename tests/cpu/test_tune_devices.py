"""Tuning on several devices at once, on replayed timings: who does what, what is shared, and what happens when one fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from benchmarks.replay.answers import OnDone
from fuseplan.capture.trace.calls import Calls
from fuseplan.capture.trace.format import Trace
from fuseplan.errors import ExecutorError, GraphError
from fuseplan.measure.jobs import Calibrate, Capture, CapturedProgram, Job, Outcome, OutcomeRow, RacePlans, RaceRegion
from fuseplan.tune import tune
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program.result import Tuned
from fuseplan.tuning.progress import Progress, Silent
from fuseplan.tuning.queue import agenda, devices
from fuseplan.tuning.traces import traces_of
from fuseplan.tuning_db import Environment, Places, Store
from replaying import ReplayingPool, captured

GPU = Environment(
    "cuda",
    "2.13.0",
    gpu="A GPU",
    gpu_sms=8,
    gpu_l2_mib=8,
    gpu_memory_gib=8,
    cuda="13.0",
    versions=(("inductor", "2.13.0"),),
)
CPU = Environment("cpu", "2.13.0", cpu="a CPU", cpu_threads=2, versions=(("inductor", "2.13.0"),))
HERE = {"cuda:0": GPU, "cuda:1": GPU, "cuda:2": replace(GPU, gpu="Another GPU"), "cpu": CPU}
TOGETHER_S = 60.0
"""How long two threads wait for each other before a test fails."""


class Layers(nn.Module):
    """Programs of different lengths, of the same regions."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x) * 2) + x
        return x


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    with torch.no_grad():
        return [trace for n in (1, 2, 3) for trace in traces_of(Layers(n), torch.randn(4, 8), name=f"{n} layers")]


@pytest.fixture(scope="module")
def graphs(traces: list[Trace]) -> dict[str, CapturedProgram]:
    return {trace.name: captured(trace.to_json()) for trace in traces}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three GPUs, of which two are alike, and a CPU."""
    monkeypatch.setattr(devices, "environment", HERE.__getitem__)
    for module in (devices, agenda):
        monkeypatch.setattr(module, "check_device", lambda device: None)


@dataclass
class Device(ReplayingPool):
    """What one device is asked, and by which events it can be seen."""

    graphs: Mapping[str, CapturedProgram] = field(default_factory=dict)
    before: Callable[[Job], None] = lambda job: None

    def _answer(self, job: Job) -> Outcome:
        self.before(job)
        if isinstance(job, Capture):
            trace = Trace.from_json(job.trace)
            found = self.graphs.get(trace.name)
            return Outcome("error", "planted") if found is None else Outcome(found=replace(found, key=trace.key))
        return super()._answer(job)


@dataclass
class Fleet:
    """The pools of all devices; one is made when the first job comes."""

    graphs: Mapping[str, CapturedProgram]
    before: Callable[[str, Job], None] = lambda device, job: None
    broken: tuple[str, ...] = ()
    pools: dict[str, Device] = field(default_factory=dict)
    closed: list[str] = field(default_factory=list)

    @contextmanager
    def open(self, device: str, effort: Effort) -> Iterator[Device]:
        if device in self.broken:
            raise ExecutorError(f"no worker process can be started on {device}")
        self.pools[device] = Device(graphs=self.graphs, before=lambda job: self.before(device, job))
        try:
            yield self.pools[device]
        finally:
            self.closed.append(device)

    def tune(self, traces: Sequence[Trace], where: str, **settings: object) -> list[Tuned]:
        settings = {"progress": Silent(), **settings}
        return tune(traces, device=where, workers=self.open, **settings)  # type: ignore[arg-type]

    @property
    def measured(self) -> list[tuple[str, str]]:
        return [one for pool in self.pools.values() for one in pool.measured]

    def captures(self, device: str) -> list[str]:
        jobs = self.pools[device].jobs if device in self.pools else []
        return [Trace.from_json(job.trace).name for job in jobs if isinstance(job, Capture)]


@pytest.fixture
def fleet(graphs: dict[str, CapturedProgram]) -> Fleet:
    return Fleet(graphs)


def test_two_devices_work_at_once_and_measure_what_they_share_once(traces: list[Trace], fleet: Fleet) -> None:
    both = threading.Barrier(2)

    def meet(device: str, job: Job) -> None:
        if isinstance(job, Calibrate):  # the first job of each device
            both.wait(TOGETHER_S)

    fleet.before = meet
    found = fleet.tune(traces, "cuda:0,cuda:1")
    assert [one.name for one in found] == [trace.name for trace in traces]
    assert {one.detail for one in found} == {""}
    assert fleet.captures("cuda:0")
    assert fleet.captures("cuda:1")
    assert sorted(fleet.captures("cuda:0") + fleet.captures("cuda:1")) == sorted(trace.name for trace in traces)
    assert fleet.measured
    assert len(fleet.measured) == len(set(fleet.measured))
    assert sorted(fleet.closed) == ["cuda:0", "cuda:1"]


def test_what_one_device_is_measuring_another_waits_for(traces: list[Trace], fleet: Fleet) -> None:
    """Both come to the same regions; the second device finds them held, and takes what the first one found."""
    both = threading.Barrier(2)
    asked = threading.Event()
    first: list[str] = []

    def meet(device: str, job: Job) -> None:
        if isinstance(job, Calibrate):
            both.wait(TOGETHER_S)
        if isinstance(job, RaceRegion):
            first.append(device)
            if device == first[0]:
                asked.wait(0.5)  # time enough for the other to come here, were it not held up
            else:
                asked.set()

    fleet.before = meet
    fleet.tune(traces[1:], "cuda:0,cuda:1")
    assert len(fleet.measured) == len(set(fleet.measured))


def test_a_device_on_which_nothing_starts_leaves_its_work_to_the_others(traces: list[Trace], fleet: Fleet) -> None:
    fleet.broken = ("cuda:0",)
    found = fleet.tune(traces, "cuda:0,cuda:1")
    assert {one.detail for one in found} == {""}
    assert sorted(fleet.captures("cuda:1")) == sorted(trace.name for trace in traces)


def test_no_device_left_is_an_error(traces: list[Trace], fleet: Fleet) -> None:
    fleet.broken = ("cuda:0", "cuda:1")
    with pytest.raises(ExecutorError, match="no worker process can be started on cuda"):
        fleet.tune(traces, "cuda:0,cuda:1")


def test_devices_of_two_kinds_tune_each_program_twice(traces: list[Trace], fleet: Fleet, own_database: Path) -> None:
    found = fleet.tune(traces[:2], "cuda:0,cuda:2", launch="plain")
    assert len(found) == 4
    assert len(fleet.captures("cuda:0")) == len(fleet.captures("cuda:2")) == 2
    store = Store(Places(own_database))
    gpus = ("A GPU", "Another GPU")
    assert sorted((plan.program, plan.environment.gpu) for plan in store.plans()) == sorted(
        (one.program, gpu) for one, gpu in zip(found, (gpus[0], gpus[0], gpus[1], gpus[1]), strict=True)
    )
    store.close()


def test_a_cpu_measures_with_nobody_beside_it(traces: list[Trace], fleet: Fleet) -> None:
    begun: list[str] = []
    fleet.before = lambda device, job: begun.append(device)
    fleet.tune(traces[:1], "cpu,cuda:0")
    assert begun == sorted(begun, reverse=True)  # cuda first, then the CPU


def test_what_is_known_starts_no_workers(traces: list[Trace], fleet: Fleet, graphs: dict[str, CapturedProgram]) -> None:
    first = fleet.tune(traces, "cuda:0")
    later = Fleet(graphs, broken=("cuda:0", "cuda:1"))
    again = later.tune(traces, "cuda:0,cuda:1")
    assert [(one.program, one.plan, one.wall_us) for one in again] == [
        (one.program, one.plan, one.wall_us) for one in first
    ]


def test_a_program_that_fails_is_a_verdict_and_the_others_go_on(traces: list[Trace], fleet: Fleet) -> None:
    fleet.graphs = {name: found for name, found in fleet.graphs.items() if name != "2 layers"}

    def break_one(device: str, job: Job) -> None:
        if isinstance(job, Capture) and Trace.from_json(job.trace).name == "3 layers":
            raise GraphError("planted")

    fleet.before = break_one
    found = {one.name: one for one in fleet.tune(traces, "cuda:0")}
    assert found["1 layers"].status in ("tuned", "default")
    assert (found["2 layers"].status, found["3 layers"].status) == ("failed", "failed")
    assert "cannot be captured" in found["2 layers"].detail
    assert found["3 layers"].detail == "planted"


def test_what_the_budget_leaves_out_is_said_and_not_begun(traces: list[Trace], fleet: Fleet) -> None:
    weighty = [replace(trace, calls=(Calls({}, 10**i),)) for i, trace in enumerate(traces)]

    def spend(device: str, job: Job) -> None:
        if isinstance(job, Capture):
            threading.Event().wait(0.6)

    fleet.before = spend
    found = fleet.tune(weighty, "cuda:0", budget=0.5)
    assert [one.status == "left" for one in found] == [True, True, False]
    assert fleet.captures("cuda:0") == ["3 layers"]
    assert "the budget ended" in found[0].detail
    assert [one.calls for one in found] == [1, 10, 100]


def test_ctrl_c_in_one_device_ends_them_all_and_what_they_say_then_does_not_count(
    traces: list[Trace], fleet: Fleet, own_database: Path
) -> None:
    """A worker that is ended looks like one that crashed: that is no fact about the region."""
    racing, ended = threading.Event(), threading.Event()

    class Ended(Device):
        def map(
            self, jobs: Sequence[Job], on_done: OnDone | None = None, limit_s: float | None = None
        ) -> list[Outcome]:
            outcomes = []
            for job in jobs:
                if isinstance(job, RaceRegion):
                    racing.set()
                    ended.wait(TOGETHER_S)
                    outcomes.append(
                        Outcome("crashed", "it was ended", rows=(OutcomeRow("aten", "crashed", "it was ended"),))
                    )
                    if on_done is not None:
                        on_done(job, outcomes[-1])
                else:
                    outcomes += super().map([job], on_done, limit_s)
            return outcomes

    def interrupt(device: str, job: Job) -> None:
        racing.wait(TOGETHER_S)
        raise KeyboardInterrupt

    @contextmanager
    def workers(device: str, effort: Effort) -> Iterator[Device]:
        yield Ended(graphs=fleet.graphs) if device == "cuda:0" else Device(before=lambda job: interrupt(device, job))
        if device == "cuda:0":
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        tune(traces, device="cuda:0,cuda:1", workers=workers, progress=Silent())
    for thread in threading.enumerate():
        if thread.name.startswith("tuning on "):
            thread.join(TOGETHER_S)
    store = Store(Places(own_database))
    rows = store.file.read(lambda connection: connection.execute("SELECT status FROM measurement").fetchall())
    states = store.file.read(lambda connection: connection.execute("SELECT state FROM run").fetchall())
    store.close()
    assert rows == []
    assert states == [("interrupted",)]


def test_on_a_gpu_a_program_without_a_launch_races_under_both(traces: list[Trace], fleet: Fleet) -> None:
    """And on a CPU there is but one."""
    (alone,) = fleet.tune(traces[:1], "cuda:0")
    (raced,) = [job for job in fleet.pools["cuda:0"].jobs if isinstance(job, RacePlans)]
    assert {entry.plan.launch for entry in raced.entries if entry.plan is not None} == {"plain", "cudagraph"}
    assert alone.launch in ("plain", "cudagraph")
    assert [found.launch for found in fleet.tune(traces[1:2], "cuda:0", launch="both")] == ["plain", "cudagraph"]
    (on_cpu,) = fleet.tune(traces[:1], "cpu")
    assert on_cpu.launch == "plain"


def test_each_device_has_its_own_line_of_progress(traces: list[Trace], fleet: Fleet) -> None:
    class Told(Silent):
        def __init__(self) -> None:
            self.said: list[tuple[str, str]] = []

        def on(self, device: str) -> Progress:
            line = Line()
            line.device, line.all = device, self
            return line

        def begin(self, total: int) -> None:
            self.said.append(("all", f"{total} programs"))

        def left(self, seconds: float) -> None:
            self.said.append(("left", f"{seconds:.0f}"))

    class Line(Silent):
        device: str
        all: Told

        def end(self, text: str) -> None:
            self.all.said.append((self.device, text))

        def best(self, text: str) -> None:
            self.all.said.append(("best", text))

    told = Told()
    fleet.tune(traces, "cuda:0,cuda:1", progress=told)
    assert told.said[0] == ("all", "3 programs")
    ended = [text for device, text in told.said if device in ("cuda:0", "cuda:1")]
    assert len(ended) == 3
    assert all(" times as fast" in text or text.endswith("nothing that was tried is faster") for text in ended)
    left = [float(text) for who, text in told.said if who == "left"]
    assert left[0] > left[-1] == 0
    best = [text for who, text in told.said if who == "best"]
    assert best
    assert all(text.startswith("best so far ") and " against " in text for text in best)


def test_workers_start_when_they_are_told_to_or_with_the_first_job_and_not_again() -> None:
    opened: list[ReplayingPool] = []

    @contextmanager
    def opening() -> Iterator[ReplayingPool]:
        opened.append(ReplayingPool())
        yield opened[0]

    pool, other = devices.LazyPool(opening), devices.LazyPool(opening)
    assert not opened
    pool.start()
    assert len(opened) == 1
    pool.start()
    pool.map([])
    assert len(opened) == 1
    for one in (pool, other):
        one.close()
        with pytest.raises(devices.StoppedError):
            one.start()
    assert len(opened) == 1
