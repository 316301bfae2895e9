"""Tuning on replayed timings: what is proposed, measured, chosen and kept, without a clock in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fuseplan.capture.trace.edit import identity
from fuseplan.capture.trace.format import Trace
from fuseplan.errors import PlanError
from fuseplan.executors.inductor.executor import InductorExecutor
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import OutcomeRow, RacePlans, VetRegion
from fuseplan.measure.race import Lane, RaceResult, Sample
from fuseplan.models import Machine, Roofline
from fuseplan.plan import Plan
from fuseplan.solver.costs import region_of
from fuseplan.study.names import Params, Point, Space
from fuseplan.tune import Tuner
from fuseplan.tuning.effort import NONE, QUICK, Effort
from fuseplan.tuning.program import combine
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.program.race import Verdict, _judged, among
from fuseplan.tuning.program.result import Tuned
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.traces import box_of, sizes_of, traces_of
from fuseplan.tuning_db import Hit, Miss, Places, Query, Store
from replaying import ReplayingPool, captured, cut_plans


class Norm(nn.Module):
    """A few islands around two matmuls."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(32, 64), nn.Linear(64, 32), nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.gelu(self.first(self.norm(x))) * 2
        return (x + self.second(hidden)).view(4, 4, 32).tanh()


@pytest.fixture(scope="module")
def trace() -> Trace:
    with torch.no_grad():
        (found,) = traces_of(Norm(), torch.randn(16, 32), name="norm")
    return found


@pytest.fixture(scope="module")
def training() -> Trace:
    (found,) = traces_of(Norm(), torch.randn(16, 32), name="norm training")
    return found


def tuned(trace: Trace, store: Store, pool: ReplayingPool, effort: str = "quick", **settings: str) -> Tuned:
    tuner = Tuner(store, pool, "cpu", Effort.named(effort), Settings(**settings), Silent())
    (found,) = tuner.tune(trace, ("plain",))
    return found


def winning(pool: ReplayingPool) -> dict[str, float]:
    """Times under which the first segmented plan that the pool has seen wins."""
    from fuseplan.tuning.program.combine import plan_name

    (first, *_) = cut_plans(pool.jobs)
    return {f"cut {plan_name(first)}": 500.0}


def test_one_race_is_enough_whichever_default_is_the_best(trace: Trace, store: Store) -> None:
    pool = ReplayingPool(times={"inductor": 3000.0, "eager": 100.0})
    found = tuned(trace, store, pool)
    races = [job for job in pool.jobs if isinstance(job, RacePlans)]
    assert (found.winner, found.best_default, len(races)) == ("eager", "eager", 1)
    assert (races[0].incumbent, races[0].rivals) == ("inductor", ("eager",))


@pytest.mark.parametrize(("trifles", "raced"), [(-1.0, 4), (1.0, 1)])
def test_plans_that_differ_in_trifles_race_as_one(
    trace: Trace, store: Store, monkeypatch: pytest.MonkeyPatch, trifles: float, raced: int
) -> None:
    monkeypatch.setattr("fuseplan.tuning.program.combine.LEAST_APART", trifles)
    pool = ReplayingPool()
    tuned(trace, store, pool)
    assert len(cut_plans(pool.jobs)) == raced


def test_where_a_plan_fails_one_that_is_nearly_it_takes_its_place(
    trace: Trace, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuseplan.tuning.program.combine.LEAST_APART", 1.0)
    rehearsal = ReplayingPool()
    tuned(trace, Store(Places(user=None)), rehearsal)
    (name,) = winning(rehearsal)
    pool = ReplayingPool(bad={name: "wrong"})
    tuned(trace, store, pool)
    (race,) = [job for job in pool.jobs if isinstance(job, RacePlans)]
    raced = [side.name for side in race.entries if side.name.startswith("cut ")]
    assert raced
    assert name not in raced


def test_the_fastest_plan_is_kept_with_its_evidence(trace: Trace, store: Store) -> None:
    rehearsal = ReplayingPool()
    tuned(trace, Store(Places(user=None)), rehearsal)
    found = tuned(trace, store, ReplayingPool(times=winning(rehearsal)))
    assert (found.status, found.wall_us) == ("tuned", 500.0)
    assert found.best_default in ("inductor", "eager")
    assert found.best_default_us is not None
    assert found.best_default_us >= 1000
    answer = store.find_plan(
        Query(trace.key, Tuner(store, ReplayingPool(), "cpu", QUICK, Settings(), Silent()).environment)
    )
    assert isinstance(answer, Hit)
    assert (answer.plan.plan, answer.plan.status, answer.plan.wall_us) == (found.plan, "tuned", 500.0)
    (stored,) = store.plans(answer.plan.key)
    assert stored.moves == found.moves
    assert found.moves
    assert all(move.line.startswith("inference: ") for move in found.moves)


def test_a_default_that_nothing_beats_is_the_answer(trace: Trace, store: Store) -> None:
    found = tuned(trace, store, ReplayingPool(times={"eager": 100.0}))
    assert (found.status, found.winner, found.plan) == ("default", "eager", Plan("eager"))


def test_a_tie_goes_to_the_default(trace: Trace, store: Store) -> None:
    rehearsal = ReplayingPool()
    tuned(trace, Store(Places(user=None)), rehearsal)
    tie = dict.fromkeys(winning(rehearsal), 900.0)
    found = tuned(trace, store, ReplayingPool(times={**tie, "inductor": 900.5, "eager": 900.2}))
    assert found.status == "default"


def test_the_same_measurements_give_the_same_plan_byte_for_byte(training: Trace) -> None:
    plans = []
    for _ in range(2):
        pool = ReplayingPool()
        first = tuned(training, Store(Places(user=None)), pool)
        plans.append((first.plan and first.plan.to_json(), [plan.to_json() for plan in cut_plans(pool.jobs)]))
    assert plans[0] == plans[1]
    assert plans[0][1]


def test_forward_and_backward_are_cut_together(training: Trace, store: Store) -> None:
    pool = ReplayingPool()
    tuned(training, store, pool)
    assert all({part.role for part in plan.carve_outs} == {"forward", "backward"} for plan in cut_plans(pool.jobs))


def test_an_interrupted_run_goes_on_without_measuring_again(trace: Trace, store: Store) -> None:
    whole = ReplayingPool()
    expected = tuned(trace, Store(Places(user=None)), whole)
    interrupted = ReplayingPool(fail_after=len(whole.jobs) - 8)
    with pytest.raises(KeyboardInterrupt):
        tuned(trace, store, interrupted)
    rest = ReplayingPool()
    found = tuned(trace, store, rest)
    assert interrupted.measured
    assert not set(interrupted.measured) & set(rest.measured)
    assert (found.plan, found.wall_us) == (expected.plan, expected.wall_us)


def test_what_is_tuned_is_not_tuned_again(trace: Trace, store: Store) -> None:
    first = tuned(trace, store, ReplayingPool())
    again = ReplayingPool()
    found = tuned(trace, store, again)
    assert found.plan == first.plan
    assert not again.measured
    assert not cut_plans(again.jobs)


def test_a_second_model_of_the_same_layers_costs_next_to_nothing(store: Store) -> None:
    def layers(count: int) -> Trace:
        model = nn.Sequential(*(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0) for _ in range(count)))
        (found,) = traces_of(model, torch.randn(6, 2, 32), name=f"{count} layers")
        return found

    like = Roofline(Machine.guess("a CPU"))
    first, second = ReplayingPool(like=like), ReplayingPool(like=like)
    tuned(layers(2), store, first, model="roofline")  # which leaves nothing out for being immaterial to one of the two
    tuned(layers(3), store, second, model="roofline")
    assert first.measured
    assert len(second.measured) <= len(first.measured) / 10


def test_a_wrong_choice_is_never_part_of_a_plan_and_stays_known(trace: Trace, store: Store) -> None:
    pool = ReplayingPool(bad={"inductor": "wrong"})
    tuned(trace, store, pool)
    vetted = {(job.graph.key, job.executor) for job in pool.jobs if isinstance(job, VetRegion)}
    graph = dict(captured(trace.to_json()).graphs)["inference"]
    cuts = [part.segmentation for plan in cut_plans(pool.jobs) for part in plan.carve_outs]
    used = {(region_of(graph, r.ops, r.recompute).key, r.executor) for cut in cuts for r in cut.regions}
    assert vetted
    assert not used & vetted
    other = ReplayingPool()
    tuned(replace(trace, key=identity(trace.fields)), store, other)  # under a name that no plan is known of yet
    assert not vetted & {(job.graph.key, job.executor) for job in other.jobs if isinstance(job, VetRegion)}


def test_again_tries_what_failed_and_measures_nothing_else_anew(trace: Trace, store: Store) -> None:
    first, mended = ReplayingPool(bad={"inductor": "timeout"}), ReplayingPool()
    tuned(trace, store, first)
    tuner = Tuner(store, mended, "cpu", QUICK, Settings(), Silent())
    list(tuner.tune(trace, ("plain",), again=True))
    failed = {(job.graph.key, job.executor) for job in first.jobs if isinstance(job, VetRegion)}
    tried = {(job.graph.key, job.executor) for job in mended.jobs if isinstance(job, VetRegion)}
    assert failed & tried
    assert not set(first.measured) & set(mended.measured)
    later = ReplayingPool()
    list(Tuner(store, later, "cpu", QUICK, Settings(), Silent()).tune(trace, ("plain",), again=True))
    found = {(job.graph.key, job.executor) for job in later.jobs if isinstance(job, VetRegion)}
    assert not found & tried  # the later result is what is known


def test_again_tries_each_failure_once(trace: Trace, training: Trace, store: Store) -> None:
    pool = ReplayingPool(bad={"inductor": "timeout"})
    tuner = Tuner(store, pool, "cpu", QUICK, Settings(), Silent())
    for one in (trace, training):
        list(tuner.tune(one, ("plain", "cudagraph"), again=True))
    vetted = [(job.graph.key, job.executor) for job in pool.jobs if isinstance(job, VetRegion)]
    assert len(vetted) == len(set(vetted))


def test_without_measuring_a_plan_is_unverified(trace: Trace, store: Store) -> None:
    pool = ReplayingPool()
    found = tuned(trace, store, pool, "none")
    assert found.status == "unverified"
    assert not pool.measured
    query = Query(trace.key, Tuner(store, pool, "cpu", NONE, Settings(), Silent()).environment)
    missed = store.find_plan(query)
    assert isinstance(missed, Miss)
    assert missed.reason == "unverified"


def test_no_default_that_runs_is_a_verdict_of_its_own(trace: Trace, store: Store) -> None:
    found = tuned(trace, store, ReplayingPool(bad={"eager": "crashed", "inductor": "timeout"}))
    assert found.status == "failed"
    assert "no default" in found.detail


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_other_samplers_propose_plans_too(trace: Trace, store: Store, sampler: str) -> None:
    pool = ReplayingPool()
    found = tuned(trace, store, pool, sampler=sampler)
    assert found.status in ("tuned", "default")


def test_a_plan_holds_for_sizes_near_those_it_was_tuned_at() -> None:
    def double(x: Tensor) -> Tensor:
        return x * 2 + x.shape[0]

    x = torch.randn(48, 4)
    torch._dynamo.mark_dynamic(x, 0)
    (found,) = traces_of(double, x)
    assert list(sizes_of(found).values()) == [48]
    assert box_of(found).text.endswith("=33..64")


@pytest.mark.parametrize(
    ("ratios", "noise", "stands"),
    [
        ({"inductor": 1.01, "eager": 1.0}, 0.02, "inductor"),  # a tie
        ({"inductor": 1.5, "eager": 1.0}, 0.02, "eager"),
        ({"inductor": 0.72, "eager": 1.0}, 1.6, "inductor"),
        ({"inductor": 1.0, "eager": 0.6, "cut": 0.1}, 2.2, "inductor"),  # no race, but something else on the machine
        ({"inductor": 1.0, "eager": 1.2, "cut": 0.8}, 0.02, "cut"),
    ],
)
def test_ties_go_to_torch_compile_and_noise_decides_nothing(
    ratios: dict[str, float], noise: float, stands: str
) -> None:
    racing = [RaceEntry(name, Plan("inductor"), default=name != "cut") for name in ratios]
    incumbent = next(name for name, ratio in ratios.items() if ratio == 1.0)
    lanes = tuple(Lane(name, ratio=ratio) for name, ratio in ratios.items())
    result = RaceResult(incumbent, "cut" if "cut" in ratios else incumbent, noise, 12, lanes)
    verdict, best = _judged(racing, result, {}, [entry for entry in racing if entry.default])
    assert verdict is not None
    assert verdict.winner.name == stands
    assert verdict.tuned == (stands == "cut")
    assert best is verdict.best_default


@pytest.mark.parametrize("noise", [0.1, 1.8])
def test_one_disturbed_block_makes_no_default_the_best(noise: float) -> None:
    """Eager was dropped after two blocks; the first of Inductor's had to wait for something else on the machine."""

    def lane(name: str, *walls: float, **more: Any) -> Lane:
        return Lane(name, tuple(Sample(us, 0.0, us) for us in walls), **more)

    lanes = (
        lane("inductor", 7700.0, *[730.0] * 11, ratio=1.0),
        lane("eager", 1100.0, 1110.0, dropped=2, ratio=0.46),
        lane("cut", *[470.0] * 12, ratio=0.64),
    )
    racing = [RaceEntry(one.name, Plan("inductor"), default=one.name != "cut") for one in lanes]
    result = RaceResult("inductor", "cut", noise, 12, lanes)
    verdict, best = _judged(racing, result, {}, racing[:2])
    assert verdict is not None
    assert best.name == "inductor"
    assert verdict.winner.name == ("cut" if noise < 1 else "inductor")


def lane_of(name: str, us: float, rounds: int = 12, **more: Any) -> Lane:
    """A lane of a race whose incumbent takes a ms."""
    ratio = us / 1000.0
    surely = {} if rounds < 6 else {"low": ratio, "high": ratio}
    return Lane(name, (Sample(us, 0.0, us),) * rounds, ratio=ratio, **surely, **more)


@pytest.mark.parametrize(
    ("lanes", "expected"),
    [
        ([lane_of("b", 1200.0), lane_of("b cut", 1100.0)], ("b cut", "b")),
        ([lane_of("b", 1200.0, dropped=12), lane_of("b cut", 1190.0)], ("b", "b")),  # no faster beyond the noise
        ([lane_of("b", 1200.0, rounds=2, dropped=2), lane_of("b cut", 1100.0)], None),  # nobody can tell
        ([lane_of("b", 1200.0), lane_of("b cut", 1100.0, rounds=2, dropped=2)], ("b", "b")),
        ([lane_of("b", 1200.0, status="crashed"), lane_of("b cut", 1100.0)], None),
        ([lane_of("b cut", 1100.0)], None),  # no default of theirs was in the last race
    ],
)
def test_some_of_those_that_raced_have_a_verdict_of_their_own(
    lanes: list[Lane], expected: tuple[str, str] | None
) -> None:
    every = [lane_of("a", 1000.0), lane_of("a cut", 900.0), *lanes]
    entries = {
        name: RaceEntry(name, Plan("inductor"), default="cut" not in name) for name in ("a", "a cut", "b", "b cut")
    }
    rows = {lane.name: OutcomeRow(lane.name, wall_us=1000.0 * (lane.ratio or 0.0)) for lane in every}
    result = RaceResult("a", "a cut", 0.02, 12, tuple(every))
    verdict = Verdict(entries["a cut"], entries["a"], result, rows)
    found = among(verdict, [entries["b"], entries["b cut"]])
    assert (found and (found.winner.name, found.best_default.name)) == expected
    assert among(verdict, [entries["a"], entries["a cut"]]) is verdict


def test_a_race_against_another_than_the_best_default_is_run_again() -> None:
    lanes = (
        Lane("inductor", ratio=0.7),
        Lane("eager", ratio=1.0),
        Lane("cut", ratio=0.6),
    )
    racing = [RaceEntry(one.name, Plan("inductor"), default=one.name != "cut") for one in lanes]
    verdict, best = _judged(racing, RaceResult("eager", "cut", 0.05, 12, lanes), {}, racing[:2])
    assert (verdict, best.name) == (None, "inductor")


def test_a_variant_that_the_first_op_of_a_region_has_not_alone_is_raced_with_the_region(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view alone is refused by Inductor, and so has no variants there; the study read off it who runs the region."""
    monkeypatch.setattr(InductorExecutor, "variants", lambda self, region: ("default", "tuned"))

    def views_first(x: Tensor, y: Tensor) -> Tensor:
        rows = (x @ y).view(4, 4, 32)
        return torch.softmax(rows, -1) * rows[0] + 1

    with torch.no_grad():
        (trace,) = traces_of(views_first, torch.randn(16, 8), torch.randn(8, 32))
    pool = ReplayingPool(times={"inductor tuned": 1.0, "inductor": 50.0, "aten": 40.0})
    tuned(trace, store, pool, "full")
    raced = [
        region for plan in cut_plans(pool.jobs) for part in plan.carve_outs for region in part.segmentation.regions
    ]
    assert any(region.variant == "tuned" and region.ops[0] == 1 for region in raced)


@pytest.mark.parametrize("every", [True, False], ids=["none", "all but the best"])
def test_a_plan_for_which_the_study_has_no_words_is_raced_all_the_same(
    trace: Trace, store: Store, monkeypatch: pytest.MonkeyPatch, every: bool
) -> None:
    known = ReplayingPool()
    tuned(trace, Store(Places(user=None)), known)
    spell, refused = combine.encode, list[Point]()

    def speechless(space: Space, point: Point) -> Params:
        if point.cuts and (every or not refused or point in refused):
            refused.append(point)
            raise PlanError("no words")
        return spell(space, point)

    monkeypatch.setattr(combine, "encode", speechless)
    pool = ReplayingPool()
    found = tuned(trace, store, pool)
    assert refused
    assert cut_plans(pool.jobs) == cut_plans(known.jobs)
    assert any(one.name.startswith("cut ") and one.predicted_us for one in found.timed)


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_no_plan_is_in_a_race_twice_whoever_draws_them(trace: Trace, store: Store, sampler: str) -> None:
    pool = ReplayingPool()
    tuned(trace, store, pool, sampler=sampler)
    for race in (job for job in pool.jobs if isinstance(job, RacePlans)):
        names = [side.name for side in race.entries]
        assert sorted(names) == sorted(set(names))
