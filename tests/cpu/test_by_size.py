"""A program whose sizes vary: Dynamo compiles it once, plans stand in their boxes, and the default serves all other sizes."""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.fx.experimental.sym_node import DynamicInt

import fuseplan
from fuseplan import backend, by_size, reload
from fuseplan.capture.dynamo.own_sizes import OwnSizes, with_own_sizes
from fuseplan.capture.dynamo.program import program_key
from fuseplan.capture.dynamo.settled import settled
from fuseplan.explain import compiled_by
from fuseplan.lookup import Chosen, Lookup
from fuseplan.plan import CarveOuts, Plan, Rewrite
from fuseplan.runtime import Program
from fuseplan.segment import Region, Segmentation
from fuseplan.stats import stats
from fuseplan.tuning_db import Box, Places, Store
from sizes_met import ATEN, arguments, hosts, key_of, programs, put, right, scaled, without_inductor

__all__ = ["without_inductor"]

WAITED = "calls that waited for a compilation"
WAITED_MS = "milliseconds that calls waited for a compilation"


def follower_of(compiled: Callable[..., Any]) -> reload.BoxFollower:
    """Who follows what was compiled."""
    ran: list[Program] = vars(compiled_by(compiled))["_fuseplan_programs"]
    found = [one for each in reload._watch._followers if isinstance(one := each(), reload.BoxFollower)]
    return next(one for one in found if one.by_size.programs is ran)


def by_size_of(compiled: Callable[..., Any]) -> by_size.BySize:
    """What runs in the place of what was compiled."""
    ran: list[Program] = vars(compiled_by(compiled))["_fuseplan_programs"]
    return next(one for one in gc.get_objects() if type(one) is by_size.BySize and one.programs is ran)


def test_each_box_is_compiled_once_and_all_other_sizes_have_the_default(own_database: Path) -> None:
    key = key_of(scaled, arguments(9))
    for high in (16, 64, 256):
        put(own_database, key, high // 2 + 1, high)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    compiled = fuseplan.compile(scaled)
    right(compiled, 40)
    assert hosts(compiled) == ["eager", "aten"], "the default, and the plan of the box of the first call"
    right(compiled, 20, 7, 1000, 64, 33, 500)
    assert hosts(compiled) == ["eager", "aten"]
    right(compiled, 12, 200, 9, 16, 129)
    assert hosts(compiled) == ["eager", "aten", "aten", "aten"]
    with torch.compiler.set_stance("fail_on_recompile"):
        right(compiled, *range(2, 300, 7))
    assert hosts(compiled) == ["eager", "aten", "aten", "aten"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 1


def test_what_only_counts_is_no_size_of_a_box(own_database: Path) -> None:
    """It is another number at each call, and no call is told by it."""

    def counted(x: Tensor, y: Tensor, at: int) -> tuple[Tensor, int]:
        return scaled(x, y), at + 1

    key = key_of(counted, (*arguments(100), DynamicInt(3)))
    for high in (16, 64):
        put(own_database, key, high // 2 + 1, high)
    compiled = fuseplan.compile(counted)
    for number, size in enumerate((100, 40, 12, 33, 16, 100, 9, 64), start=5):
        given = arguments(size)
        found, after = compiled(*given, DynamicInt(number))
        torch.testing.assert_close(found, scaled(*given))
        assert after == number + 1
    assert hosts(compiled) == ["eager", "aten", "aten"]
    assert by_size_of(compiled).reading.names == ("s0",)
    assert len(by_size_of(compiled).calls) == 7


def test_the_default_serves_until_a_process_beside_has_compiled_the_plan(own_database: Path) -> None:
    """As a user meets it: nothing is asked for by hand, and no call waits for the other process."""
    before = stats()
    compiled = fuseplan.compile(scaled, reload="0.2s", tune="later")
    right(compiled, 40, 100)
    (program,) = programs(compiled)
    assert program.key is not None
    put(own_database, program.key, 33, 64)
    deadline = time.monotonic() + 200
    while hosts(compiled) != ["eager", "aten"] and time.monotonic() < deadline:
        time.sleep(0.1)
        right(compiled, 40, 64, 100)
    assert hosts(compiled) == ["eager", "aten"]
    now = stats()
    assert now[WAITED] - before.get(WAITED, 0) == 2, "the first call, and the one that has loaded the plan"
    assert now[WAITED_MS] > before.get(WAITED_MS, 0)


def test_a_plan_comes_and_goes_while_the_program_runs(own_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[str]()
    monkeypatch.setattr(reload, "not_ready", lambda stored, *_, **__: tried.append(stored.key))
    compiled = fuseplan.compile(scaled, reload=3600)
    right(compiled, 40, 100)
    key = programs(compiled)[0].key
    assert key is not None
    follower = follower_of(compiled)
    first = put(own_database, key, 33, 64)
    follower.ask()
    right(compiled, 100, 7)
    assert hosts(compiled) == ["eager"], "nobody has called it in the box since"
    right(compiled, 50, 40)
    assert hosts(compiled) == ["eager", "aten"]
    put(own_database, key, 33, 64, word="disabled")
    follower.ask()
    right(compiled, 50, 40)
    assert hosts(compiled) == ["eager"]
    assert tried == [first.key]


@pytest.mark.parametrize("word", ["disabled", "pinned"])
def test_of_two_plans_of_one_box_the_database_s_answer_runs(
    own_database: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """The older one, once somebody has disabled the one that runs, or pinned the older one."""
    monkeypatch.setattr(reload, "not_ready", lambda *_, **__: None)
    key = key_of(scaled, arguments(9))
    older = put(own_database, key, 33, 64, changed_at="2026-01-01T00:00:00.000Z")
    newer = put(own_database, key, 33, 64, Plan("aten", saving="all"), changed_at="2026-01-02T00:00:00.000Z")
    compiled = fuseplan.compile(scaled, reload=3600)
    right(compiled, 40)
    assert [program.plan.saving for program in programs(compiled)] == ["min-cut", "all"]
    store = Store(Places(own_database))
    assert store.pin(older.key if word == "pinned" else newer.key, word)
    store.close()
    follower = follower_of(compiled)
    follower.ask()
    right(compiled, 40)
    follower.ask()
    right(compiled, 40, 50)
    assert [program.plan for program in programs(compiled)] == [Plan("eager"), ATEN]


def test_a_disabled_plan_stops_before_its_successor_is_there(
    own_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "not_ready", lambda *_, **__: "nothing compiles beside this process")
    key = key_of(scaled, arguments(9))
    put(own_database, key, 33, 64, changed_at="2026-01-01T00:00:00.000Z")
    newer = put(own_database, key, 33, 64, Plan("aten", saving="all"), changed_at="2026-01-02T00:00:00.000Z")
    compiled = fuseplan.compile(scaled, reload=3600)
    right(compiled, 40)
    assert hosts(compiled) == ["eager", "aten"]
    put(own_database, key, 33, 64, newer.plan, word="disabled")
    follower_of(compiled).ask()
    right(compiled, 40)
    assert hosts(compiled) == ["eager"]


@torch.library.custom_op("fuseplan_tests::picky", mutates_args=())
def picky(x: Tensor) -> Tensor:
    """A copy, by an operator whose shapes cannot be told in functions of some names."""
    return x.clone()


refusing, refused = set[str](), list[str]()


@picky.register_fake
def _(x: Tensor) -> Tensor:
    within = refusing.intersection(frame.name for frame in traceback.extract_stack())
    if within:
        refused.extend(within)
        raise RuntimeError("its shape cannot be told")
    return torch.empty_like(x)


def partly_cast(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    with torch.autocast("cpu", torch.bfloat16):
        cast = picky(x @ weight)
    return x @ weight, cast


@pytest.mark.parametrize("where", ["with_own_sizes", "load_now"])
def test_what_fails_within_autocast_leaves_it(own_database: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Sizes of its own, of which it is tried before the default is compiled; and a plan, in a call of the user's."""
    monkeypatch.setattr(Lookup, "default", lambda self, why: Chosen(ATEN, why))
    weight = torch.randn(8, 8)
    with torch.no_grad():
        key = key_of(partly_cast, (arguments(9)[0], weight))
        put(own_database, key, 33, 64, Plan("aten", saving="all"))
        compiled = fuseplan.compile(partly_cast)
        refused.clear()
        refusing.add(where)
        try:
            for size in (9, 40):
                x = arguments(size)[0]
                torch.testing.assert_close(compiled(x, weight), partly_cast(x, weight))
        finally:
            refusing.clear()
    assert refused
    assert not torch.is_autocast_enabled("cpu")
    assert torch.autocast_increment_nesting() == 1
    torch.autocast_decrement_nesting()


def test_a_plan_stays_until_its_successor_is_there(own_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "not_ready", lambda *_, **__: None)
    key = key_of(scaled, arguments(9))
    put(own_database, key, 33, 64, Plan("aten", saving="all"))
    compiled = fuseplan.compile(scaled, reload=3600)
    right(compiled, 40)
    assert [program.plan.saving for program in programs(compiled)] == ["min-cut", "all"]
    follower = follower_of(compiled)
    put(own_database, key, 33, 64)
    follower.ask()
    assert len(programs(compiled)) == 2
    right(compiled, 40)
    follower.ask()
    right(compiled, 40, 50)
    assert [program.plan for program in programs(compiled)] == [Plan("eager"), ATEN]


def test_a_plan_that_does_not_fit_leaves_its_box_to_the_default(own_database: Path) -> None:
    key = key_of(scaled, arguments(9))
    other = CarveOuts("inference", "0" * 64, Segmentation((Region((0,), "inductor"),)))
    wrong = put(own_database, key, 33, 64, Plan("aten", carve_outs=(other,)))
    put(own_database, key, 65, 128)
    compiled = fuseplan.compile(scaled)
    right(compiled, 9)
    with pytest.warns(UserWarning, match="does not fit"):
        right(compiled, 40)
    right(compiled, 41, 100)
    assert hosts(compiled) == ["eager", "aten"]
    store = Store(Places(own_database))
    assert [plan.status for plan in store.plans(wrong.key)] == ["quarantined"]
    store.close()


def test_a_plan_that_was_vetted_for_all_sizes_is_vetted_anew_by_size(
    own_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vetted = list[bool]()
    monkeypatch.setattr(reload, "not_ready", lambda _, __, ___, by_size: vetted.append(by_size))
    stored, store = put(own_database, "0" * 64, 33, 64), Store(Places(own_database))
    for by_sizes in (False, True, True, False):
        assert reload._found_out_once(stored, store, "cpu", by_sizes) is None
    assert vetted == [False, True]
    store.close()


@pytest.mark.parametrize(
    "options", [{"verify": "sampled"}, {"fuel": 3}, {"plan": "aten"}], ids=lambda one: next(iter(one))
)
def test_what_is_asked_for_of_the_whole_program_is_one_plan_for_all_of_it(
    own_database: Path, options: dict[str, Any]
) -> None:
    put(own_database, key_of(scaled, arguments(9)), 33, 64)
    compiled = fuseplan.compile(scaled, **options)
    right(compiled, 9)
    assert len(programs(compiled)) == 1


def test_what_a_compiler_asks_of_sizes_of_its_own_is_no_guard_of_dynamo_s() -> None:
    found: list[OwnSizes] = []

    def backend(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        program = settled(gm, example_inputs)
        symbols = program_key(program.gm, program.example_inputs).symbols
        own = with_own_sizes(program.gm, symbols, {"s0": 40})
        found.append(own)
        assert not own.inputs[0] > 50
        return gm.forward

    compiled = torch.compile(scaled, backend=backend)
    right(compiled, 40, 60, 9)
    (own,) = found
    assert own.why_not({"s0": 50}) is None
    assert "it was compiled for sizes of which" in str(own.why_not({"s0": 51}))


def test_a_plan_that_is_not_for_all_of_its_box_says_so(own_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    carry_out = backend._carry_out

    def asking(choice: Chosen, gm: GraphModule, inputs: Sequence[Any], lookup: Lookup) -> Any:
        if choice.stored is not None:
            assert not inputs[0] > 50
        return carry_out(choice, gm, inputs, lookup=lookup)

    monkeypatch.setattr(backend, "_carry_out", asking)
    put(own_database, key_of(scaled, arguments(9)), 33, 64)
    before = stats().get("plans that are not for all of their box", 0)
    compiled = fuseplan.compile(scaled)
    right(compiled, 40, 50)
    assert programs(compiled)[1].remarks == []
    right(compiled, 51, 60, 51)
    (remark,) = programs(compiled)[1].remarks
    assert remark.startswith("not all sizes of its box run under it: it was compiled for sizes of which")
    assert stats()["plans that are not for all of their box"] == before + 1


def test_a_box_whose_best_is_the_default_has_it_within_a_plan_for_all_sizes(own_database: Path) -> None:
    key = key_of(scaled, arguments(9))
    put(own_database, key, 33, 64, sizes=Box())
    put(own_database, key, 33, 64, Plan("eager"), wall_us=5.0)
    compiled = fuseplan.compile(scaled)
    right(compiled, 40, 41)
    assert hosts(compiled) == ["eager"]
    right(compiled, 100)
    assert hosts(compiled) == ["eager", "aten"]
    ran = list[int]()
    (plan,) = [one for one in by_size_of(compiled)._plans.values() if one.own is not None]
    loaded = plan.call
    assert loaded is not None
    plan.call = lambda *args: (ran.append(1), loaded(*args))[1]
    by_size_of(compiled)._runs.clear()
    right(compiled, 40, 64, 100)
    assert len(ran) == 1, "in the box the default"


class Layers(nn.Module):
    """A mask by position, a view, an input that lies apart in memory, and a size that is computed with."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.register_buffer("scale", torch.full((8,), 0.5))

    def forward(self, x: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        rows = x.shape[1]
        mask = torch.ones(rows, rows, dtype=torch.bool).tril()
        scores = F.scaled_dot_product_attention(self.inner(x), x, x, attn_mask=mask & keep[:rows, None])
        return scores * self.scale + rows, x.reshape(-1, 4).sum(0)


@pytest.mark.parametrize("modes", ["no_grad", "inference_mode", "autocast"])
def test_a_model_under_a_plan_in_each_mode(own_database: Path, modes: str) -> None:
    model = Layers().eval()

    def given(rows: int) -> tuple[Tensor, Tensor]:
        x, keep = torch.randn(3, rows + 4, 8)[:, 2:-2], torch.rand(128) > 0.3
        torch._dynamo.maybe_mark_dynamic(x, 1)
        return x, keep

    def run(compiled: Callable[..., Any], *rows: int) -> None:
        for one in rows:
            args = given(one)
            with (
                torch.autocast("cpu", torch.bfloat16) if modes == "autocast" else getattr(torch, modes)(),
                torch.no_grad(),
            ):
                torch.testing.assert_close(compiled(*args), model(*args), equal_nan=True)

    first = fuseplan.compile(model)
    run(first, 20)
    (program,) = programs(first)
    torch._dynamo.reset()
    put(own_database, str(program.key), 17, 32)
    compiled = fuseplan.compile(model)
    run(compiled, 20, 31, 50, 17, 9)
    assert hosts(compiled) == ["eager", "aten"]


def counted_up(x: Tensor, number: Tensor) -> Tensor:
    return x * 2 + torch.ones(x.shape[0], 8) * number.item()


def test_a_program_that_reads_a_number_from_a_tensor_has_plans_in_its_boxes(own_database: Path) -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True), torch.no_grad():
        key = key_of(counted_up, (arguments(9)[0], torch.tensor(3)))
        for high in (64, 128):
            put(own_database, key, high // 2 + 1, high)
        compiled = fuseplan.compile(counted_up)
        for size, number in ((9, 3), (40, 4), (41, 5), (100, 6)):
            x = arguments(size)[0]
            torch.testing.assert_close(compiled(x, torch.tensor(number)), x * 2 + number)
    assert hosts(compiled) == ["eager", "aten", "aten"]


@pytest.mark.parametrize("first", [33, 64])
def test_few_rows_are_found_from_each_size_of_a_box(own_database: Path, first: int) -> None:
    """How many there are at most is the box's edge, whatever size comes first; of more, they are no site."""
    weights = torch.randn(24, 64), torch.randn(8, 64)

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return F.linear(x, weights[0]), F.linear(x, weights[1])

    def given(size: int) -> Tensor:
        x = torch.randn(size, 64)
        torch._dynamo.maybe_mark_dynamic(x, 0)
        return x

    key = key_of(both, (given(9),))
    rewrite = Rewrite("few-rows", 0, "triton")
    put(own_database, key, 33, 64, Plan("aten", (rewrite,)))
    put(own_database, key, 257, 512, Plan("aten", (rewrite,)))
    compiled = fuseplan.compile(both)
    for size in (9, first, 40, 64, 33):
        x = given(size)
        for found, wanted in zip(compiled(x), both(x), strict=True):
            torch.testing.assert_close(found, wanted)
    default, plan = programs(compiled)
    assert (default.plan.host, [one.kind for one in plan.plan.rewrites]) == ("eager", ["few-rows"])
    with pytest.warns(UserWarning, match="speaks of matmul of few rows 0; the program has 0"):
        compiled(given(300))
