"""Measuring on a real GPU: the clock, workers that lose their context, and the memory that is left behind."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from clocks import check_clock, check_failures, pause
from cpu.test_measure import FLAGS
from cpu.test_measure_programs import Block, trace_of
from fuseplan.graph import Graph, Op, Ref, TensorType, Value
from fuseplan.measure.clocks import GpuClock
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.environment import environment, run_facts
from fuseplan.measure.jobs import Calibrate, Capture, RacePlans, RaceRegion, VetPlan, VetRegion
from fuseplan.measure.memory import Peak, bytes_on_gpu
from fuseplan.measure.pool import Limits, Workers
from fuseplan.measure.race import Rule, Sample
from fuseplan.plan import Plan

TESTS = Path(__file__).parents[1]
SHORT = Rule(most=3, least=3)
BLOCKS = 20
KIND = TensorType("float32", (64, 1024), (1024, 1), "cuda:0")
REGION = Graph(
    (Value("x", KIND),),
    (
        Op("aten.exp.default", (Ref("x"),), (), (Value("y", KIND),)),
        Op("aten.mul.Tensor", (Ref("y"), 2.0), (), (Value("z", KIND),)),
    ),
    (Ref("z"),),
)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
        limits = Limits(region_s=30.0, plan_s=300.0)
        with Workers("cuda", vetters=2, limits=limits, flags=FLAGS, plant="planted:executors") as pool:
            yield pool


def busy(times: int) -> Callable[[], object]:
    """Work for the GPU: no less than 50 µs each time."""
    x = torch.ones(2**26, device="cuda")

    def call() -> None:
        for _ in range(times):
            torch.neg(x)

    return call


def test_the_clock_of_a_gpu() -> None:
    check_clock(GpuClock(), busy)
    check_failures(GpuClock())


def _least(samples: list[Sample]) -> Sample:
    return Sample(*map(min, zip(*((one.device_us, one.host_us, one.wall_us) for one in samples), strict=True)))


def test_device_and_host_are_apart() -> None:
    clock, few = GpuClock(), torch.ones(16, device="cuda")
    clock.add("host", [pause(2)])
    clock.add("device", [lambda: torch.cuda._sleep(4_000_000)])  # 2 ms at 2 GHz, and more at less
    clock.add("small", [lambda: torch.neg(few)])
    # each at its least: another process may have had the GPU, or a core, for a while
    host, device, small = (_least([clock.block(name) for _ in range(BLOCKS)]) for name in ("host", "device", "small"))
    assert host.host_us > 2000 > 200 > host.device_us
    assert host.wall_us > 2000
    assert device.device_us > 1500 > 200 > device.host_us
    assert device.wall_us > 1500
    # what fills the cache before each call takes tens of µs, and is in none of these
    assert small.device_us < 20
    assert small.host_us < 200


def test_a_call_that_fills_the_queue_still_has_its_own_host_time() -> None:
    """More launches than the queue holds: were the GPU kept busy, the host would wait for it."""
    x = torch.ones(16, device="cuda")

    def many() -> None:
        for _ in range(900):
            torch.neg(x)

    clock = GpuClock()
    clock.add("many", [many])
    assert clock.block("many").host_us < 50_000


def test_peak_memory_is_what_calls_take_beside_what_was_there() -> None:
    held = torch.ones(2**26, device="cuda")
    peak = Peak(torch.device("cuda"))
    torch.ones(2**28, device="cuda")  # what compiling takes
    peak.settle()
    torch.ones(2**25, device="cuda")
    found = peak.bytes()
    assert found is not None
    assert 2**27 <= found < 2**28
    assert held.sum() == 2**26


def test_peak_memory_does_not_hang_on_what_others_have_left() -> None:
    left: list[Any] = [torch.ones(2**28, device="cuda")]
    left.append(left)  # alive until somebody looks for garbage
    del left
    peak = Peak(torch.device("cuda"))
    peak.settle()
    gc.collect()
    torch.ones(2**25, device="cuda")
    assert peak.bytes() == 2**27


def test_results_that_are_kept_for_a_judge_are_not_of_the_peak() -> None:
    peak, weight = Peak(torch.device("cuda")), torch.ones(2**20, device="cuda")
    kept: dict[str, Any] = {"output 0": torch.ones(2**24, device="cuda"), "output 1": weight.view(-1), "number": 3}
    kept["output 2"] = kept["output 0"][1:]
    peak.settle(kept=bytes_on_gpu(kept.values(), [weight]))
    torch.ones(2**25, device="cuda")
    assert peak.bytes() == 2**27 + 2**22


def test_a_cuda_graph_takes_what_waits_for_its_replay() -> None:
    x = torch.ones(2**24, device="cuda")
    peak, graph = Peak(torch.device("cuda")), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x + 1).exp()  # one of the two is free after it
    peak.settle()
    graph.replay()
    found = peak.bytes()
    assert found is not None
    assert 2 * 2**26 <= found < 3 * 2**26
    assert y.shape == x.shape


def test_each_failure_is_a_row_and_no_memory_is_left(workers: Workers) -> None:
    faults = {
        "aten": "ok",
        "illegal_access": "crashed",
        "fill_gpu": "out-of-memory",
        "hang_on_gpu": "timeout",
        "wrong_values": "wrong",
        "inductor": "ok",
    }
    outcomes = workers.map([VetRegion(REGION, name) for name in faults])
    assert {name: o.status for name, o in zip(faults, outcomes, strict=True)} == faults
    assert "illegal" in outcomes[1].detail
    choices = tuple((name, "default") for name in ("aten", "later_illegal", "inductor"))
    (raced,) = workers.map([RaceRegion(REGION, choices, SHORT)])
    assert [row.status for row in raced.rows] == ["ok", "crashed", "ok"]
    aten = raced.row("aten")
    assert aten.device_us is not None
    assert aten.host_us is not None
    assert 0 < aten.device_us < 1000
    assert 0 < aten.host_us < 1000
    pids = [process.pid for process in (workers.racer, *workers.vetters)]
    for process in (workers.racer, *workers.vetters):
        process.kill()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]  # what one held of the GPU goes with it


def test_the_memory_of_the_parent_is_left_alone(workers: Workers) -> None:
    """With the parent's tensors there, a worker finds less, says so, and takes none of it away."""
    free, _ = torch.cuda.mem_get_info()
    kept = torch.ones(int(free * 0.8) // 4, device="cuda")
    (outcome,) = workers.map([VetRegion(REGION, "fill_gpu")])
    assert outcome.status == "out-of-memory"
    assert torch.cuda.mem_get_info()[0] > 0
    assert kept[-1] == 1


@pytest.mark.parametrize("ahead", [False, True], ids=["in turn", "ahead"])
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_programs_race_under_every_launch(workers: Workers, train: bool, ahead: bool) -> None:
    model = Block().cuda().train(train)
    with torch.set_grad_enabled(train):
        trace = trace_of(model, torch.randn(4, 8, device="cuda"))
    (captured,) = workers.map([Capture(trace)])
    assert captured.found is not None
    assert [role for role, _ in captured.found.graphs] == (["forward", "backward"] if train else ["inference"])
    sides = (
        RaceEntry("eager"),
        RaceEntry("torch.compile", mode="default"),
        RaceEntry("reduce-overhead", mode="reduce-overhead"),
        RaceEntry("inductor", Plan.named("inductor")),
        RaceEntry("graph", Plan("inductor", launch="cudagraph")),
        RaceEntry("aten graph", Plan("aten", launch="cudagraph")),
    )
    vetted = workers.map([VetPlan(trace, side, race=ahead) for side in sides])
    assert [(o.status, o.detail) for o in vetted] == [("ok", "")] * len(sides)
    seen = {row.name: row.call_us for outcome in vetted for row in outcome.rows if row.call_us is not None}
    assert seen.keys() == (set() if train else {"graph", "aten graph"})
    assert all(0 < us < 1e4 for us in seen.values()), "a replay, and not what it took to compile"
    if ahead:  # what the racer has prepared does not mind what it does meanwhile
        (regions,) = workers.map([RaceRegion(REGION, (("aten", "default"), ("inductor", "default")))])
        assert [row.status for row in regions.rows] == ["ok", "ok"]
    (raced,) = workers.map([RacePlans(trace, sides, "inductor", SHORT)])
    assert [(row.name, row.status, row.detail) for row in raced.rows] == [(side.name, "ok", "") for side in sides]
    assert [row.peak_bytes is None for row in raced.rows] == [ahead] * len(sides)  # then only vetting can tell


def test_a_program_recorded_on_a_cpu_runs_here(workers: Workers) -> None:
    trace = trace_of(nn.Sequential(nn.Linear(8, 8), nn.GELU()), torch.randn(4, 8))
    (captured,) = workers.map([Capture(trace)])
    assert captured.found is not None
    assert all(graph.devices == ("cuda:0",) for _, graph in captured.found.graphs)


def test_the_environment_and_the_machine(workers: Workers) -> None:
    here = environment("cuda")
    assert here.gpu == torch.cuda.get_device_name()
    assert here.cpu is None
    assert here.gpu_sms
    assert here.gpu_l2_mib
    assert here.gpu_memory_gib
    assert here.cuda == torch.version.cuda
    facts = run_facts("cuda")
    assert facts.driver
    assert facts.clocks
    (outcome,) = workers.map([Calibrate()])
    assert outcome.ok
    machine = outcome.machine
    assert machine["matmul_tflops.bfloat16"] > machine["matmul_tflops.float32"] > 1
    assert machine["bandwidth_gbs"] > 100
    assert 0 < machine["view_host_us"] < machine["launch_host_us"] < 200
