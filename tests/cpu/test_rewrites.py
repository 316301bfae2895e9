"""Rewrites by kind, site and way: a stored plan means the site that it was made for, and a kind from outside needs one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor import config
from torch.fx import GraphModule

import fuseplan
from fuseplan.backend import programs_of
from fuseplan.errors import PlanError
from fuseplan.explain import compiled_by
from fuseplan.looking.words import describe
from fuseplan.measure.environment import environment
from fuseplan.plan import WAYS, Plan, Rewrite
from fuseplan.rewrites.apply import known_to_torchs_cache, rewritten
from fuseplan.rewrites.kinds import KINDS
from fuseplan.rewrites.sites import Sites
from fuseplan.runtime import Program
from fuseplan.tuning_db import Places, Store, StoredPlan
from fuseplan.tuning_db.exchange import export, import_file
from fuseplan.tuning_db.files import Database
from rewriting import dynamo_graph
from toy_rewrite import Product, Products

PROVEN = Plan("aten", (Rewrite("attention", 0, "auto+causal"),))


def attend(q: Tensor) -> Tensor:
    mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).tril()
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def run(**options: Any) -> Program:
    """The program that comes of compiling `attend` anew; its result is checked."""
    torch._dynamo.reset()
    compiled, q = fuseplan.compile(attend, **options), torch.randn(1, 2, 6, 8)
    torch.testing.assert_close(compiled(q), attend(q))
    (program,) = programs_of(compiled_by(compiled))
    return program


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(Places(tmp_path / "tuning.db"))


def keep(store: Store, plan: Plan) -> StoredPlan:
    kept = StoredPlan(str(run(plan="aten").key), environment("cpu"), plan, wall_us=1.0)
    assert store.add_plan(kept)
    return kept


def test_a_digest_is_filled_in_when_the_program_is_next_met(store: Store, tmp_path: Path) -> None:
    kept = keep(store, PROVEN)
    program = run(db=tmp_path / "tuning.db")
    (now,) = store.plans()
    (one,) = now.plan.rewrites
    assert one.digest is not None
    assert program.plan == now.plan == replace(PROVEN, rewrites=(replace(PROVEN.rewrites[0], digest=one.digest),))
    assert (now.key, now.wall_us, now.status, now.run) == (kept.key, kept.wall_us, kept.status, kept.run)
    assert run(db=tmp_path / "tuning.db").plan == now.plan
    assert store.plans() == [now]


def test_a_site_that_is_another_now_does_not_fit(store: Store, tmp_path: Path) -> None:
    keep(store, replace(PROVEN, rewrites=(replace(PROVEN.rewrites[0], digest="0" * 16),)))
    with pytest.warns(UserWarning, match="It is quarantined"):
        program = run(db=tmp_path / "tuning.db")
    assert program.plan.rewrites == ()
    assert "attention call 0 is another than the one that the plan was made for" in program.why
    (now,) = store.plans()
    assert now.status == "quarantined"


def test_a_kind_that_is_not_known_here_does_not_fit(store: Store, tmp_path: Path) -> None:
    keep(store, Plan("aten", (Rewrite("unheard-of", 0, "better"),)))
    with pytest.warns(UserWarning, match="there is no kind of rewrite 'unheard-of'"):
        run(db=tmp_path / "tuning.db")


# a kind from outside: its file, and one line of registration


def twice(x: Tensor, y: Tensor) -> Tensor:
    return (x * 2.0 + x * y) * 4.0


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "product", Products())


def test_a_plan_with_a_kind_from_outside_is_made_stored_shown_and_run(
    products: None, store: Store, tmp_path: Path
) -> None:
    plan = Plan("aten", (Rewrite("product", 0, "quotient"), Rewrite("product", 2, "quotient")))
    x, y = torch.randn(4), torch.randn(4)

    def compiled(**options: Any) -> tuple[Any, Program]:
        torch._dynamo.reset()
        made = fuseplan.compile(twice, **options)
        torch.testing.assert_close(made(x, y), twice(x, y))
        return made, programs_of(compiled_by(made))[0]

    made, program = compiled(plan=plan)
    targets = [op.target for record in program.graphs for op in record.graph.ops]
    assert sorted(targets) == ["aten.add.Tensor", "aten.div.Tensor", "aten.div.Tensor", "aten.mul.Tensor"]
    assert "product 1: by l_y_; left as it is" in fuseplan.explain(made, graphs=False)
    assert describe(plan).endswith("2 product sites quotient")
    store.add_plan(StoredPlan(str(program.key), environment("cpu"), plan, wall_us=1.0))
    _, found = compiled(db=tmp_path / "tuning.db")
    assert found.plan == program.plan
    assert all(one.digest for one in found.plan.rewrites)
    export(Database(tmp_path / "tuning.db"), tmp_path / "rows.jsonl")
    assert import_file(Database(tmp_path / "other.db"), tmp_path / "rows.jsonl").refused == []


def test_kinds_are_found_on_the_original_graph_and_refused_with_a_reason(products: None) -> None:
    graph = dynamo_graph(lambda x, y: attend(x * 2.0) * y, torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8))
    both = (Rewrite("attention", 0, "auto+causal"), Rewrite("product", 0, "quotient"))
    done = rewritten(graph, both)
    assert "tril" not in done.gm.code
    assert "/ 0.5" in done.gm.code
    assert [one.site for one in done.rewrites] == [0, 0]
    with pytest.raises(PlanError, match="product 1 cannot be quotient: it is by no number"):
        rewritten(graph, (Rewrite("product", 1, "quotient"),))
    with pytest.raises(PlanError, match="speaks of product 2; the program has 2 of them"):
        rewritten(graph, (Rewrite("product", 2, "quotient"),))


class Unable(Products):
    """A kind that knows no way with some program."""

    def find(self, gm: GraphModule) -> Sequence[Product]:
        raise AssertionError("no axis may be lost")


def test_a_kind_that_cannot_read_a_program_leaves_it_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(KINDS, "product", Unable())
    gm = torch.fx.symbolic_trace(lambda x: x * 2.0)
    assert not Sites.of(gm, ["product"]).placed
    (said,) = caplog.messages
    assert said == "no product is rewritten: its kind cannot read this program: AssertionError"
    with pytest.raises(PlanError, match="the program has 0 of them"):
        rewritten(gm, (Rewrite("product", 0, "quotient"),))


def test_torchs_cache_is_told_of_functions_in_the_order_of_the_plan() -> None:
    """Its key holds them so: in another order, another process would find nothing."""
    kinds = sorted(name for name, kind in KINDS.items() if kind.functions)
    plan = Plan("inductor", tuple(Rewrite(kind, 0, WAYS[kind][0]) for kind in kinds))
    with known_to_torchs_cache(plan):
        told = list(config.unsafe_marked_cacheable_functions)
    assert len(kinds) > 3
    assert told == list(dict.fromkeys(name for kind in kinds for name in KINDS[kind].functions))
