"""Workers of a device elsewhere, over a line that is a call: jobs and what comes of them are those of workers of one's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from cpu.test_measure import FLAGS, REGION, SHORT, TESTS
from fuseplan.capture.dynamo.numerics import Numerics
from fuseplan.errors import ExecutorError, OptionError
from fuseplan.fleet.fleet import Fleet, FleetDevice, unfit
from fuseplan.fleet.host import DeviceHost, read_facts, read_stages
from fuseplan.fleet.remote import HostLostError, RemoteProcess
from fuseplan.measure.environment import environment, run_facts
from fuseplan.measure.jobs import RaceRegion, Setup, VetRegion
from fuseplan.measure.pool import Limits, Workers, cores
from fuseplan.tuning.effort import Effort
from fuseplan.tuning_db import Environment

GPU = Environment(
    "cuda", "2.13.0", gpu="A GPU", gpu_sms=8, gpu_l2_mib=8, gpu_memory_gib=8, cuda="13.0", versions=(("inductor", "2.13.0"),),
)  # fmt: skip


class CallLine:
    """A line to a host in this process."""

    def __init__(self, host: DeviceHost) -> None:
        self.host = host
        self.lost = False
        self.sent: list[str] = []

    def call(self, method: str, *given: Any, heard: Callable[[int, str, str], None] | None = None) -> Any:
        if self.lost:
            raise HostLostError("a/cpu is lost: planted")
        self.sent.append(method)
        return getattr(self.host, method)(*given)

    def tell(self, method: str, *given: Any) -> None:
        if not self.lost:
            self.call(method, *given)


@pytest.fixture
def line() -> Iterator[CallLine]:
    found = CallLine(DeviceHost("cpu"))
    yield found
    found.host.end()


def device(line: CallLine, name: str = "a/cpu", **facts: Any) -> FleetDevice:
    return FleetDevice(name, "cpu", replace(read_facts(line.host.facts()), **facts), line)


def test_jobs_come_back_as_from_workers_of_ones_own(line: CallLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
    numbers = iter(range(9))

    def process(setup: Setup, start_s: float) -> RemoteProcess:
        return RemoteProcess(line, next(numbers), setup, start_s)

    choices = (("aten", "default"), ("abort", "default"))
    limits = Limits(region_s=60.0, memory_bytes=2**30)
    with Workers("cpu", flags=FLAGS, limits=limits, plant="planted:executors", process=process, cores_there=2) as pool:
        right, wrong, crashed, raced = pool.map(
            [
                VetRegion(REGION, "aten"),
                VetRegion(REGION, "wrong_values"),
                VetRegion(REGION, "abort"),
                RaceRegion(REGION, choices, SHORT),
            ]
        )
    assert (right.status, wrong.status) == ("ok", "wrong")
    assert crashed.status == "crashed"
    assert [(row.name, row.status) for row in raced.rows] == [("aten", "ok"), ("abort", "crashed")]
    assert line.sent.count("ask") >= 4
    assert read_stages(line.host.beat()) == {}


def test_a_host_that_is_gone_is_an_error_of_the_device(line: CallLine) -> None:
    with Fleet([device(line)]).workers("a/cpu", Effort.named("quick")) as pool:
        line.lost = True
        with pytest.raises(ExecutorError, match="a/cpu is lost: planted"):
            pool.map([VetRegion(REGION, "aten")])


def test_a_host_says_what_it_is(line: CallLine) -> None:
    facts = read_facts(line.host.facts())
    assert facts.environment == environment("cpu")
    assert facts.run == run_facts("cpu")
    assert (facts.cores, facts.threads, facts.busy) == (cores(), torch.get_num_threads(), None)


def test_devices_that_are_alike_are_of_one_kind_under_the_numerics_of_who_asks(line: CallLine) -> None:
    one, two = device(line), device(line, "b/cpu")
    gpus = [
        FleetDevice(f"{host}/cuda:{i}", "cuda:0", replace(one.facts, environment=GPU), line)
        for host in "ab"
        for i in (0, 1)
    ]
    fleet = Fleet([one, *gpus, two])
    kinds = fleet.kinds()
    assert [(kind.there, kind.devices) for kind in kinds] == [
        ("cpu", ("a/cpu", "b/cpu")),
        ("cuda:0", ("a/cuda:0", "a/cuda:1", "b/cuda:0", "b/cuda:1")),
    ]
    assert kinds[0].environment.key == environment("cpu").key
    with replace(Numerics.here(), matmul_precision="medium").applied():
        (kind, _) = fleet.kinds()
        assert kind.environment.key == environment("cpu").key
        assert kind.environment.matmul_precision == "medium"


@pytest.mark.parametrize(
    ("differs", "why"),
    [
        ({}, None),
        ({"torch": "2.11.0+cu130"}, "a/cpu is left out: it has torch 2.11.0, and this process "),
        ({"fuseplan": "99.0"}, "a/cpu is left out: it has fuseplan 99.0, and this process "),
        (
            {"busy": "cuda:0 is at work 40% of its time"},
            "a/cpu is left out: others use it (cuda:0 is at work 40% of its time)",
        ),
    ],
)
def test_what_does_not_fit_is_told(line: CallLine, differs: dict[str, str], why: str | None) -> None:
    found = unfit("a/cpu", replace(read_facts(line.host.facts()), **differs))
    assert found is None if why is None else (found or "").startswith(why)


def test_a_build_of_torch_may_be_another(line: CallLine) -> None:
    facts = read_facts(line.host.facts())
    assert unfit("a/cpu", replace(facts, torch=facts.torch.partition("+")[0] + "+cu130")) is None


def test_nothing_is_no_fleet() -> None:
    with pytest.raises(OptionError, match="no device of the cluster can work"):
        Fleet([])


def test_a_host_of_a_gpu_gives_its_workers_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    try:
        DeviceHost("cuda:0")
        assert "OMP_NUM_THREADS" not in os.environ
        assert torch.get_num_threads() == cores()
    finally:
        torch.set_num_threads(threads)
