"""Fuel applies the first fusions of a plan, and bisect finds the one that makes a result wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

import fuseplan
from fuseplan.backend import programs_of
from fuseplan.bisect import bisect
from fuseplan.cli import main
from fuseplan.explain import compiled_by
from fuseplan.graph import Graph
from fuseplan.measure.environment import environment
from fuseplan.options import Fuel
from fuseplan.plan import CarveOuts, Plan
from fuseplan.runtime import regions
from fuseplan.segment import Region, Segmentation
from fuseplan.tuning_db import Places, Store, StoredPlan

OPS = 8


class Planted:
    """ATen, but for regions that hold one operator: what they give is a little too large."""

    name = "planted"

    def __init__(self, wrong: str) -> None:
        self.wrong = wrong

    def compile(self, region: Graph, variant: str = "default") -> Callable[[list[Any]], Sequence[Any]]:
        right = regions.executors()["aten"].compile(region)
        if not any(op.target == self.wrong for op in region.ops):
            return right
        return lambda args: [value * 1.01 for value in right(args)]


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    known = regions.executors

    def plant(wrong: str) -> None:
        monkeypatch.setattr(regions, "executors", lambda: {**known(), "planted": Planted(wrong)})
        regions._live.clear()

    return plant


def chain(x: torch.Tensor) -> torch.Tensor:
    return x.sin().cos().exp().tanh().sigmoid().relu().neg().abs()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.norm(self.linear(x)).tanh() * 3).sum()


def one_region_each(f: Callable[..., Any], *inputs: Any) -> Plan:
    """The plan that gives each op of each graph a region of its own."""
    torch._dynamo.reset()
    compiled = fuseplan.compile(f, plan="aten")
    out = compiled(*inputs)
    if out.requires_grad:
        out.backward()
    (program,) = programs_of(compiled_by(compiled))
    parts = tuple(
        CarveOuts(
            one.role, one.graph.key, Segmentation(tuple(Region((i,), "planted") for i in range(len(one.graph.ops))))
        )
        for one in program.graphs
    )
    return Plan("aten", carve_outs=parts)


@pytest.mark.parametrize("fuel", [0, 3, OPS, 100])
def test_fuel_applies_the_first_fusions(planted: Callable[[str], None], fuel: int) -> None:
    planted("none")
    x = torch.randn(5)
    plan = one_region_each(chain, x)
    torch._dynamo.reset()
    compiled = fuseplan.compile(chain, plan=plan, fuel=fuel)
    torch.testing.assert_close(compiled(x), chain(x))
    (program,) = programs_of(compiled_by(compiled))
    applied = [record.fallback is None for record in program.graphs[0].regions]
    assert applied == [i < fuel for i in range(OPS)]
    assert ("the fuel is spent" in fuseplan.explain(compiled)) == (fuel < OPS)


def test_one_fuel_for_several_programs(planted: Callable[[str], None]) -> None:
    planted("none")
    x = torch.randn(5)
    plan = one_region_each(chain, x)
    torch._dynamo.reset()
    fuel = Fuel(OPS + 2)
    for _ in range(2):
        torch._dynamo.reset()
        fuseplan.compile(chain, plan=plan, fuel=fuel)(x)
    assert [fusion.ops[0] for fusion in fuel.applied] == [*range(OPS), 0, 1]


def test_a_whole_program_is_one_fusion() -> None:
    x = torch.randn(5)
    compiled = fuseplan.compile(chain, plan="inductor", fuel=0)
    assert torch.equal(compiled(x), chain(x))  # to the last bit, since it ran under eager


def mean_of_rows(x: torch.Tensor) -> torch.Tensor:
    return x.mean(0) + 1


def rows_that_vary() -> torch.Tensor:
    x = torch.randn(40, 8)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    return x


def test_without_fuel_no_call_is_padded() -> None:
    """What a mean of zeros behind its rows gives is not what eager gives."""
    x, plan = rows_that_vary(), Plan("aten", padded=(("s0", 33, 64),))
    compiled = fuseplan.compile(mean_of_rows, plan=plan, fuel=0)
    torch.testing.assert_close(compiled(x), mean_of_rows(x))
    (program,) = programs_of(compiled_by(compiled))
    assert program.plan == Plan("aten")
    assert "calls are not padded: the fuel is spent" in fuseplan.explain(compiled, graphs=False)


@pytest.mark.parametrize("host", ["eager", "inductor"])
def test_bisect_finds_that_it_is_the_padding(host: str) -> None:
    plan = Plan(host, padded=(("s0", 33, 64), ("s1", 5, 8)))
    found = bisect(mean_of_rows, [rows_that_vary()], plan=plan, dynamic=True)
    assert found is not None
    total = 1 if host == "eager" else 2
    told = (
        f"padding 1 of {total} makes the result wrong: each call padded from s0=33..64 to 64 s1=5..8 to 8: outputs[0]"
    )
    assert str(found).startswith(told)


@pytest.mark.parametrize(("wrong", "number"), [("sin", 1), ("tanh", 4), ("abs", 8)])
def test_bisect_finds_a_planted_wrong_region(planted: Callable[[str], None], wrong: str, number: int) -> None:
    planted(f"aten.{wrong}.default")
    x = torch.rand(64) + 0.5
    found = bisect(chain, [x], plan=one_region_each(chain, x))
    assert found is not None
    assert (found.number, found.total) == (number, OPS)
    assert found.fusion is not None
    assert (found.fusion.ops, found.fusion.role) == ((number - 1,), "inference")
    assert f"fusion {number} of {OPS} makes the result wrong: planted over ops {number - 1}" in str(found)
    assert f"({wrong})" in str(found)
    assert "outputs[0]" in found.difference


def test_bisect_finds_it_in_the_backward(planted: Callable[[str], None]) -> None:
    planted("aten.tanh_backward.default")
    torch.manual_seed(0)
    model, x = Net(), torch.randn(16, 8)
    plan = one_region_each(model, x)
    backward = plan.carve_outs[1].segmentation
    state = {name: value.clone() for name, value in model.state_dict().items()}
    found = bisect(model, [x], plan=plan)
    assert found is not None
    assert found.fusion is not None
    assert found.fusion.role == "backward"
    assert found.total > len(backward.regions)
    assert found.fusion.graph is not None
    assert [op.target for op in found.fusion.graph.ops] == ["aten.tanh_backward.default"]
    assert "gradients[" in found.difference
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


def test_bisect_finds_nothing_where_nothing_is_wrong(planted: Callable[[str], None]) -> None:
    planted("none")
    x = torch.randn(5)
    assert bisect(chain, [x], plan=one_region_each(chain, x)) is None


def test_a_result_that_is_wrong_without_fusions_blames_none() -> None:
    def counts(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def never(got: Any, eager: Any) -> None:
        raise AssertionError("not like this")

    found = bisect(counts, [torch.ones(2)], check=never, plan="aten")
    assert found is not None
    assert found.fusion is None
    assert str(found) == "the result is wrong without any fusion, so none is to blame: not like this"


def test_a_looser_measure_sees_no_fault(planted: Callable[[str], None]) -> None:
    planted("aten.sin.default")
    x = torch.rand(64) + 0.5
    assert bisect(chain, [x], plan=one_region_each(chain, x), rtol=0.5, atol=0.5) is None


CASE = """
import torch
def case():
    return (lambda x: x.sin() * 2), (torch.ones(3),)
def wrong():
    return torch.ones(3)
def raising():
    raise ValueError("no data\\nanywhere")
def leaving():
    raise SystemExit(0)
def fails(x):
    raise KeyError("weights")
def eager():
    return fails, (torch.ones(3),)
"""


def verb(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["bisect", *arguments])


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to call the verb from, with a case in it."""
    (tmp_path / "case.py").write_text(CASE)
    (tmp_path / "train.py").write_text("import sys\nsys.exit('usage')\n")
    (tmp_path / "typo.py").write_text("print('x'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_the_verb_where_all_is_well(case: Path) -> None:
    (case / "plan.json").write_text(Plan.named("aten").to_json())
    well = verb("case.py:case", "--plan", "plan.json")
    assert (well.exit_code, well.output) == (0, "the result is that of eager\n")
    assert json.loads(verb("case.py:case", "--plan", "aten", "--json").output) is None


def test_the_verb_finds_the_fusion_of_a_stored_plan(
    case: Path, own_database: Path, planted: Callable[[str], None]
) -> None:
    planted("aten.sin.default")
    plan = one_region_each(lambda x: x.sin() * 2, torch.ones(3))
    stored = StoredPlan("ab" * 32, environment("cpu"), plan)
    assert Store(Places(own_database)).add_plan(stored)
    found = verb("case.py:case", "--plan", stored.key[:8])
    assert found.exit_code == 1
    lines = found.output.splitlines()
    assert lines[0].startswith("fusion 1 of 2 makes the result wrong: planted over ops 0 of the inference graph (sin)")
    assert any("aten.sin.default" in line for line in lines[1:])  # and shows it
    told = json.loads(verb("case.py:case", "--plan", stored.key[:8], "--json").output)
    assert (told["number"], told["fusion"]["ops"]) == (1, [0])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["none.py:case"], "there is no Python file 'none.py'"),
        (["case"], "there is no Python file 'case'"),
        (["case.py"], "the function is missing: case.py:FUNCTION"),
        (["case.py:"], "the function is missing: case.py:FUNCTION"),
        (["train.py:case"], "train.py cannot be imported: SystemExit: usage"),
        (["typo.py:case"], "typo.py cannot be imported: SyntaxError: "),
        (["case.py:raising"], "raising of case.py failed: ValueError: no data anywhere"),
        (["case.py:leaving"], "leaving of case.py failed: SystemExit: 0"),
        (["case.py:eager"], "it fails without fuseplan too, run eagerly: KeyError: 'weights'"),
        (["case.py:nobody"], "has no function 'nobody'"),
        (["case.py:wrong"], "must return a model and a tuple of its inputs"),
        (["case.py:case", "--plan", "zz"], "no plan has a key that begins with 'zz'"),
        (["case.py:case", "--rtol", "1"], "come together"),
    ],
)
@pytest.mark.usefixtures("case")
def test_wrong_calls_of_the_verb(arguments: list[str], complaint: str) -> None:
    told = verb(*arguments)
    assert told.exit_code == 2
    assert complaint in told.output
    assert len(told.output.splitlines()) == 1
