"""Tuning on a Ray cluster, a real one of two nodes on this machine, whose workers answer with replayed times."""

from __future__ import annotations

import os
import platform
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fuseplan
from cpu.test_tune_killed import measurements, query, twice
from fuseplan.errors import ExecutorError, OptionError
from fuseplan.fleet import on_ray as module
from fuseplan.fleet.fleet import Fleet
from fuseplan.fleet.host import DeviceHost
from fuseplan.fleet.on_ray import RayLine, on_ray
from fuseplan.measure.pool import Workers
from fuseplan.tune import agenda, tune
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program.services import Pool
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.traces import traces_of
from ray_hosts import CAPTURED, FACTS, JOB_S, QuickHost, keep_captured, quick
from replaying import captured

ray = pytest.importorskip("ray")
TESTS = Path(__file__).parents[1]
NODES = 2


class Mixer(nn.Module):
    """No two of different width have a region in common: which of them is tuned first is nothing to the others."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = nn.functional.gelu(layer(x) * 2).sin() + x
        return x


@dataclass
class Nodes:
    """A cluster, and the programs that are tuned on it."""

    cluster: Any
    folder: Path

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    @property
    def traces(self) -> Path:
        return self.folder / "traces"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    from ray.cluster_utils import Cluster

    folder = tmp_path_factory.mktemp("ray")
    (folder / "traces").mkdir()
    (folder / "captured").mkdir()
    (folder / "facts.json").write_text(DeviceHost("cpu").facts())
    with torch.no_grad():
        for layers in (1, 2, 3, 4, 5):
            width = 8 * layers
            (trace,) = traces_of(Mixer(layers, width), torch.randn(4, width), name=f"{layers} layers")
            (folder / "traces" / f"{layers}.json").write_text(trace.to_json())
            keep_captured(folder / "captured", trace.key, captured(trace.to_json()))
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    added = {
        "PYTHONPATH": paths,
        CAPTURED: str(folder / "captured"),
        FACTS: str(folder / "facts.json"),
        JOB_S: "0.01",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in added.items():
            patch.setenv(name, value)
        size = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
        cluster = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
        for _ in range(NODES - 1):
            cluster.add_node(**size)
        yield Nodes(cluster, folder)
        ray.shutdown()
        cluster.shutdown()


@contextmanager
def _here(device: str, effort: Effort) -> Iterator[Pool]:
    with Workers(device, process=quick) as workers:
        yield workers


@pytest.fixture(scope="module")
def alone(nodes: Nodes) -> Path:
    """What one machine finds."""
    path = nodes.folder / "alone.sqlite3"
    found = tune(nodes.traces, db=path, workers=_here, progress=Silent(), model="roofline")
    assert {one.status for one in found} <= {"tuned", "default"}
    return path


def plans(path: Path) -> list[tuple[object, ...]]:
    """The plan of each program, byte for byte. Its evidence hangs on which programs were tuned before it."""
    sql = "SELECT program.key, plan.key, plan.json, plan.status, plan.wall_us FROM plan JOIN program ON program.id = program_id"
    return sorted(query(path, sql))  # type: ignore[type-var]


@pytest.fixture(scope="class")
def fleet(nodes: Nodes) -> Iterator[Fleet]:
    told: list[str] = []
    with on_ray(("cpu",), nodes.address, host=QuickHost, told=told.append) as found:
        assert told == []
        yield found


class TestAFleet:
    def test_it_finds_what_one_machine_finds(self, fleet: Fleet, nodes: Nodes, alone: Path, tmp_path: Path) -> None:
        (kind,) = fleet.kinds()
        assert len(kind.devices) == NODES
        assert all(name.endswith("/cpu") for name in kind.devices)
        todo = agenda(nodes.traces, on=fleet, db=alone)
        assert [item.known is not None for item in todo.items] == [True] * 5  # one environment, one plan
        path = tmp_path / "a.sqlite3"
        found = tune(nodes.traces, db=path, on=fleet, progress=Silent(), model="roofline")
        assert len(found) == 5
        assert plans(path) == plans(alone)
        assert twice(path) == []
        assert set(measurements(path)) == set(measurements(alone))
        assert query(path, "SELECT DISTINCT state, host FROM run") == [("finished", platform.node())]

    def test_a_device_that_others_have_is_left_out(
        self, fleet: Fleet, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "START_S", 3.0)
        with (
            pytest.warns(UserWarning, match="is left out") as told,
            pytest.raises(ExecutorError, match="no device of the cluster can work"),
            on_ray(("cpu",), nodes.address, host=QuickHost),
        ):
            raise AssertionError
        why = [str(one.message).partition(" is left out: ")[2] for one in told if one.category is UserWarning]
        assert why == ["it was not free within 3 s"] * NODES

    def test_what_a_cluster_does_not_have_is_said_in_one_line(self, fleet: Fleet, nodes: Nodes) -> None:
        with pytest.raises(OptionError, match="no device of type cuda"):
            agenda(nodes.traces, on=fleet, device="cuda")

    def test_what_a_dead_actor_was_at_is_done_elsewhere(
        self, fleet: Fleet, nodes: Nodes, alone: Path, tmp_path: Path
    ) -> None:
        path = tmp_path / "a.sqlite3"
        first = next(iter(fleet.devices.values()))
        pid = first.line.call("pid")
        killer = threading.Timer(0.5, os.kill, (pid, signal.SIGKILL))
        killer.start()
        with pytest.warns(UserWarning, match=f"{first.name} is lost, and what it was at is done elsewhere"):
            found = tune(nodes.traces, db=path, on=fleet, progress=Silent(), model="roofline")
        killer.join()
        with pytest.raises(ExecutorError, match=f"{first.name} is lost"):
            first.line.call("beat")
        assert len(found) == 5
        assert plans(path) == plans(alone)
        assert twice(path) == []
        assert set(measurements(path)) == set(measurements(alone))

    def test_an_actor_that_hangs_is_given_up(self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "BEAT_S", 0.2)
        monkeypatch.setattr(module, "LEASE_S", 1.0)
        *_, one = fleet.devices.values()
        os.kill(one.line.call("pid"), signal.SIGSTOP)
        with pytest.raises(ExecutorError, match="is lost: it did not answer"):
            one.line.call("pid")


@pytest.mark.exhaustive  # to the fleet a node that is gone is its actor that is gone, of which the case above has one
def test_what_a_node_was_at_that_is_gone_is_done_elsewhere(nodes: Nodes, alone: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite3"
    added = nodes.cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
    with on_ray(("cpu",), nodes.address, host=QuickHost) as fleet:
        assert len(fleet.devices) == NODES + 1
        remover = threading.Timer(0.5, nodes.cluster.remove_node, (added,))
        remover.start()
        found = tune(nodes.traces, db=path, on=fleet, progress=Silent(), model="roofline")
        remover.join()
    assert len(found) == 5
    assert plans(path) == plans(alone)
    assert set(measurements(path)) == set(measurements(alone))


def test_where_all_are_gone_that_is_said_in_one_line_and_the_next_run_goes_on(
    nodes: Nodes, alone: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.sqlite3"
    with on_ray(("cpu",), nodes.address, host=QuickHost) as fleet:
        pids = [one.line.call("pid") for one in fleet.devices.values()]
        killer = threading.Timer(0.5, lambda: [os.kill(pid, signal.SIGKILL) for pid in pids])
        killer.start()
        with pytest.raises(ExecutorError, match="is lost: "):
            tune(nodes.traces, db=path, on=fleet, progress=Silent(), model="roofline")
    before = set(measurements(path))
    with on_ray(("cpu",), nodes.address, host=QuickHost) as fleet:
        tune(nodes.traces, db=path, on=fleet, progress=Silent(), model="roofline")
    assert before <= set(measurements(path))
    assert plans(path) == plans(alone)
    assert twice(path) == []


@pytest.mark.parametrize("kills", [1, pytest.param(50, marks=[pytest.mark.exhaustive, pytest.mark.timeout(1800)])])
def test_a_driver_that_is_killed_loses_nothing_that_was_kept(
    kills: int, nodes: Nodes, alone: Path, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw, path = random.Random(seed), nodes.folder / "driven.sqlite3"
    kept: set[object] = set()
    finished = 0
    while kills:
        driver = started(nodes)
        try:
            driver.wait(draw.uniform(0.05, 1.5))
            finished += 1
            assert plans(path) == plans(alone)
            path.unlink()
            kept = set()
        except subprocess.TimeoutExpired:
            driver.kill()
            driver.wait()
            kills -= 1
            now = measured_so_far(path)
            assert kept <= now
            kept = now
    assert started(nodes).wait(120) == 0
    assert plans(path) == plans(alone)
    assert twice(path) == []
    assert set(measurements(path)) == set(measurements(alone))
    path.unlink()


def measured_so_far(path: Path) -> set[object]:
    """What a driver has acknowledged that was killed, which may have been before its database had a table."""
    try:
        return set(measurements(path)) if path.exists() else set()
    except sqlite3.OperationalError as error:
        if not str(error).startswith("no such table"):
            raise
        return set()


def started(nodes: Nodes) -> subprocess.Popen[str]:
    """A driver that has its actors."""
    driver = subprocess.Popen(
        [sys.executable, str(TESTS / "ray_driver.py"), str(nodes.folder), nodes.address],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == "ready\n"
    return driver


def test_a_device_that_does_not_fit_is_left_out_with_the_reason(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuseplan.fleet.fleet.__version__", "99.0")
    told: list[str] = []
    with pytest.raises(ExecutorError, match="no device of the cluster can work"):  # noqa: SIM117
        with on_ray(("cpu",), nodes.address, host=QuickHost, told=told.append):
            raise AssertionError
    assert len(told) == NODES
    assert "is left out: it has fuseplan " in told[0]


def test_a_device_whose_fuseplan_says_what_this_one_does_not_know_is_left_out() -> None:
    class Answered:
        exceptions = ray.exceptions

        @staticmethod
        def get(asked: str, timeout: float) -> str:
            return asked

    newer = DeviceHost("cpu").facts().replace('"cores":', '"sockets":2,"cores":')
    told: list[str] = []
    actor = module._Actor("a/cpu", "cpu", RayLine(ray, None, "a/cpu"), newer)
    assert module._ready(Answered, [actor], [], told.append) == []
    assert told == [f"a/cpu is left out: it has another fuseplan than this process, {fuseplan.__version__}"]


def test_words_that_mean_no_cluster(nodes: Nodes) -> None:
    with pytest.raises(OptionError, match="programs are tuned here, or on ray, not on 'slurm'"):
        tune(nodes.traces, on="slurm")
    with pytest.raises(OptionError, match="of devices of a cluster the type is named"):
        tune(nodes.traces, on="ray", device="cuda:0")


def test_an_address_where_nobody_answers_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(OptionError, match=r"there is no Ray cluster at 127.0.0.1:9: .*refused"):
        tune([], on="ray")


def test_who_has_no_ray_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionError, match=r"pip install 'fuseplan\[ray\]'"):
        tune([], on="ray")


def test_a_line_that_was_ended_says_so() -> None:
    line = RayLine(ray, None, "a/cpu")
    line.end()
    with pytest.raises(ExecutorError, match="a/cpu is lost: it was ended"):
        line.call("beat")
    line.tell("end")
    assert not ray.is_initialized(), "Ray starts a cluster for whoever asks it anything"
