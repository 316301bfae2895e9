"""Rewrites of any kind as tuning proposes them, on replayed timings: they win or lose a race, alone or joined, and none goes with
another that would change the same nodes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

import fuseplan
from fuseplan.capture.trace.format import Trace
from fuseplan.errors import PlanError
from fuseplan.explain import explained
from fuseplan.measure.jobs import Capture, RacePlans
from fuseplan.measure.pool import Workers
from fuseplan.objective import TIME, Objective
from fuseplan.plan import Rewrite
from fuseplan.rewrites.apply import rewritten
from fuseplan.rewrites.found import SiteFound
from fuseplan.rewrites.kinds import KINDS
from fuseplan.rewrites.sites import Sites
from fuseplan.tune import Tuner
from fuseplan.tuning.effort import FULL, QUICK, Effort
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.program.result import Tuned
from fuseplan.tuning.program.rewriting import Alternative, alternatives, joined, preferred_ways, rewrites_of
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.traces import traces_of
from fuseplan.tuning_db import Places, Store
from fuseplan.tuning_db.evidence import Evidence
from replaying import ReplayingPool
from rewriting import dynamo_graph
from toy_rewrite import Products


class Doubled(Products):
    """The products once more, as another kind would find them: no site can be rewritten by both."""

    noun = "double"


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "product", Products())


@pytest.fixture
def doubled(products: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "doubled", Doubled())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(Places(tmp_path / "tuning.db"))


def program(q: Tensor, y: Tensor) -> Tensor:
    """Attention with a mask that hides nothing, and three products, two of them by a number."""
    mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device)
    attended = F.scaled_dot_product_attention(q * 2.0, q, q, attn_mask=mask)
    return (attended * y).relu() * 4.0


def traced() -> Trace:
    with torch.no_grad():
        (found,) = traces_of(program, torch.randn(1, 2, 6, 8), torch.randn(6, 8), name="program")
    return found


def tuned(store: Store, pool: ReplayingPool, effort: Effort = QUICK, objective: Objective = TIME) -> Tuned:
    settings = Settings(objective=objective)
    (found,) = Tuner(store, pool, "cpu", effort, settings, Silent()).tune(traced(), ("plain",))
    return found


PREFERRED = "inductor, attention proven, product proven"


@pytest.mark.parametrize(("us", "status"), [(500.0, "tuned"), (3000.0, "default")])
def test_a_kind_from_outside_is_proposed_and_wins_or_loses_its_race(
    products: None, store: Store, us: float, status: str
) -> None:
    pool = ReplayingPool({"eager": 2000.0, "inductor": 1000.0, PREFERRED: us})
    found = tuned(store, pool)
    raced = [entry.name for job in pool.jobs if isinstance(job, RacePlans) for entry in job.entries]
    assert {"inductor", PREFERRED, "inductor, product as is", "inductor, attention as is"} <= set(raced)
    assert found.plan is not None
    (stored,) = store.plans()
    assert stored.status == status
    if status == "tuned":
        assert [(one.kind, one.site, one.way) for one in stored.plan.rewrites] == [
            ("attention", 0, "auto+unmasked"), ("product", 0, "quotient"), ("product", 2, "quotient"),
        ]  # fmt: skip
        assert all(one.digest for one in stored.plan.rewrites)
    else:
        assert stored.plan.rewrites == ()


def test_each_site_is_told_of_with_its_ways_their_times_and_refusals(
    products: None, store: Store, tmp_path: Path
) -> None:
    times = {"eager": 2000.0, "inductor": 1000.0, PREFERRED: 900.0, "inductor, product as is": 500.0}
    tuned(store, ReplayingPool({**times, "inductor, attention as is": 1200.0}))
    (stored,) = store.plans()
    sites = {one.name: one for one in stored.evidence.sites}
    assert list(sites) == ["attention 0", "product 0", "product 1", "product 2"]
    assert (sites["attention 0"].chosen, sites["product 0"].chosen) == ("auto+unmasked", "as-is")
    assert [(one.way, one.wall_us) for one in sites["attention 0"].raced] == [
        ("auto+unmasked", 500.0),
        ("as-is", 1000.0),
    ]
    assert [(one.way, one.wall_us) for one in sites["product 2"].raced] == [("as-is", 500.0), ("quotient", 900.0)]
    assert sites["product 1"].refused == {"it is by no number": ("quotient",)}
    assert "flash+unmasked" in {one.way for one in sites["attention 0"].untried}
    text = fuseplan.explain(stored.program, db=tmp_path / "tuning.db")
    for line in (
        "what could be written in another way:", "  product 0: as-is; by 2.0", "    at best, raced: as-is 500.0 µs, quotient 900.0 µs",
        "    refused: quotient, since it is by no number",
    ):  # fmt: skip
        assert f"  {line}\n" in text
    (told,) = explained(stored.program, db=tmp_path / "tuning.db")
    assert [one["kind"] for one in told.as_dict()["sites"]] == ["attention", "product", "product", "product"]
    assert Evidence.from_json(stored.evidence.to_json()) == stored.evidence


def gated(q: Tensor, gate: Tensor) -> Tensor:
    """Attention whose weights meet something else before the values, twice, and a softmax that has nothing to do with it."""
    for _ in range(2):
        q = (q @ q.mT / 4).softmax(-1).mul(gate) @ q
    return q.softmax(-1)


def test_what_looks_like_a_site_and_is_none_is_told_of_with_the_reason(store: Store, tmp_path: Path) -> None:
    with torch.no_grad():
        (trace,) = traces_of(gated, torch.randn(2, 6, 8), torch.randn(6, 6), name="gated")
    with Workers("cpu") as workers:
        (outcome,) = workers.map([Capture(trace.to_json())])
    assert outcome.found is not None, outcome.detail
    others, one = outcome.found.missed
    assert (others.kind, len(others.nodes), one.nodes) == ("written-attention", 2, ("softmax_2",))
    assert others.reason == "the attention weights go through mul before they meet the values"
    pool = ReplayingPool({"eager": 2000.0, "inductor": 1000.0})
    (made,) = Tuner(store, pool, "cpu", QUICK, Settings(), Silent()).tune(trace, ("plain",))
    assert made.plan is not None, made.detail
    (stored,) = store.plans()
    assert [each.count for each in stored.evidence.missed] == [2, 1]
    assert Evidence.from_json(stored.evidence.to_json()) == stored.evidence
    text = fuseplan.explain(stored.program, db=tmp_path / "tuning.db")
    assert f"    no written-attention at softmax and 1 other: {others.reason}\n" in text
    (told,) = explained(stored.program, db=tmp_path / "tuning.db")
    assert [each["first"] for each in told.as_dict()["missed"]] == ["softmax", "softmax_2"]


def test_a_kind_that_loses_is_left_out_of_the_plan_that_wins(products: None, store: Store) -> None:
    times = {"eager": 2000.0, "inductor": 1000.0, PREFERRED: 900.0, "inductor, product as is": 500.0}
    found = tuned(store, ReplayingPool(times))
    assert found.winner == "inductor, product as is"
    assert [one.kind for one in store.plans()[0].plan.rewrites] == ["attention"]


def test_winners_of_several_decisions_become_one_plan(products: None, store: Store) -> None:
    both = "inductor, product 0 as is + product 2 as is"
    singly = {"inductor, product 0 as is": 600.0, "inductor, product 2 as is": 610.0}
    pool = ReplayingPool({"eager": 2000.0, "inductor": 1000.0, PREFERRED: 700.0, **singly, both: 500.0})
    found = tuned(store, pool, replace(FULL, rounds=1, coarse=0))
    assert found.winner == both
    (stored,) = store.plans()
    assert [one.kind for one in stored.plan.rewrites] == ["attention"]
    assert stored.evidence is not None
    raced = {one.name: one.status for one in stored.evidence.raced}
    assert {*singly, both, PREFERRED} <= set(raced)


@pytest.mark.parametrize(("within", "winner"), [(6000, "both"), (2000, "inductor, product 0 as is")])
def test_winners_become_one_plan_where_that_is_within_the_bound(
    products: None, store: Store, within: int, winner: str
) -> None:
    both = "inductor, product 0 as is + product 2 as is"
    singly = {"inductor, product 0 as is": 600.0, "inductor, product 2 as is": 610.0}
    times = {"eager": 2000.0, "inductor": 1000.0, PREFERRED: 700.0, **singly, both: 500.0}
    effort = replace(FULL, rounds=1, coarse=0)
    found = tuned(store, ReplayingPool(times, peaks={both: 5000}), effort, Objective(within=within))
    assert found.winner == {"both": both}.get(winner, winner)
    assert found.detail == ""


def test_what_does_not_add_up_is_not_taken(products: None, store: Store) -> None:
    both = "inductor, product 0 as is + product 2 as is"
    singly = {"inductor, product 0 as is": 600.0, "inductor, product 2 as is": 610.0}
    pool = ReplayingPool({"eager": 2000.0, "inductor": 1000.0, PREFERRED: 700.0, **singly, both: 650.0})
    assert tuned(store, pool, replace(FULL, rounds=1, coarse=0)).winner == "inductor, product 0 as is"
    raced = {one.name: one.wall_us for one in store.plans()[0].evidence.raced}
    assert (raced[both], raced[PREFERRED]) == (650.0, 700.0)


def test_workers_know_kinds_from_outside(products: None) -> None:
    with Workers("cpu") as workers:
        (outcome,) = workers.map([Capture(traced().to_json(), preferring=True)])
    assert outcome.found is not None, outcome.detail
    found = {site.named: (site.preferred, site.ways, dict(site.refused)) for site in outcome.found.sites}
    assert found["product", 0] == found["product", 2] == ("quotient", ("quotient",), {})
    assert found["product", 1] == (None, (), {"quotient": "it is by no number"})
    (graph,) = (graph for _, graph in outcome.found.graphs)
    assert [op.target for op in graph.ops].count("aten.div.Tensor") == 2


# sites that overlap


def test_two_kinds_never_have_one_node(doubled: None) -> None:
    gm = dynamo_graph(program, torch.randn(1, 2, 6, 8), torch.randn(6, 8))
    told = {site.named: site for site in Sites.of(gm).told()}
    assert (told["product", 0].preferred, told["doubled", 0].preferred) == ("quotient", None)
    assert told["doubled", 0].excludes == (("product", 0),)
    assert told["product", 0].excludes == (("doubled", 0),)
    assert told["attention", 0].excludes == ()
    both = (Rewrite("doubled", 0, "quotient"), Rewrite("product", 0, "quotient"))
    why = "double 0 cannot be quotient beside product 0 as quotient: both would change"
    with pytest.raises(PlanError, match=why):
        rewritten(gm, both)
    apart = (Rewrite("doubled", 0, "quotient"), Rewrite("product", 2, "quotient"))
    assert rewritten(gm, apart).gm.code.count(" / ") == 2


def test_a_kind_does_not_rewrite_what_another_takes_away(products: None) -> None:
    def masked(q: Tensor) -> Tensor:
        mask = torch.ones(q.shape[-2], q.shape[-2], device=q.device) * 2.0 > 1
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    gm = dynamo_graph(masked, torch.randn(1, 2, 6, 8))
    unmasked, kept = Rewrite("attention", 0, "auto+unmasked"), Rewrite("attention", 0, "auto")
    quotient = Rewrite("product", 0, "quotient")
    with pytest.raises(PlanError, match=r"product 0 cannot be quotient beside .* as auto\+unmasked|attention call 0"):
        rewritten(gm, (unmasked, quotient))
    assert "/ 0.5" in rewritten(gm, (kept, quotient)).gm.code


def test_the_kind_that_stands_back_is_tried_instead(doubled: None, store: Store) -> None:
    times = {"eager": 2000.0, "inductor": 1000.0, PREFERRED: 700.0, "inductor, doubled instead": 400.0}
    assert tuned(store, ReplayingPool(times)).winner == "inductor, doubled instead"
    kinds = [one.kind for one in store.plans()[0].plan.rewrites]
    assert kinds == ["attention", "doubled", "doubled"]


# which decisions race


def site(kind: str, number: int, group: str, *rivals: str, preferred: str | None = "best") -> SiteFound:
    words = tuple((word, f"{word}-way") for word in rivals)
    ways = (*([preferred] if preferred else []), *(way for _, way in words))
    return SiteFound(kind, number, "ab" * 8, group, ways, {}, preferred, words)


LAYERS = [*(site("layer", i, "self", "flash", "cudnn") for i in range(12)), site("layer", 12, "cross", "flash")]


def names(sites: list[SiteFound], effort: Effort, step_us: float | None) -> list[str]:
    return [one.name for one in alternatives(sites, effort, step_us)]


def test_equal_sites_are_one_decision() -> None:
    assert names(LAYERS, FULL, None) == [
        "layer flash", "layer cudnn", "layer 0-11 as is", "layer 0-11 flash",
        "layer 12 as is", "layer 12 flash",
    ]  # fmt: skip


def test_what_nobody_prefers_races_in_the_place_of_what_is_preferred() -> None:
    """Its rivals at least: not where it stands back by itself, which is another alternative."""
    before = replace(site("front", 0, "a"), excludes=(("odd", 0),))
    unloved = replace(site("odd", 0, "b", "rare", preferred=None), excludes=(("front", 0),))
    found = {one.name: one.ways for one in alternatives([before, unloved], QUICK, 1000.0)}
    assert found["odd rare"] == {("front", 0): None, ("odd", 0): "rare-way"}
    behind = replace(unloved, behind="rare-way")
    assert "odd rare" not in names([before, behind], QUICK, 1000.0)


def test_a_small_effort_tries_rivals_where_a_step_is_short() -> None:
    assert names(LAYERS, QUICK, 1000.0) == ["layer flash", "layer cudnn"]
    assert names(LAYERS, QUICK, 1e6) == names(LAYERS, QUICK, None) == []


def test_what_is_sure_to_pay_is_tried_without_by_a_large_effort_alone() -> None:
    sure = [replace(site("head", 0, "one"), doubtful=False), replace(site("words", 0, "two"), doubtful=False)]
    assert names(sure, QUICK, None) == []
    assert names(sure, FULL, None) == ["head as is", "words as is"]
    assert names([*sure, site("layer", 0, "self")], QUICK, None) == ["layer as is"]


def test_a_site_that_would_not_pay_stands_back_behind_none() -> None:
    first = replace(site("layer", 0, "self"), excludes=(("head", 0),))
    idle = replace(site("head", 0, "one", preferred=None), ways=("padded",), excludes=(("layer", 0),))
    assert names([first, idle], QUICK, None) == []
    assert names([first, replace(idle, behind="padded")], QUICK, None) == ["head instead"]


def test_no_more_race_than_the_effort_grants() -> None:
    many = [site("layer", i, f"group {i}", "flash") for i in range(40)]
    assert len(names(many, FULL, None)) == FULL.rewrites
    assert names(many, FULL, None)[0] == "layer flash"


def test_all_sites_of_one_group_alone_are_no_decision_of_their_own() -> None:
    assert names([site("layer", 0, "self")], FULL, 1.0) == []


def test_winners_about_the_same_sites_are_not_joined() -> None:
    one = Alternative("layer flash", {site.named: "flash-way" for site in LAYERS})
    other = Alternative("layer 12 as is", {("layer", 12): None})
    assert joined(LAYERS, [one, other]) is None
    self_flash = Alternative("layer 0-11 flash", {site.named: "flash-way" for site in LAYERS[:12]})
    both = joined(LAYERS, [self_flash, other])
    assert both is not None
    chosen = rewrites_of(LAYERS, both.over(preferred_ways(LAYERS)))
    assert [(one.site, one.way) for one in chosen] == [(number, "flash-way") for number in range(12)]


def test_sites_in_the_same_words_over_the_same_shapes_are_a_group(products: None) -> None:
    def layers(x: Tensor, y: Tensor) -> Tensor:
        return ((x * 2.0).relu() * 2.0).relu() * 3.0 + y * 2.0

    told = Sites.of(dynamo_graph(layers, torch.randn(4, 8), torch.randn(8))).told()
    first, second, other_number, other_shape = (site.group for site in told)
    assert first == second
    assert len({first, other_number, other_shape}) == 3


def test_a_node_is_named_that_both_would_change(doubled: None) -> None:
    gm = dynamo_graph(lambda x: x * 2.0, torch.randn(4))
    (node,) = (node for node in gm.graph.nodes if node.op == "call_function")
    assert isinstance(node, Node)
    with pytest.raises(PlanError, match=f"both would change {node.name} of the graph"):
        rewritten(gm, (Rewrite("doubled", 0, "quotient"), Rewrite("product", 0, "quotient")))
