"""The benchmark of the judge: faults get in where they say, and no further, and what comes of them is counted right."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.judging import alarms, misses
from benchmarks.judging.faults import FAULTS
from benchmarks.judging.judges import SEEDS, judges
from benchmarks.judging.misses import CALLS, Ground, Target
from benchmarks.judging.planting import OpCall, OpFault, Results, Run, RunFault, differ, effect, faulty
from benchmarks.judging.programs import PROGRAMS
from fuseplan.capture.trace.load import Loaded, load_trace
from fuseplan.tuning.traces import traces_of


def loaded(name: str) -> tuple[Loaded, dict[int, Results]]:
    program = load_trace(Target(name, "float32").trace(), "cpu")
    return program, {seed: program.run(seed=seed) for seed in SEEDS}


def planted(name: str, among: Collection[str] = FAULTS) -> set[str]:
    """The faults that change anything of a program."""
    program, right = loaded(name)
    found = set()
    for fault in map(FAULTS.__getitem__, among):
        try:
            runs = faulty(program, fault, CALLS, right)
        except IndexError:  # what is looked up at a wrong place may not be there
            continue
        if runs is not None and any(differ(one, right[seed]) for one, seed in zip(runs, CALLS, strict=True)):
            found.add(fault.name)
    return found


def test_faults_get_in_where_they_have_a_place() -> None:
    found = planted("averages")
    assert {
        "buffer not updated",
        "one buffer forgotten",
        "stale buffer at the second call",
        "root of twelve bits",
    } <= found
    assert not any("gradient" in name or "softmax" in name for name in found)
    assert "alias lost" in planted("aliases")
    assert {"NaN for infinity", "zero for NaN", "clamp left out"} <= planted("specials")


@pytest.mark.slow
def test_every_fault_has_a_place() -> None:
    left = set(FAULTS)
    for name in PROGRAMS:
        if left and name not in alarms.ENTRIES:
            left -= planted(name, left)
    assert left == set()


def test_programs_run_as_they_should_with_no_fault() -> None:
    """The same runs, again: what is different under a fault is the fault's."""
    program, right = loaded("dropouts")
    nothing = OpFault("nothing", ("bernoulli_", "addmm"), OpCall.right, everywhere=True)
    runs = faulty(program, nothing, CALLS, right)
    assert runs is not None
    assert not any(differ(one, right[seed]) for one, seed in zip(runs, CALLS, strict=True))


def chain(x: Tensor) -> Tensor:
    return (((x.exp() * 2).exp() * 2).exp() * 2).sum()


def test_one_call_goes_wrong_of_those_that_fit() -> None:
    """The middle one: of three the second; inputs and what backward starts from are made by others."""
    (trace,) = traces_of(chain, torch.randn(4, requires_grad=True))
    program = load_trace(trace, "cpu")
    seen: list[int] = []

    def zero(call: OpCall) -> Tensor:
        seen.append(1)
        return torch.zeros_like(call.args[0])

    right = {seed: program.run(seed=seed) for seed in SEEDS}
    once = faulty(program, OpFault("zero", ("exp",), zero), SEEDS, right)
    assert (once is not None, len(seen)) == (True, 2)
    everywhere = faulty(program, OpFault("zero", ("exp",), zero, everywhere=True), SEEDS, right)
    assert (everywhere is not None, len(seen)) == (True, 8)
    assert faulty(program, OpFault("none", ("tanh",), zero), SEEDS, right) is None


def test_runs_differ_in_bits_layouts_and_aliases() -> None:
    x = torch.randn(4, 6)
    mine: Results = {"output 0": x, "output 1": x[1:]}
    assert not differ(mine, {"output 0": x, "output 1": x[1:]})
    assert differ(mine, {"output 0": x, "output 1": x[1:].clone()})
    assert differ({"y": x}, {"y": x.t().contiguous().t()})
    assert differ({"y": x}, {"y": torch.nextafter(x, x + 1)})
    assert differ({"y": torch.tensor([float("nan")])}, {"y": torch.tensor([0.0])})
    assert not differ({"y": torch.tensor([float("nan")])}, {"y": torch.tensor([float("nan")])})


def test_what_scales_rounding_is_no_fault() -> None:
    """The gradient of a bias before a norm is nothing but rounding: a factor of it moves nothing."""
    exact = torch.full((4,), 1e-17, dtype=torch.float64)
    noise = {"gradient": torch.full((4,), 1e-8)}
    assert effect({"gradient": 2 * exact}, {"gradient": exact}, noise) < misses.NOTHING
    assert effect({"gradient": 2 * exact}, {"gradient": exact}, {"gradient": exact}) == 1.0
    assert effect({"y": torch.tensor([float("nan")])}, {"y": torch.ones(1)}, {}) == float("inf")


@pytest.fixture(scope="module")
def ground() -> tuple[Ground, dict[str, Any]]:
    made = Ground.of(Target("norms", "float32").trace())
    return made, {name: judge(made.loaded, SEEDS) for name, judge in judges().items()}


@pytest.mark.parametrize("name", [
    "eps ten times as large", "relu left out", "bias left out", "one gradient scaled by 1.01", "last tile left out",
    "stale input at the second call", "one gradient missing", "layer norm not centred",
])  # fmt: skip
def test_faults_in_float32_are_caught(ground: tuple[Ground, dict[str, Any]], name: str) -> None:
    made, expectations = ground
    found = misses.attempt(made, FAULTS[name], expectations)
    assert found is not None
    assert all(found[judge]["caught"] for judge in expectations), found


def test_what_is_right_is_not_caught(ground: tuple[Ground, dict[str, Any]]) -> None:
    made, expectations = ground
    for expectation in expectations.values():
        assert misses.said(expectation, [made.right[seed] for seed in SEEDS])["problem"] is None


def test_what_is_missed_says_how_far_off_it_was(ground: tuple[Ground, dict[str, Any]]) -> None:
    made, expectations = ground

    def by_a_little(run: Run) -> Results:
        return {**run.results, "output 0": run.results["output 0"] * (1 + 2e-7)}

    found = misses.attempt(made, RunFault("a unit in the last place", by_a_little), expectations)
    assert found is not None
    assert found["effect"] == pytest.approx(2e-7, rel=0.5)
    assert not found["expect"]["caught"]
    assert 0 < found["expect"]["ratio"] < 100
    assert found["expect"]["of"].startswith(("output 0", "gradient"))


def test_what_all_rows_come_to() -> None:
    caught, missed = (
        {"caught": True, "problem": "off"},
        {"caught": False, "problem": None, "ratio": 1.5, "of": "y, rms"},
    )
    faults = {"a": {"effect": 1.0, "expect": caught}, "b": {"effect": 0.1, "expect": missed}, "c": {"effect": 1e-12}}
    found = misses.results_of({"norms float32": {"right": {"expect": None}, "faults": faults}})["summary"]
    assert found["expect"]["float32"] == {
        "pairs": 2, "caught": 1, "share": 0.5, "largest ratio of what is missed": 1.5, "missed": {"norms: b": 1.5},
    }  # fmt: skip
    assert found["right called wrong"] == {"expect": {}}
    sides = {
        "torch.compile": {"expect": {"problem": "off", "share": 1.2}},
        "aten": {"expect": {"problem": None, "share": 0.1}},
    }
    row = {"sides": sides, "seconds": {"expect": 3.0, "today": 2.0}}
    summary = alarms.results_of({"bert training float32": row})["summary"]
    assert summary["called wrong"] == {"bert training float32": {"expect": {"torch.compile": "off"}}}
    assert summary["seconds over today's, median"] == 1.5


def test_configurations_are_enough_and_of_all_kinds() -> None:
    shown = [alarms.every()[name] for name in alarms.shown()]
    assert len(set(alarms.shown())) == len(shown) >= 80
    kinds = {(one.train, one.dtype) for one in shown}
    assert len(kinds) == 6
    assert len(FAULTS) >= 40
    assert len(PROGRAMS) >= 20
