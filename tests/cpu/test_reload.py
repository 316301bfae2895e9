"""Option reload: a running process changes over to a plan that the database has now, between two calls and with the same results."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fuseplan
from fuseplan import reload
from fuseplan.backend import programs_of
from fuseplan.capture.dynamo.ranks import runs_in_step
from fuseplan.errors import OptionError
from fuseplan.explain import compiled_by
from fuseplan.measure.environment import environment
from fuseplan.options import Options
from fuseplan.plan import CarveOuts, Plan
from fuseplan.runtime import Program
from fuseplan.segment import Region, Segmentation
from fuseplan.stats import stats
from fuseplan.tuning_db import Miss, Places, Store, StoredPlan

ATEN = Plan.named("aten")


def chain(x: Tensor) -> Tensor:
    return (x * 2).relu() + 1


@pytest.fixture(autouse=True)
def without_inductor(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The default is eager: which plan is chosen does not depend on it, and compiling takes seconds."""
    monkeypatch.setattr("fuseplan.lookup.missing_compiler", lambda *_: "no compiler in this test")
    reload._asked_for.clear()
    reload._computed_again.clear()
    reload._found_out.clear()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process beside this one compiles and checks a plan first, which takes seconds."""
    monkeypatch.setattr(reload, "not_ready", lambda *_: None)


def program_of(compiled: Any) -> Program:
    (program,) = programs_of(compiled_by(compiled))
    return program


def follower_of(compiled: Any) -> reload.Follower:
    """The one that follows what was compiled last."""
    return [found for each in reload._watch._followers if (found := each()) is not None][-1]


def put(path: Path, program: Program, plan: Plan = ATEN, **fields: Any) -> StoredPlan:
    assert program.key is not None
    stored = StoredPlan(program.key, environment("cpu"), plan, **{"wall_us": 10.0, **fields})
    store = Store(Places(path))
    assert store.add_plan(stored)
    store.close()
    return stored


def due(path: Path) -> tuple[Any, Tensor]:
    """A program that is to change over to another plan when it is called next, and what it is called with."""
    compiled, x = fuseplan.compile(chain, reload=3600), torch.randn(4, 8)
    compiled(x)
    put(path, program_of(compiled))
    follower_of(compiled).ask()
    return compiled, x


def changed(event: str = "programs compiled anew for another plan") -> int:
    return stats().get(event, 0)


@pytest.mark.usefixtures("at_once")
def test_a_plan_is_taken_once_it_is_there_and_left_once_it_is_disabled(own_database: Path) -> None:
    compiled, x = fuseplan.compile(chain, reload=3600), torch.randn(4, 8)
    want, before = compiled(x), changed()
    first = program_of(compiled)
    assert first.plan == Plan.named("eager")
    follower = follower_of(compiled)
    follower.ask()
    assert follower.due is None
    put(own_database, first)
    follower.ask()
    for _ in range(3):
        torch.testing.assert_close(compiled(x), want)
    assert program_of(compiled).plan == ATEN
    assert changed() == before + 1
    put(own_database, first, word="disabled")
    follower_of(compiled).ask()
    for _ in range(3):
        torch.testing.assert_close(compiled(x), want)
    assert program_of(compiled).plan == Plan.named("eager")
    assert changed() == before + 2


def test_a_process_beside_compiles_and_checks_it_first(own_database: Path) -> None:
    """As a user meets it: nothing is asked for by hand."""
    compiled, x = fuseplan.compile(chain, reload="0.2s", tune="later"), torch.randn(4, 8)
    want = compiled(x)
    put(own_database, program_of(compiled))
    deadline = time.monotonic() + 120
    while program_of(compiled).plan != ATEN and time.monotonic() < deadline:
        time.sleep(0.1)
        torch.testing.assert_close(compiled(x), want)
    assert program_of(compiled).plan == ATEN


def test_a_plan_that_is_wrong_here_is_left_alone(own_database: Path) -> None:
    compiled, x = fuseplan.compile(chain, reload=3600, tune="later"), torch.randn(4, 8)
    compiled(x)
    other = CarveOuts("inference", "0" * 64, Segmentation((Region((0,), "inductor"),)))
    put(own_database, program_of(compiled), Plan("aten", carve_outs=(other,)))
    follower, before = follower_of(compiled), changed("plans that were not changed over to")
    for _ in range(2):
        follower.ask()
        compiled(x)
    assert program_of(compiled).plan == Plan.named("eager")
    assert changed("plans that were not changed over to") == before + 1, "it is tried once"


def test_without_a_trace_nobody_could_compile_it_beforehand(own_database: Path) -> None:
    compiled = fuseplan.compile(chain, reload=3600)
    compiled(torch.randn(4, 8))
    put(own_database, program_of(compiled))
    follower = follower_of(compiled)
    follower.ask()
    assert follower.due is None


@pytest.mark.usefixtures("at_once")
def test_what_it_runs_under_already_changes_nothing(own_database: Path) -> None:
    compiled, x = fuseplan.compile(chain, reload=3600), torch.randn(4, 8)
    compiled(x)
    put(own_database, program_of(compiled), Plan.named("eager"), status="default")
    follower, before = follower_of(compiled), changed()
    follower.ask()
    compiled(x)
    assert changed() == before
    assert follower.due is None


@pytest.mark.usefixtures("at_once")
def test_training_goes_on_with_the_same_losses(own_database: Path) -> None:
    def trained(options: dict[str, Any], at: int) -> list[float]:
        torch.manual_seed(0)
        torch._dynamo.reset()
        net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
        optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        step = fuseplan.compile(lambda x: net(x).square().mean(), **options)
        losses = []
        for number in range(8):
            loss = step(torch.randn(16, 8))
            if number == at:  # the forward has run, and its backward is still to come
                put(own_database, program_of(step))
                follower_of(step).ask()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        assert program_of(step).plan == (ATEN if options else Plan.named("eager"))
        return losses

    alone = trained({}, -1)
    assert trained({"reload": 3600}, 3) == pytest.approx(alone, rel=1e-6)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_computed_again_in_a_backward_stays(own_database: Path, reentrant: bool) -> None:
    """The second time it would save something else, and drop something else."""

    def dropped(x: Tensor) -> Tensor:
        return F.dropout(x * 2, 0.5).sin()

    compiled, x = fuseplan.compile(dropped, reload=3600), torch.full((64, 64), 0.3, requires_grad=True)
    for step in range(4):
        x.grad = None
        out = checkpoint(compiled, x, use_reentrant=reentrant)
        out.sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad != 0, out != 0)
        if step == 0:
            for program in programs_of(compiled_by(compiled)):
                put(own_database, program)
            for follower in (found for each in reload._watch._followers if (found := each()) is not None):
                follower.ask()
    assert {program.plan for program in programs_of(compiled_by(compiled))} == {Plan.named("eager")}


@pytest.mark.usefixtures("at_once")
def test_a_function_that_was_compiled_before_its_checkpoint_stays_too(own_database: Path) -> None:
    compiled, x = fuseplan.compile(chain, reload=3600), torch.randn(4, 8, requires_grad=True)
    compiled(x)
    put(own_database, program_of(compiled))
    checkpoint(compiled, x, use_reentrant=False).sum().backward()
    follower_of(compiled).ask()
    before = changed()
    for _ in range(2):
        checkpoint(compiled, x, use_reentrant=False).sum().backward()
        compiled(x)
    assert changed() == before


@pytest.mark.usefixtures("at_once")
def test_a_database_that_is_out_for_a_moment_is_asked_again(
    own_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, x = due(own_database)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "find_plan", lambda self, query: Miss("database unusable", "it is locked"))
        for _ in range(2):
            compiled(x)
    assert program_of(compiled).plan == Plan.named("eager")
    follower_of(compiled).ask()
    for _ in range(2):
        compiled(x)
    assert program_of(compiled).plan == ATEN


@pytest.mark.usefixtures("at_once")
def test_others_have_half_of_what_torch_compiles_of_a_function(own_database: Path) -> None:
    compiled, x = fuseplan.compile(chain, reload=3600), torch.randn(4, 8)
    compiled(x)
    before = changed()
    for number in range(8):
        plan = ATEN if number % 2 == 0 else Plan.named("eager")
        put(own_database, program_of(compiled), plan, wall_us=9.0 - number)
        follower_of(compiled).ask()
        compiled(x)
        compiled(x)
    assert changed() - before <= torch._dynamo.config.recompile_limit // 2


def test_two_functions_of_one_program_follow_apart(own_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(x: Tensor) -> Tensor:
        return (x * 2).relu() + 1

    x, compiled = torch.randn(4, 8), [fuseplan.compile(one, reload=3600) for one in (chain, other)]
    followers = []
    for one in compiled:
        one(x)
        followers.append(follower_of(one))
    put(own_database, program_of(compiled[0]))
    checked = list[str]()
    monkeypatch.setattr(reload, "not_ready", lambda stored, *_: checked.append(stored.key))
    for follower in followers:
        follower.ask()
    assert len(checked) == 1
    for one in compiled:
        one(x)
    for one in compiled:
        one(x)
        assert program_of(one).plan == ATEN


def test_a_device_without_plans_is_not_followed(own_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuseplan.lookup.Lookup.device", torch.device("mps"))
    before = len(reload._watch._followers)
    fuseplan.compile(chain, reload=60)(torch.randn(4, 8))
    assert len(reload._watch._followers) == before


@pytest.mark.usefixtures("at_once")
def test_what_is_not_taken_when_it_is_compiled_anew_is_not_asked_for_again(
    own_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, x = due(own_database)
    monkeypatch.setattr("fuseplan.lookup.Lookup.choose", lambda self: self.default("it does not fit"))
    before = changed()
    for _ in range(3):
        compiled(x)
        follower_of(compiled).ask()
    assert changed() == before + 1


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("name", "value"), [("recompile_limit", 2), ("error_on_recompile", True)], ids=["too often", "never"]
)
def test_where_torch_would_not_compile_it_again_it_stays(own_database: Path, name: str, value: object) -> None:
    compiled, x = fuseplan.compile(chain, reload=3600), torch.randn(4, 8)
    compiled(x)
    put(own_database, program_of(compiled))
    follower, before = follower_of(compiled), changed()
    with torch._dynamo.config.patch({name: value}):
        for _ in range(3):
            follower.ask()
            compiled(x)
    assert program_of(compiled).plan == Plan.named("eager")
    assert changed() == before


@pytest.mark.usefixtures("at_once")
def test_a_stance_of_the_caller_s_stays(own_database: Path) -> None:
    compiled, x = due(own_database)
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(x)
        compiled(x)
    assert program_of(compiled).plan == Plan.named("eager")


@pytest.mark.parametrize(
    "options", [{}, {"reload": None}, {"reload": 60, "plan": "aten"}], ids=["never", "none", "a plan by hand"]
)
def test_nobody_follows_what_waits_for_nothing(own_database: Path, options: dict[str, Any]) -> None:
    before = len(reload._watch._followers)
    fuseplan.compile(chain, **options)(torch.randn(4, 8))
    assert len(reload._watch._followers) == before


def test_ranks_stay_in_step(own_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(reload._watch._followers)
    with monkeypatch.context() as patch:
        patch.setattr(torch.distributed, "is_initialized", lambda: True)
        patch.setattr(torch.distributed, "get_world_size", lambda: 2)
        assert runs_in_step()
    assert not runs_in_step()
    monkeypatch.setattr(reload, "runs_in_step", lambda: True)
    fuseplan.compile(chain, reload=60)(torch.randn(4, 8))
    assert len(reload._watch._followers) == before


def test_a_program_that_is_gone_is_not_followed(own_database: Path) -> None:
    def compile_one(f: Callable[..., Any]) -> None:
        fuseplan.compile(f, reload=3600)(torch.randn(4, 8))

    def followed() -> list[object]:
        return [found for each in reload._watch._followers if (found := each()) is not None]

    others = followed()  # of tests before
    compile_one(lambda x: x + 1)
    torch._dynamo.reset()
    gc.collect()
    compile_one(chain)
    # The thread that waits holds each for as long as it looks at it.
    deadline = time.monotonic() + 60
    while len(ours := [one for one in followed() if one not in others]) > 1 and time.monotonic() < deadline:
        del ours
        gc.collect()
        time.sleep(0.01)
    assert len(ours) == 1


@pytest.mark.parametrize("value", ["soon", "0s", True, -1, [60]])
def test_what_is_no_time(value: object) -> None:
    with pytest.raises(OptionError, match="option reload"):
        Options.parse({"reload": value})
