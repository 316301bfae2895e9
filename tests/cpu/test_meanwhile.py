"""What a process does while workers tune its program: it compiles what is likely to win, once, and what is broken off leaves nothing behind."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

from fuseplan import backend, lookup
from fuseplan.backend import programs_of
from fuseplan.capture.dynamo.forward_known import forward_known, runs_forward
from fuseplan.capture.dynamo.program import program_key
from fuseplan.capture.trace.format import Trace
from fuseplan.errors import FuseplanError
from fuseplan.explain import compiled_by
from fuseplan.measure.environment import environment
from fuseplan.plan import Plan
from fuseplan.rewrites.sites import Sites
from fuseplan.runtime import replay
from fuseplan.tune import Meanwhile
from fuseplan.tuning.traces import traces_of
from fuseplan.tuning_db import Places, Store, StoredPlan

LIKELY = Plan("inductor", settings="split-64")


def attends(q: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, q, q, mask) * 2


@pytest.fixture(scope="module")
def trace() -> Trace:
    with torch.no_grad():
        (found,) = traces_of(attends, torch.randn(2, 4, 16, 8), torch.zeros(2, 1, 16, 16), name="attends")
    return found


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """What is compiled in this process, in the place of which eager runs."""
    found: list[Plan] = []

    def counted(plan: Plan, gm: Any, example_inputs: Any, program: Any) -> Callable[..., Any]:
        found.append(plan)
        called = replay(Plan("eager"), gm, example_inputs, program)
        program.plan = plan
        return called

    monkeypatch.setattr(backend, "replay", counted)
    monkeypatch.setattr(lookup, "missing_compiler", lambda *_: None)
    return found


def stores(winner: Plan, *likely: Plan) -> Callable[..., None]:
    """In the place of tuning."""

    def found(gm: Any, inputs: Any, effort: str, store: Store, options: Any, meanwhile: Meanwhile) -> None:
        for plan in likely:
            meanwhile.likely(plan)
        key = program_key(gm, inputs).key
        assert key is not None
        store.add_plan(StoredPlan(key, environment("cpu"), winner, status="tuned", wall_us=1.0))

    return found


@pytest.mark.parametrize("winner", [Plan("inductor"), Plan("aten")], ids=["the default", "another"])
def test_nothing_is_compiled_before_it_is_known_what_may_win(
    winner: Plan, compiles: list[Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that tells workers what to do would wait for it."""
    monkeypatch.setattr(import_module("fuseplan.tune"), "tune_online", stores(winner))
    compiled = torch.compile(
        lambda x: x.sin() + 1, backend="fuseplan", options={"db": tmp_path / "a.db", "tune": "instant"}
    )
    compiled(torch.ones(3))
    assert compiles == [winner]
    (program,) = programs_of(compiled_by(compiled))
    assert program.why.startswith("tuned plan")


@pytest.mark.parametrize("winner", [LIKELY, Plan("inductor"), Plan("eager")], ids=["it", "default", "another"])
def test_what_is_likely_to_win_is_compiled_meanwhile_and_once(
    winner: Plan, compiles: list[Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("fuseplan.tune"), "tune_online", stores(winner, LIKELY))
    compiled = torch.compile(
        lambda x: x.sin() + 1, backend="fuseplan", options={"db": tmp_path / "a.db", "tune": "instant"}
    )
    x = torch.ones(3)
    assert torch.equal(compiled(x), x.sin() + 1)
    assert compiles == [LIKELY, *([winner] if winner != LIKELY else [])]
    (program,) = programs_of(compiled_by(compiled))
    assert program.why.startswith("tuned plan")
    assert program.plan == winner
    assert program.refuse is not None  # the database hears of it where it fails


ANOTHER = replace(LIKELY, settings="split-128")


@pytest.mark.parametrize("winner", [LIKELY, ANOTHER, Plan("inductor")], ids=["the first", "the second", "the default"])
def test_of_several_that_are_likely_to_win_whichever_has_won_is_there(
    winner: Plan, compiles: list[Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is told of twice is compiled once."""
    found = stores(winner, LIKELY, Plan("inductor"), LIKELY, ANOTHER)
    monkeypatch.setattr(import_module("fuseplan.tune"), "tune_online", found)
    options = {"db": tmp_path / "a.db", "tune": "instant"}
    compiled = torch.compile(lambda x: x.sin() + 1, backend="fuseplan", options=options)
    compiled(torch.ones(3))
    assert compiles == [LIKELY, Plan("inductor"), ANOTHER]
    (program,) = programs_of(compiled_by(compiled))
    assert program.plan == winner
    assert program.refuse is not None


@pytest.mark.parametrize("verify", ["off", "sampled"])
def test_a_default_that_was_likely_is_compiled_once(
    verify: str, compiles: list[Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing came of tuning, and where a guard compares it with the plan."""

    def fails(*given: Any) -> None:
        given[-1].likely(Plan("inductor"))
        raise FuseplanError("planted")

    found = fails if verify == "off" else stores(LIKELY, Plan("inductor"), LIKELY)
    monkeypatch.setattr(import_module("fuseplan.tune"), "tune_online", found)
    options = {"db": tmp_path / "a.db", "tune": "instant", "verify": verify}
    torch.compile(lambda x: x.sin() + 1, backend="fuseplan", options=options)(torch.ones(3))
    assert compiles == [Plan("inductor"), *([] if verify == "off" else [LIKELY])]


@pytest.mark.parametrize("verify", ["off", "sampled"])
@pytest.mark.parametrize("winner", [Plan("inductor"), LIKELY], ids=["the default", "what was likely"])
def test_torch_keeps_what_it_knows_of_the_forward_that_runs(
    winner: Plan, verify: str, compiles: list[Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By which it compiles a backward later: of another forward it would let that write over what is still read."""
    known: dict[Plan, object] = {}
    under = backend.replay

    def noted(plan: Plan, *given: Any) -> Callable[..., Any]:
        called: Callable[..., Any] = under(plan, *given)
        known[plan] = object()
        runs_forward(known[plan])
        return called

    seen: list[object] = []

    def looking(gm: Any, inputs: Any, **given: Any) -> Callable[..., Any]:
        called = backend.fuseplan_backend(gm, inputs, **given)
        seen.append(forward_known())
        return called

    monkeypatch.setattr(backend, "replay", noted)
    monkeypatch.setattr(import_module("fuseplan.tune"), "tune_online", stores(winner, LIKELY, ANOTHER))
    options = {"db": tmp_path / "a.db", "tune": "instant", "verify": verify}
    torch.compile(lambda x: x.sin() + 1, backend=looking, options=options)(torch.ones(3))
    assert set(known) == {winner, LIKELY, ANOTHER, *([Plan("inductor")] if verify == "sampled" else [])}
    assert seen == [known[winner]]


def test_a_plan_with_regions_is_compiled_when_it_has_won(
    compiles: list[Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that fails here is written down with its plan."""
    monkeypatch.setattr(import_module("fuseplan.tune"), "tune_online", stores(Plan("aten"), Plan("aten")))
    options = {"db": tmp_path / "a.db", "tune": "instant"}
    torch.compile(lambda x: x.sin() + 1, backend="fuseplan", options=options)(torch.ones(3))
    assert compiles == [Plan("aten")]


@pytest.mark.parametrize("verify", ["off", "sampled"])
def test_where_two_forwards_run_no_backward_is_compiled_later(
    verify: str, compiles: list[Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be compiled by what torch knows of the forward that was compiled last."""
    at_once: list[bool] = []
    under = backend.replay

    def noted(plan: Plan, *given: Any) -> Callable[..., Any]:
        at_once.append(torch._functorch.config.force_non_lazy_backward_lowering)
        called: Callable[..., Any] = under(plan, *given)
        return called

    monkeypatch.setattr(backend, "replay", noted)
    monkeypatch.setattr(import_module("fuseplan.tune"), "tune_online", tells_nothing)
    store, x = Store(Places(user=tmp_path / "a.db")), torch.ones(3)
    seen: list[Any] = []
    torch.compile(lambda x: x.sin() + 1, backend=lambda gm, inputs: seen.append((gm, inputs)) or gm.forward)(x)
    store.add_plan(StoredPlan(str(program_key(*seen[0]).key), environment("cpu"), LIKELY, status="tuned", wall_us=1.0))
    store.close()
    torch._dynamo.reset()
    options = {"db": tmp_path / "a.db", "verify": verify}
    torch.compile(lambda x: x.sin() + 1, backend="fuseplan", options=options)(x)
    assert at_once == ([True, True] if verify == "sampled" else [False])


def tells_nothing(*_: Any) -> None:
    raise AssertionError("nothing is tuned")


def test_what_is_likely_to_win_but_not_wanted_here_is_compiled_anew_without_it(
    compiles: list[Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = torch.randn(2, 4, 16, 8), torch.zeros(2, 1, 16, 16)
    seen: list[GraphModule] = []
    with torch.no_grad():
        torch.compile(attends, backend=lambda gm, _: seen.append(gm) or gm.forward)(*inputs)
    plan = Sites.of(seen[0], ("attention",)).preferring(Plan("inductor"))
    assert plan.rewrites
    monkeypatch.setattr(import_module("fuseplan.tune"), "tune_online", stores(plan, plan))
    monkeypatch.setattr(Sites, "allowed", lambda sites, plan: (replace(plan, rewrites=()), ["planted"]))
    torch._dynamo.reset()
    compiled = torch.compile(attends, backend="fuseplan", options={"db": tmp_path / "a.db", "tune": "instant"})
    with torch.no_grad():
        compiled(*inputs)
    assert [bool(plan.rewrites) for plan in compiles] == [True, False]
    (program,) = programs_of(compiled_by(compiled))
    assert "planted" in program.why


def test_what_is_written_otherwise_by_option_is_not_the_default_that_was_compiled(
    compiles: list[Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(*given: Any) -> None:
        given[-1].likely(LIKELY)
        raise FuseplanError("planted")

    monkeypatch.setattr(import_module("fuseplan.tune"), "tune_online", failed)
    options = {"db": tmp_path / "a.db", "tune": "instant", "attention": "proven"}
    compiled = torch.compile(attends, backend="fuseplan", options=options)
    with torch.no_grad():
        compiled(torch.randn(2, 4, 16, 8), torch.zeros(2, 1, 16, 16))
    assert [bool(plan.rewrites) for plan in compiles] == [True]


def test_what_a_tuned_program_was_called_with_first_is_let_go(
    tmp_path: Path, compiles: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("fuseplan.tune"), "tune_online", stores(Plan("aten")))
    options = {"db": tmp_path / "a.db", "tune": "instant"}
    compiled = torch.compile(lambda x: x.sin() + 1, backend="fuseplan", options=options)
    x = torch.ones(1000)
    gone = weakref.ref(x)
    compiled(x)
    (program,) = programs_of(compiled_by(compiled))
    assert program.refuse is not None
    del x
    gc.collect()
    assert gone() is None
