"""Carve-outs that tuning finds: by a profile of the program, and by what was measured for others on the same ops."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fuseplan
import toy_executor
from fuseplan.executors import known, register
from fuseplan.explain import explained
from fuseplan.graph import Graph
from fuseplan.measure.jobs import Outcome, RacePlans, VetPlan
from fuseplan.measure.profile import KernelTime
from fuseplan.models import Machine
from fuseplan.plan import Plan
from fuseplan.segment import is_anchor
from fuseplan.solver.costs import Runner
from fuseplan.tune import tune
from fuseplan.tuning.effort import QUICK
from fuseplan.tuning.program import carve, profile
from fuseplan.tuning.program.carvable import GroupParts
from fuseplan.tuning.program.gaps import Grouped
from replaying import ProfilingPool, ReplayingPool, joint

SLOW = {"eager": 9000.0, "inductor": 9000.0}


class Pool(ProfilingPool):
    """One on whose machine all that is cut up is slower than what is compiled as one."""

    def _us(self, name: str, subject: str, scale: float = 10.0) -> float:
        return 8000.0 if name.startswith("cut ") else super()._us(name, subject, scale)

    def raced_plans(self, job: RacePlans) -> Outcome:
        """What is carved up takes what it was predicted to."""
        self.times = {**self.times, **{one.name: one.predicted_us for one in job.entries if "carved" in one.name}}
        return super().raced_plans(job)


class Waves(nn.Module):
    """Two equal layers with what the toy runs between matmuls."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.last):
            x = layer(x).sin().cos().relu()
        return x


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "_registered", {})
    toy_executor.calls.clear()
    register(toy_executor.TOY)
    monkeypatch.setattr(profile, "FULL", QUICK)  # as on a GPU


def tuned(
    pool: ReplayingPool, train: bool = False, module: nn.Module | None = None, x: Tensor | None = None
) -> tuple[Any, Any]:
    """What tuning says of the program, and its trace."""

    @contextmanager
    def workers(*_: Any) -> Iterator[ReplayingPool]:
        yield pool

    given = torch.randn(16, 16, requires_grad=train) if x is None else x
    with torch.set_grad_enabled(train):
        (trace,) = fuseplan.traces_of(module or Waves(), given, name="waves")
    torch._dynamo.reset()
    (found,) = tune(trace, effort="quick", workers=workers)
    return found, trace


def carved(pool: Pool) -> list[str]:
    """The plans with carve-outs that were tried."""
    return [job.entry.name for job in pool.jobs if isinstance(job, VetPlan) and "carved" in job.entry.name]


@pytest.mark.parametrize("train", [False, True])
def test_what_others_do_better_is_carved_out(own_database: Path, train: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuseplan.lookup.missing_compiler", lambda *_: None)
    found, trace = tuned(pool := Pool(times={**SLOW, "toy": 0.5}), train)
    assert train is (not any(job.entry.name.startswith("cut ") for job in pool.jobs if isinstance(job, VetPlan)))
    assert found.winner.startswith("inductor, carved"), found.winner
    assert found.plan.host == "inductor"
    ((role, graph, _),) = joint(trace.to_json())
    (part,) = found.plan.carve_outs
    assert (part.role, part.graph) == (role, graph.key)
    assert {region.executor for region in part.segmentation.regions} == {"toy"}
    named = [[graph.ops[i].target.split(".")[1] for i in one.ops] for one in part.segmentation.regions]
    assert named.count(["sin", "cos", "relu"]) == 2
    assert train is (len(named) > 2)  # the gradients of sines are cosines
    (move,) = (one for one in found.moves if len(one.ops) == 3)
    assert (move.times, move.executor, move.role) == (2, "toy", role)
    assert move.change_us == pytest.approx(-100 + 0.5, abs=0.1)

    text = fuseplan.explain(trace.key)
    assert "carved out of what torch.compile makes of it, by the ops of its uncut graph:" in text
    assert f"{role}: 2 × {move.change_us:+.1f} µs: run op" in text
    assert "above what these ops could take" in "".join(one.gaps() for one in explained(trace.key))

    torch._dynamo.reset()
    net, x = Waves(), torch.randn(16, 16, requires_grad=train)
    with torch.set_grad_enabled(train):
        out = torch.compile(net, backend="fuseplan")(x)
        torch.testing.assert_close(out, net(x))
    assert toy_executor.calls.count(3) == 2
    if train:
        (given,) = torch.autograd.grad(out.sum(), x)
        torch.testing.assert_close(given, torch.autograd.grad(net(x).sum(), x)[0])


def test_where_little_is_left_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """All kernels together leave what others could take over, but less than two percent of a step."""
    notes: list[str] = []
    monkeypatch.setattr(carve, "CLOSABLE", 1.1)
    monkeypatch.setattr("fuseplan.tuning.program.services.Services.note", lambda self, text: notes.append(text))
    tuned(pool := Pool(times={**SLOW, "toy": 0.5}), train=True)
    assert carved(pool) == []
    assert not any(choice == "toy" for _, choice in pool.measured)
    (note,) = (one for one in notes if one.startswith("nothing is carved out"))
    assert re.fullmatch(r"nothing is carved out: what others could do better is \d+\.\d% of a step at most", note)


def test_what_is_one_move_away_may_be_better(own_database: Path) -> None:
    """All that an executor takes is faster there than under the host, and without one op it is faster still."""

    class Fan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(512, 512, bias=False)

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            waves = self.first(x).sin()
            return waves.cos(), waves.relu(), waves.neg()

    class Apart(Pool):
        def _us(self, name: str, subject: str, scale: float = 10.0) -> float:
            return 90_000.0 if name in SLOW or name.startswith("cut ") else super()._us(name, subject, scale)

        def _region_us(self, region: Graph, choice: tuple[str, str]) -> float:
            if choice[0] != "toy":
                return super()._region_us(region, choice)
            return 8000.0 if "aten.relu.default" in [op.target for op in region.ops] else 100.0

    found, trace = tuned(
        pool := Apart(times=SLOW, kernel_us=10_000.0),
        module=Fan(),
        x=torch.randn(512, 512),
    )
    ((_, graph, _),) = joint(trace.to_json())
    regions = [
        [graph.ops[i].target.split(".")[1] for i in region.ops]
        for part in found.plan.carve_outs
        for region in part.segmentation.regions
    ]
    assert found.winner.startswith("inductor, carved"), (found.winner, carved(pool))
    assert regions == [["sin", "cos", "neg"]]


def test_equal_regions_are_measured_once_and_as_the_host_has_them() -> None:
    pool = Pool(times={**SLOW, "toy": 0.5})
    tuned(pool)
    toys = [key for key, choice in pool.measured if choice == "toy"]
    assert len(toys) == len(set(toys))
    assert {key for key, choice in pool.measured if choice == "inductor"} >= set(toys[:1])


def test_views_within_a_kernel_go_with_it() -> None:
    (trace,) = fuseplan.traces_of(lambda x: (x @ x).sin().view(4, 64).cos().relu(), torch.randn(16, 16), name="viewed")
    ((_, graph, parts),) = joint(trace.to_json())
    ops = tuple(i for i, op in enumerate(graph.ops) if not is_anchor(op))
    looked = GroupParts(Grouped(graph, [KernelTime("inference", "k", 9.0, ops)], Machine.guess("NVIDIA H200")), parts)
    ((group,),) = looked.alike(0.0)
    taking = Runner("toy", (True,) * len(graph.ops), lambda region: None, lambda region: ("default",))
    assert [ops for ops, _ in looked.parts(group, [taking])] == [tuple(range(len(ops)))]


def test_a_plan_without_what_is_preferred_of_rewrites_is_kept(own_database: Path) -> None:
    """It is of other graphs than those that are cut."""

    class Attending(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            weights = (x @ x.transpose(-2, -1) / 4).softmax(-1)
            return (weights @ x).sin().cos()

    class Wrong(Pool):
        def vetted_plan(self, job: VetPlan) -> Any:
            plan = job.entry.plan
            self.bad = {job.entry.name: "wrong"} if plan.host == "inductor" and plan.rewrites else {}
            return super().vetted_plan(job)

    found, trace = tuned(pool := Wrong(times={**SLOW, "toy": 0.5}), module=Attending(), x=torch.randn(2, 4, 8, 16))
    assert carved(pool) != []
    assert found.winner == carved(pool)[0]
    (told,) = explained(trace.key)
    assert told.stored is not None
    assert [one.executor for one in told.stored.evidence.regions] == ["toy"]


def test_what_is_slower_stays_the_host_s(own_database: Path) -> None:
    found, _ = tuned(pool := Pool(times={**SLOW, "inductor": 1.0, "toy": 50.0}))
    assert carved(pool) == []
    assert found.plan == Plan("inductor")


def test_a_region_that_is_faster_in_a_cache_alone_saves_nothing(own_database: Path) -> None:
    """Inductor by itself takes as little as the toy: what it takes longer in the program, the toy would, too."""
    times = {"eager": 9000.0, "toy": 1.0, "inductor": 1.0}
    tuned(pool := Pool(times=times))
    assert carved(pool) == []


def test_what_cannot_be_profiled_is_tuned_all_the_same(own_database: Path) -> None:
    class Unseen(Pool):
        def profiled(self, job: Any) -> Any:
            return super(ProfilingPool, self).profiled(job)

    found, trace = tuned(pool := Unseen(times={**SLOW, "toy": 0.5}))
    assert carved(pool) == []
    assert found.plan is not None
    (told,) = explained(trace.key)
    assert "nobody has looked" in told.gaps()
