"""Tuning by memory: which plans race, which is kept and what is told, on timings that are made up; and with real workers, end to end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from torch import Tensor, nn

import fuseplan
from fuseplan.backend import programs_of
from fuseplan.capture.trace.format import Trace
from fuseplan.cli import main
from fuseplan.explain import compiled_by
from fuseplan.guard.production import unguarded
from fuseplan.host.settings import SPARING
from fuseplan.lookup import Chosen, Lookup
from fuseplan.measure.jobs import VetPlan
from fuseplan.measure.pool import Workers
from fuseplan.objective import TIME, Objective
from fuseplan.plan import Plan
from fuseplan.rerace import why_not
from fuseplan.rewrites.loss import kind
from fuseplan.tune import Tuner
from fuseplan.tuning.effort import INSTANT, QUICK, Effort
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.program.result import Tuned, verdict_line
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.queue.stale import StaleProgram
from fuseplan.tuning.queue.waiting import waiting
from fuseplan.tuning.traces import EITHER, query_of, traces_of
from fuseplan.tuning_db import Hit, Places, Store
from fuseplan.tuning_db.staleness import StalePlan
from replaying import ReplayingPool

MEMORY = Objective("memory")
MB = 10**6
WIDTH, COLUMNS = 8, 640
WALLS = {"inductor": 1000.0, "eager": 1900.0}
CHUNKED, BUDGETED = "inductor, loss chunked-8", "inductor budget-10, loss chunked-8"


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, COLUMNS, bias=False)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.head(F.gelu(self.mix(x))), targets)


def given(rows: int = 16) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(rows, WIDTH), torch.randint(0, COLUMNS, (rows,))


@pytest.fixture(scope="module")
def training() -> Trace:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kind, "LEAST_ELEMENTS", 0)
        (found,) = traces_of(Head(), *given(), name="head")
    return found


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind, "LEAST_ELEMENTS", 0)


def replaying(times: dict[str, float], peaks: dict[str, int] | None = None) -> ReplayingPool:
    """A pool in which plans have peaks of so many MB; others have 1000."""
    found = {name: peak * MB for name, peak in (peaks or {}).items()}
    return ReplayingPool(times=times, peaks=found, usual_peak=1000 * MB)


def tuned(
    trace: Trace, store: Store, pool: ReplayingPool, objective: Objective, launch: str = "plain", effort: Effort = QUICK
) -> Tuned:
    tuner = Tuner(store, pool, "cpu", effort, Settings(objective=objective), Silent())
    (found,) = tuner.tune(trace, (launch,))
    return found


def vetted(pool: ReplayingPool) -> list[Plan]:
    return [job.entry.plan for job in pool.jobs if isinstance(job, VetPlan) and job.entry.plan is not None]


def is_sparing(plan: Plan) -> bool:
    return (
        plan.settings in SPARING or plan.saving == "all" or any(one.way.startswith("chunked") for one in plan.rewrites)
    )


def test_for_time_nothing_new_races(training: Trace, store: Store) -> None:
    pool = replaying(WALLS)
    assert tuned(training, store, pool, TIME).objective == TIME
    assert not any(map(is_sparing, vetted(pool)))


def test_for_memory_chunks_budgets_saving_and_both_together_race(training: Trace, store: Store) -> None:
    pool = replaying(WALLS, {CHUNKED: 400, BUDGETED: 300})
    found = tuned(training, store, pool, MEMORY)
    tried = vetted(pool)
    ways = {one.way for plan in tried for one in plan.rewrites if one.kind == "loss"}
    assert {"chunked-4", "chunked-8"} <= ways
    assert {plan.settings for plan in tried} >= set(SPARING)
    assert {plan.saving for plan in tried if plan.host == "aten"} == {"min-cut", "all"}
    assert (found.winner, found.status, found.peak_bytes, found.best_default) == (
        BUDGETED,
        "tuned",
        300 * MB,
        "inductor",
    )
    assert verdict_line(found).startswith("head, plain, for memory: tuned")
    assert "300 MB" not in verdict_line(replace(found, objective=TIME))
    assert all(one.peak_bytes is not None for one in found.timed if one.status == "ok")


def test_of_those_with_about_the_least_peak_the_fastest_is_kept(training: Trace, store: Store) -> None:
    times = {**WALLS, CHUNKED: 1500.0, BUDGETED: 2500.0}
    pool = replaying(times, {CHUNKED: 304, BUDGETED: 300})
    found = tuned(training, store, pool, MEMORY)
    assert (found.winner, found.wall_us, found.best_default_us) == (CHUNKED, 1500.0, 1000.0)
    assert found.speedup == pytest.approx(1000 / 1500)


def test_within_a_bound_the_fastest_that_fits_is_kept(training: Trace, store: Store) -> None:
    times = {**WALLS, CHUNKED: 1500.0, BUDGETED: 2500.0}
    pool = replaying(times, {CHUNKED: 500, BUDGETED: 300})
    assert tuned(training, store, pool, Objective(within=600 * MB)).winner == CHUNKED
    assert tuned(training, store, pool, Objective(within=400 * MB)).winner == BUDGETED
    generous = tuned(training, store, pool, Objective(within=5000 * MB))
    assert (generous.winner, generous.status) == ("inductor", "default")
    assert {str(one.objective) for one in store.plans()} == {f"time within {n * MB} B" for n in (400, 600, 5000)}


def test_a_bound_that_nothing_meets_is_told(training: Trace, store: Store) -> None:
    pool = ReplayingPool(times=WALLS, peaks={BUDGETED: 30_000 * MB}, usual_peak=50_000 * MB)
    found = tuned(training, store, pool, Objective(within=2000 * MB))
    assert (found.winner, found.peak_bytes) == (BUDGETED, 30_000 * MB)
    assert found.detail == "nothing fits into 2.0 GB: the least is 30.0 GB"
    again = tuned(training, store, pool, Objective(within=2000 * MB))
    assert (again.winner, again.detail) == ("the plan in the database", found.detail)


def test_of_two_launches_that_race_the_one_with_less_memory_is_kept(training: Trace, store: Store) -> None:
    name = f"{CHUNKED}, cudagraph"
    pool = replaying({**WALLS, "inductor, cudagraph": 500.0}, {CHUNKED: 300, name: 900})
    found = tuned(training, store, pool, MEMORY, EITHER)
    assert found.launch == "plain"
    here = Tuner(store, pool, "cpu", QUICK, Settings(), Silent()).environment
    answer = store.find_plan(query_of(training, training.key, here, EITHER, objective=MEMORY))
    assert isinstance(answer, Hit)
    assert answer.plan.peak_bytes == 300 * MB


def test_what_is_tuned_for_one_objective_is_still_to_be_tuned_for_another(training: Trace, store: Store) -> None:
    pool = replaying(WALLS, {CHUNKED: 300})
    tuned(training, store, pool, TIME)
    known = {one.key for one in store.plans()}
    assert tuned(training, store, pool, MEMORY).winner == CHUNKED
    jobs = len(pool.jobs)
    assert {tuned(training, store, pool, one).winner for one in (TIME, MEMORY)} == {"the plan in the database"}
    assert len(pool.jobs) == jobs
    assert known < {one.key for one in store.plans()}


def test_a_plan_for_memory_is_no_matter_of_guards_nor_of_racing_stale_plans_by_time(
    training: Trace, store: Store
) -> None:
    tuned(training, store, replaying(WALLS, {CHUNKED: 300}), MEMORY)
    (stored,) = store.plans()
    stale = StaleProgram(StalePlan(stored, stored.environment, ()), "head", training)
    assert why_not(stale) == "its plan was chosen by memory: tune it again with --objective memory"
    lookup = Lookup.__new__(Lookup)  # what a guard is not made for, whatever is looked up
    assert unguarded(lookup, Chosen(stored.plan, "", stored)) == "its plan was chosen by memory, and may be slower"


@pytest.mark.parametrize("settings", SPARING)
def test_a_budget_keeps_less_for_the_backward_and_computes_the_same(settings: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.GELU(), nn.LayerNorm(32))])
    x = torch.randn(512, 32)
    kept, found = dict[str, int](), dict[str, list[Tensor]]()
    for name in ("default", settings):
        call = fuseplan.compile(net, plan=Plan("inductor", settings=name))
        saved: dict[int, int] = {}

        def keep(one: Tensor, into: dict[int, int] = saved) -> Tensor:
            into[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
            return one

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
            loss = call(x).square().mean()
        kept[name] = sum(saved.values())
        found[name] = [loss.detach(), *torch.autograd.grad(loss, list(net.parameters()))]
        torch._dynamo.reset()
    assert kept[settings] < kept["default"]
    for one, other in zip(found[settings], found["default"], strict=True):
        torch.testing.assert_close(one, other)


LARGE = (1024, 8192)
"""Rows and columns of logits that take 32 MiB, beside which nothing else does."""
PATIENT = replace(INSTANT, wall_s=900.0, device_s=300.0, over_default=False)
"""Whole plans alone, with time for all of them on a machine that has other things to do."""


@pytest.fixture(scope="module")
def large() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    net = nn.Linear(WIDTH, LARGE[1], bias=False)

    def loss(x: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(net(x), targets)

    return loss, (torch.randn(LARGE[0], WIDTH), torch.randint(0, LARGE[1], LARGE[:1]))


@pytest.fixture(scope="module")
def lean(
    large: tuple[nn.Module, tuple[Tensor, Tensor]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Tuned]:
    """A database with the plan for memory of a loss with many classes, and the verdict."""
    torch.set_num_threads(1)  # as in all tests: threads are part of where a plan holds
    path = tmp_path_factory.mktemp("lean") / "tuning.db"
    loss, inputs = large
    with torch.no_grad():
        (trace,) = traces_of(loss, *inputs, name="large")
    store = Store(Places(path))
    with Workers("cpu") as workers:
        (found,) = Tuner(store, workers, "cpu", PATIENT, Settings(objective=MEMORY), Silent()).tune(trace, ("plain",))
    store.close()
    return path, found


def test_a_large_head_is_tuned_to_a_peak_that_is_clearly_lower(lean: tuple[Path, Tuned]) -> None:
    _, found = lean
    peaks = {one.name: one.peak_bytes for one in found.timed if one.status == "ok"}
    assert found.plan is not None
    assert [one.way.partition("-")[0] for one in found.plan.rewrites] == ["chunked"]
    assert None not in peaks.values()
    assert 2 * peaks[found.winner] < min(peaks[name] for name in ("inductor", "eager"))
    assert found.speedup is not None  # at a stated cost


def test_the_plan_runs_where_memory_is_asked_for_and_nowhere_else(
    lean: tuple[Path, Tuned], large: tuple[nn.Module, tuple[Tensor, Tensor]]
) -> None:
    path, found = lean
    loss, inputs = large
    told: dict[str, tuple[bool, str]] = {}
    results = []
    with torch.no_grad():
        for asked in ({}, {"objective": "memory"}, {"max_memory": "1GB"}):
            call = fuseplan.compile(loss, db=path, **asked)
            results.append(call(*inputs))
            (program,) = programs_of(compiled_by(call))
            told[str(asked)] = program.plan == found.plan, program.why
            torch._dynamo.reset()
    by_time, by_memory, bounded = told.values()
    assert not by_time[0]
    assert "other objective memory -> time;" in by_time[1]
    assert by_memory[0]
    assert "objective memory" in by_memory[1]
    assert not bounded[0]
    assert "other objective memory -> time within 1000000000 B" in bounded[1]
    for one in results:
        torch.testing.assert_close(one, loss(*inputs))


def test_show_explain_and_diff_say_what_it_was_chosen_by(lean: tuple[Path, Tuned], tmp_path: Path) -> None:
    path, _ = lean
    store = Store(Places(path))
    (stored,) = store.plans()
    other = Store(Places(tmp_path / "other.db"))
    other.add_plan(replace(stored, objective=TIME, run=None))
    for verb, words in (("show", ()), ("explain", ("large",))):
        ended = CliRunner().invoke(main, [verb, *words, "--db", str(path)])
        assert ended.exit_code == 0, ended.output
        assert "memory" in ended.output
    ended = CliRunner().invoke(main, ["explain", "large", "--db", str(path)])
    assert "objective memory" in ended.output
    assert "at its peak, where inductor takes" in ended.output
    ended = CliRunner().invoke(main, ["diff", str(path), str(tmp_path / "other.db")])
    assert "plain, for memory" in ended.output
    assert "1 only first, 1 only second" in ended.output


@pytest.mark.parametrize(
    "arguments",
    [["tune", "x.json", "--objective", "memory", "--max-memory", "1GB"], ["tune", "x.json", "--max-memory", "none"]],
)
def test_the_command_line_refuses_what_cannot_be(arguments: list[str]) -> None:
    ended = CliRunner().invoke(main, arguments)
    assert ended.exit_code == 2, ended.output
    assert "max_memory" in ended.output
    assert "Traceback" not in ended.output


def test_the_queue_knows_what_waits_for_an_objective(lean: tuple[Path, Tuned]) -> None:
    store = Store(Places(lean[0]))
    assert [trace.name for trace in waiting(store, ["cpu"])] == ["large"]
    assert waiting(store, ["cpu"], MEMORY) == []
