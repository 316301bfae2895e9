"""A program finds its plan in the tuning database when it is compiled, and says why when it finds none."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._functorch import config as functorch
from torch.nn.attention import SDPBackend, sdpa_kernel

import fuseplan
from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by
from fuseplan.measure.environment import environment
from fuseplan.plan import CarveOuts, Plan
from fuseplan.runtime import Program
from fuseplan.runtime.settings import set_otherwise
from fuseplan.segment import Region, Segmentation
from fuseplan.tuning_db import Box, Places, Store, StoredPlan

ATEN = Plan.named("aten")
TUNE = import_module("fuseplan.tune")  # by name: `fuseplan.tune` is the function


def chain(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).relu() + 1


def two_sizes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * 2).sum(0) + y.sum()


@pytest.fixture(autouse=True)
def without_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is eager: which plan is chosen does not depend on it, and compiling takes seconds."""
    monkeypatch.setattr("fuseplan.lookup.missing_compiler", lambda *_: "no compiler in this test")


def programs(compiled: Callable[..., Any]) -> list[Program]:
    return programs_of(compiled_by(compiled))


def run(*inputs: Any, f: Callable[..., Any] = chain, **options: Any) -> Program:
    """The program that comes of compiling `f` anew and calling it once; its result is checked."""
    torch._dynamo.reset()
    compiled = fuseplan.compile(f, **options)
    given = inputs or (torch.randn(4, 8),)
    torch.testing.assert_close(compiled(*given), f(*given))
    (program,) = programs(compiled)
    return program


def stored(key: str | None, plan: Plan = ATEN, **fields: Any) -> StoredPlan:
    assert key is not None
    return StoredPlan(key, environment("cpu"), plan, **{"wall_us": 10.0, **fields})


def keep(path: Path, *plans: StoredPlan) -> Store:
    store = Store(Places(path))
    assert all(store.add_plan(plan) for plan in plans)
    return store


def test_a_stored_plan_is_run_and_told_of(own_database: Path) -> None:
    missed = run()
    assert missed.plan == Plan.named("eager")
    assert missed.why.startswith("no plan is stored for program ")
    plan = stored(missed.key, best_default="inductor", best_default_us=15.0)
    keep(own_database, plan)
    before = fuseplan.stats().get("plan hits", 0)
    hit = run()
    assert hit.plan == ATEN
    assert hit.why == f"tuned plan {plan.key[:12]} of the user database, 10.0 µs where inductor took 15.0 µs"
    assert len(hit.graphs) == 1
    assert fuseplan.stats()["plan hits"] == before + 1
    assert run(plan="eager").why == "asked for by option"


@pytest.mark.parametrize(
    ("fields", "options", "reason"),
    [
        ({"status": "unverified"}, {}, "is unverified"),
        ({"status": "quarantined", "detail": "wrong result"}, {}, "failed here: wrong result"),
        ({"word": "disabled"}, {}, "was disabled by hand"),
        ({}, {"launch": "cudagraph"}, "other launch plain -> cudagraph"),
    ],
)
def test_a_miss_says_why(own_database: Path, fields: dict[str, Any], options: dict[str, Any], reason: str) -> None:
    key = run().key
    keep(own_database, stored(key, **fields))
    program = run(**options)
    assert program.plan == Plan.named("eager")
    assert reason in program.why


def test_a_plan_of_another_torch_is_not_run(own_database: Path) -> None:
    plan = stored(run().key)
    keep(own_database, replace(plan, environment=replace(plan.environment, torch="1.0")))
    assert run().why.startswith(f"other torch 1.0 -> {torch.__version__}")


def test_who_asks_gets_an_unverified_plan_from_another_file(tmp_path: Path, own_database: Path) -> None:
    other = tmp_path / "other.db"
    keep(other, stored(run().key, status="unverified"))
    assert run(db=other, unverified=True).plan == ATEN
    assert run(db=str(other)).plan != ATEN
    assert run(unverified=True).plan != ATEN
    assert not own_database.exists()  # a look-up makes no file


def test_a_miss_looks_at_no_machine_and_traces_nothing(own_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError

    keep(own_database, stored("ab" * 32))
    monkeypatch.setattr("fuseplan.measure.environment.environment", never)
    monkeypatch.setattr("fuseplan.runtime.aten_host.capture_fx", never)
    assert run().plan == Plan.named("eager")


ELSEWHERE = """
import sys
import torch
import fuseplan
from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by

torch.set_num_threads(1)
def renamed(tensor):
    doubled = tensor * 2
    return doubled.relu() + 1

compiled = fuseplan.compile(renamed)
compiled(torch.randn(4, 8))
(program,) = programs_of(compiled_by(compiled))
print(program.why)
"""


def test_another_file_folder_and_home_find_the_same_plan(own_database: Path, tmp_path: Path) -> None:
    plan = stored(run().key)
    keep(own_database, plan)
    script = tmp_path / "another.py"
    script.write_text(ELSEWHERE)
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH", "VIRTUAL_ENV")}
    elsewhere = {**kept, "HOME": str(tmp_path), "FUSEPLAN_DB": str(own_database), "SOMETHING": "else"}
    command = [sys.executable, str(script)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=elsewhere)
    assert shown.stdout == f"tuned plan {plan.key[:12]} of the user database, 10.0 µs\n", shown.stderr


def test_stores_are_opened_once(own_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    monkeypatch.setattr("fuseplan.lookup.Store", lambda where: opened.append(where.user) or Store(where))
    for _ in range(3):
        run()
    assert opened == [own_database]


@pytest.mark.parametrize(
    ("region", "complaint"),
    [
        (Region((0, 99), "inductor"), "names op 99, but the graph has 3"),
        (Region((0, 2), "inductor"), "would wait for itself"),
        (Region((0, 1), "nobody"), "there is no executor 'nobody'"),
        (None, "the plan was made for inference graph 121212121212"),
    ],
)
def test_a_plan_that_does_not_fit_is_quarantined_and_the_default_runs(
    own_database: Path, region: Region | None, complaint: str
) -> None:
    first = run(plan="aten")
    graph = first.graphs[0].graph.key if region is not None else "12" * 32
    cut = Segmentation((region,) if region is not None else ())
    bad = stored(first.key, Plan("aten", carve_outs=(CarveOuts("inference", graph, cut),)))
    store = keep(own_database, bad)
    with pytest.warns(UserWarning, match="It is quarantined") as caught:
        program = run()
    assert sum("quarantined" in str(one.message) for one in caught) == 1
    assert program.plan == Plan.named("eager")
    assert complaint in program.why
    (now,) = store.plans()
    assert (now.status, now.key) == ("quarantined", bad.key)
    assert complaint in now.detail
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert "failed here" in run().why


@pytest.mark.parametrize("attends", [True, False])
def test_a_plan_stays_where_it_does_not_fit_what_attention_is_kept_from(own_database: Path, *, attends: bool) -> None:
    """Its graphs may be others for that alone, and fit elsewhere, if there is attention."""

    def attending(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    program, x = attending if attends else chain, torch.randn(2, 4, 8)
    first = run(x, f=program, plan="aten")
    plan = stored(first.key, Plan("aten", carve_outs=(CarveOuts("inference", "12" * 32, Segmentation()),)))
    store = keep(own_database, plan)
    told = "attention by flash and efficient is switched off" if attends else "It is quarantined"
    with sdpa_kernel(SDPBackend.MATH), pytest.warns(UserWarning, match=told):
        found = run(x, f=program)
    assert found.plan == Plan.named("eager")
    assert "the plan was made for inference graph 121212121212" in found.why
    assert (store.plans()[0].status == "quarantined") is not attends


def test_a_plan_stays_where_what_is_kept_for_the_backward_is_set_otherwise(own_database: Path) -> None:
    """Whoever sets a budget of its own has other graphs; all others keep the plan."""
    x = torch.randn(4, 8, requires_grad=True)
    first = run(x, plan="aten")
    store = keep(
        own_database, stored(first.key, Plan("aten", carve_outs=(CarveOuts("forward", "12" * 32, Segmentation()),)))
    )
    told = "does not fit where torch._functorch.config.activation_memory_budget is set"
    with functorch.patch(activation_memory_budget=0.5), pytest.warns(UserWarning, match=told):
        run(x)
    assert [one.status for one in store.plans()] == ["tuned"]
    with pytest.warns(UserWarning, match="It is quarantined"):
        run(x)
    assert [one.status for one in store.plans()] == ["quarantined"]


def test_what_is_not_installed_is_not_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.opt_einsum, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.opt_einsum, "enabled", False)
    assert set_otherwise(has_attention=True) == []


def test_a_backward_that_does_not_fit_runs_without_the_plan(own_database: Path) -> None:
    weights = torch.randn(8, requires_grad=True)

    def loss(w: torch.Tensor) -> torch.Tensor:
        return (w * w).relu().sum()

    first = run(weights, f=loss, plan="aten")
    forward = CarveOuts("forward", first.graphs[0].graph.key, Segmentation())
    bad = stored(first.key, Plan("aten", carve_outs=(forward, CarveOuts("backward", "12" * 32, Segmentation()))))
    store = keep(own_database, bad)
    torch._dynamo.reset()
    compiled = fuseplan.compile(loss)
    with pytest.warns(UserWarning, match="quarantined"):
        compiled(weights).backward()
    torch.testing.assert_close(weights.grad, torch.where(weights != 0, 2 * weights, 0).detach())
    assert store.plans()[0].status == "quarantined"
    (program,) = programs(compiled)
    assert any("the backward graph runs under ATen" in remark for remark in program.remarks)


def test_a_region_that_will_not_compile_here_is_written_down_once(own_database: Path) -> None:
    first = run(plan="aten")
    cut = Segmentation((Region((0, 1), "inductor", "no such variant"),))
    store = keep(
        own_database,
        stored(first.key, Plan("aten", carve_outs=(CarveOuts("inference", first.graphs[0].graph.key, cut),))),
    )
    for _ in range(2):
        with pytest.warns(UserWarning, match="a region of 2 ops runs under ATen"):
            program = run()
    (record,) = program.graphs[0].regions
    assert record.failed is not None
    found = store.find_measurements(record.failed.key, environment("cpu"))
    assert [(one.executor, one.variant, one.status) for one in found] == [  # type: ignore[union-attr]
        ("inductor", "no such variant", record.status)
    ]
    assert store.plans()[0].status == "tuned"


def two_others(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * 3).cos().sum(0).sum() + y


def trained(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What a program is called with that is one program for each box of sizes, as those are that are trained."""
    return torch.randn(size, 8, requires_grad=True), torch.randn(3)


def sized(compiled: Callable[..., Any], *sizes: int) -> list[str]:
    """Under which plans the programs of these calls run, one for each that Dynamo compiled."""
    for size in sizes:
        given = trained(size)
        torch.testing.assert_close(compiled(*given), two_sizes(*given))
    return ["aten" if program.plan == ATEN else "default" for program in programs(compiled)]


@pytest.mark.parametrize("first", [20, 100])
def test_a_plan_of_a_dynamic_program_that_is_trained_holds_in_its_box(own_database: Path, first: int) -> None:
    key = run(*trained(9), f=two_sizes, dynamic=True).key
    keep(own_database, stored(key, sizes=Box.of({"s0": (16, 64)})))
    torch._dynamo.reset()
    compiled = fuseplan.compile(two_sizes, dynamic=True)
    inside, outside = sorted([16, 20, 64]), [65, 100, 1000]
    order = [first, *(inside if first == 20 else outside), *(outside if first == 20 else inside), 20, 100]
    assert sorted(sized(compiled, *order)) == ["aten", "default"]
    assert sized(compiled, 15, 8, 16, 20, 65).count("aten") == 1  # below the box is a third program, and no fourth
    assert len(programs(compiled)) == 3
    whys = {program.why.split(";")[0] for program in programs(compiled) if program.plan != ATEN}
    assert any("outside the tuned sizes: s0 = " in why for why in whys)


def test_boxes_leave_the_last_program_that_dynamo_compiles_to_all_sizes(own_database: Path) -> None:
    """Beyond its limit it would run eagerly."""
    key = run(*trained(9), f=two_sizes, dynamic=True).key
    for high in (4, 8, 16, 32, 64):
        keep(own_database, stored(key, sizes=Box.of({"s0": (high // 2 + 1, high)})))
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=3):
        compiled = fuseplan.compile(two_sizes, dynamic=True)
        assert sized(compiled, 4, 7, 15, 31, 60, 3, 8, 100) == ["aten", "aten", "default"]
        with torch.compiler.set_stance("fail_on_recompile"):
            sized(compiled, 20, 50, 1000)
    assert "has to do for all sizes" in programs(compiled)[-1].why
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=1):  # of a program that nobody knows, the reason is that
        assert "no plan is stored" in run(*trained(9), f=two_others, dynamic=True).why


def test_boxes_leave_some_compilations_to_what_else_is_asked_of_a_function(own_database: Path) -> None:
    """To be evaluated, or to compute in another dtype: it is compiled for that, too, though many sizes came before."""
    key = run(*trained(9), f=two_sizes, dynamic=True).key
    boxes = [Box.of({"s0": (high // 2 + 1, high)}) for high in (4, 8, 16, 32, 64, 128, 256, 512)]
    for box in boxes:
        keep(own_database, stored(key, sizes=box))
    torch._dynamo.reset()
    compiled = fuseplan.compile(two_sizes, dynamic=True)
    assert sized(compiled, 4, 7, 15, 31, 60, 100, 200, 500) == ["aten"] * 5 + ["default"]
    x, y = torch.randn(40, 8), torch.randn(3)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, y), two_sizes(x, y))
    torch.testing.assert_close(compiled(x.double(), y.double()), two_sizes(x.double(), y.double()))
    assert len(programs(compiled)) == torch._dynamo.config.recompile_limit


def test_of_a_default_that_won_its_time_is_told_once(own_database: Path) -> None:
    eager = Plan.named("eager")
    plan = stored(run().key, plan=eager, status="default", best_default="eager", best_default_us=10.0)
    keep(own_database, plan)
    assert run().why == f"default plan {plan.key[:12]} of the user database, 10.0 µs"


@pytest.mark.parametrize(("low", "high", "plan"), [(10, 40, "aten"), (10, 80, "default"), (None, None, "aten")])
def test_sizes_that_were_promised_to_vary_are_not_fenced_in(
    own_database: Path, low: int | None, high: int | None, plan: str
) -> None:
    def given(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = trained(size)
        torch._dynamo.mark_dynamic(x, 0, min=low, max=high)
        return x, y

    key = run(*given(20), f=two_sizes).key
    keep(own_database, stored(key, sizes=Box.of({"s0": (8, 64)})))
    torch._dynamo.reset()
    compiled = fuseplan.compile(two_sizes)
    for size in (20, 40, 30):
        x, y = given(size)
        torch.testing.assert_close(compiled(x, y), two_sizes(x, y))
    (program,) = programs(compiled)
    assert ("aten" if program.plan == ATEN else "default") == plan


def test_a_plan_of_the_organisation_runs_unless_its_file_is_hostile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = run().key
    keep(tmp_path / "all.db", stored(key))
    monkeypatch.setenv("FUSEPLAN_SHARED", str(tmp_path / "all.db"))
    assert "of the shared database" in run().why
    monkeypatch.setenv("FUSEPLAN_SHARED", "http://127.0.0.1:9/plans.jsonl.gz")
    with pytest.warns(
        UserWarning, match="127.0.0.1:9/plans.jsonl.gz: it cannot be had: .*there are no plans from there"
    ):
        assert run().plan == Plan.named("eager")


def test_counters_are_kept_for_who_opts_in(own_database: Path) -> None:
    key = run().key
    keep(own_database, stored(key))
    run(counters=True)
    connection = sqlite3.connect(own_database)
    assert connection.execute("SELECT count FROM counter WHERE event = 'plan hits'").fetchone()[0] >= 1
    connection.close()


def test_a_program_is_tuned_where_it_was_asked_for(own_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def tune_online(gm: Any, inputs: Any, effort: str, store: Store, *_: Any) -> Plan:
        asked.append(effort)
        store.add_plan(stored(key))
        return ATEN

    key = run().key
    monkeypatch.setattr(TUNE, "tune_online", tune_online)
    assert run(tune="quick").why.startswith("tuned plan")
    assert run(tune="full").why.startswith("tuned plan")
    assert asked == ["quick"]


def test_where_another_process_tunes_the_default_is_called_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TUNE, "tune_online", lambda *_: None)
    assert run(tune="quick").why.startswith("no plan is stored for program ")


def test_what_cannot_be_tuned_runs_under_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    def tune_online(*_: Any) -> Plan:
        raise fuseplan.GraphError("it holds a user's function")

    monkeypatch.setattr(TUNE, "tune_online", tune_online)
    with pytest.warns(UserWarning, match="could not be tuned, and runs under the default: it holds a user's function"):
        assert run(tune="quick").plan == Plan.named("eager")
