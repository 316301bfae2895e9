"""`fuseplan db verify`: a plan from elsewhere is run from its trace, checked, raced, and only then used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import fuseplan
import fuseplan.verify as verify
from benchmarks.replay.answers import raced as raced_samples
from fuseplan.capture.trace.format import Trace
from fuseplan.cli import main
from fuseplan.errors import StoreError
from fuseplan.measure.environment import environment
from fuseplan.measure.jobs import Outcome, RacePlans
from fuseplan.measure.race import Sample
from fuseplan.plan import CarveOuts, Plan
from fuseplan.segment import Region, Segmentation
from fuseplan.tune import Tuner, tune
from fuseplan.tuning.effort import NONE, QUICK
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.traces import traces_of
from fuseplan.tuning_db import Box, Evidence, Hit, Places, Query, Store, StoredPlan
from fuseplan.tuning_db.exchange import export, import_file
from fuseplan.tuning_db.verify import Verification
from fuseplan.tuning_db.verify import verify as verify_each
from fuseplan.tuning_db.words import retune
from fuseplan.verify import PINNED, Racer
from replaying import ReplayingPool

ATEN = Plan("aten")


class Wave(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x.sin() * 2 + 1).cos()


@pytest.fixture(scope="module")
def trace() -> Trace:
    with torch.no_grad():
        (found,) = traces_of(Wave(), torch.randn(16, 32), name="wave")
    return found


@pytest.fixture
def store(trace: Trace, tmp_path: Path) -> Iterator[Store]:
    """One unverified plan, and the trace of its program."""
    opened = Store(Places(user=tmp_path / "tuning.db"))
    opened.add_program(trace.key, "wave", trace=trace.to_json())
    opened.add_plan(unverified(trace))
    yield opened
    opened.close()


def unverified(trace: Trace, plan: Plan = ATEN, **fields: object) -> StoredPlan:
    return replace(StoredPlan(trace.key, environment("cpu"), plan, status="unverified"), **fields)  # type: ignore[arg-type]


def raced(store: Store, pool: ReplayingPool) -> Verification:
    racer = Racer(store, pool, "cpu")
    return verify_each(store, [environment("cpu")], racer.race)


def name(stored: StoredPlan) -> str:
    """What a plan is called in its race."""
    return f"plan {stored.key[:12]}"


def found(store: Store, trace: Trace) -> Hit:
    answer = store.find_plan(Query(trace.key, environment("cpu")))
    assert isinstance(answer, Hit)
    return answer


def test_a_plan_that_beats_every_default_is_tuned(trace: Trace, store: Store) -> None:
    (done,) = raced(store, ReplayingPool(times={name(unverified(trace)): 500.0})).raced
    assert (done.plan, done.status, done.wall_us) == (ATEN, "tuned", 500.0)
    assert done.best_default in ("eager", "inductor")
    assert done.best_default_us is not None
    assert done.best_default_us >= 1000
    assert found(store, trace).plan == replace(done, evidence=Evidence())
    assert done in store.plans()
    assert {one.name: one.wall_us for one in done.evidence.raced}[name(done)] == 500.0
    timings = store.find_default_timings(trace.key, environment("cpu"))
    assert isinstance(timings, tuple)
    assert {one.name for one in timings} == {"eager", "inductor"}


def test_where_a_default_wins_the_program_runs_it(trace: Trace, store: Store) -> None:
    done = raced(store, ReplayingPool(times={"eager": 100.0}))
    assert [(one.plan, one.status) for one in done.raced] == [
        (ATEN, "quarantined"), (Plan("eager"), "default"),
    ]  # fmt: skip
    assert done.raced[0].detail.startswith("no faster here than eager: ")
    assert found(store, trace).plan.plan == Plan("eager")


def test_a_default_that_came_from_elsewhere_may_win_itself(trace: Trace, tmp_path: Path) -> None:
    store = Store(Places(user=tmp_path / "other.db"))
    store.add_program(trace.key, trace=trace.to_json())
    store.add_plan(unverified(trace, Plan("eager")))
    done = raced(store, ReplayingPool(times={"eager": 100.0}))
    assert [(one.plan, one.status) for one in done.raced] == [(Plan("eager"), "default")]


def test_wrong_numbers_are_out_for_good(trace: Trace, store: Store) -> None:
    (done,) = raced(store, ReplayingPool(bad={name(unverified(trace)): "wrong"})).raced
    assert (done.status, done.detail, done.wall_us) == ("quarantined", "wrong: planted", None)
    (why,) = [one for one in done.evidence.raced if one.status == "wrong"]
    assert (why.name, why.how, why.outputs[0].share) == (name(done), "as was made up", 2.0)
    assert raced(store, ReplayingPool()).raced == []


def test_a_newcomer_has_to_beat_what_runs_now(trace: Trace, store: Store) -> None:
    """Both beat the defaults; the last that was looked at would run, if each raced alone."""
    present = unverified(trace, Plan("aten", name="inductor-greedy"), status="tuned", wall_us=400.0)
    store.add_plan(present)
    times = {name(present): 400.0, name(unverified(trace)): 500.0, "eager": 1000.0, "inductor": 1000.0}
    (done,) = raced(store, ReplayingPool(times=times)).raced
    assert (done.plan, done.status) == (ATEN, "quarantined")
    assert found(store, trace).plan == present


def test_a_pinned_plan_is_checked_but_not_raced(trace: Trace, store: Store) -> None:
    store.pin(unverified(trace).key, "pinned")
    done = raced(store, ReplayingPool(times={"eager": 100.0}))
    assert [why for _, why in done.left] == [PINNED]
    assert found(store, trace).plan.plan == ATEN
    assert [one.status for one in raced(store, ReplayingPool(bad={name(unverified(trace)): "wrong"})).raced] == [
        "quarantined"
    ]


def test_without_a_trace_it_says_so(trace: Trace, tmp_path: Path) -> None:
    store = Store(Places(user=tmp_path / "other.db"))
    store.add_plan(unverified(trace))
    ((_, why),) = raced(store, ReplayingPool()).left
    assert "holds no trace of its program" in why


def test_without_a_default_that_runs_nothing_is_said_of_the_plan(store: Store) -> None:
    ((_, why),) = raced(store, ReplayingPool(bad={"eager": "out-of-memory", "inductor": "timeout"})).left
    assert why == "no default of this launch runs here"
    assert [one.status for one in store.plans()] == ["unverified"]


def test_a_trace_of_another_program_proves_nothing(trace: Trace, tmp_path: Path) -> None:
    """It says that it is of this program; running it shows that it is not."""
    (other,) = traces_of(lambda x: x + 1, torch.randn(16, 32))
    store = Store(Places(user=tmp_path / "other.db"))
    store.add_program(trace.key, trace=replace(other, key=trace.key).to_json())
    store.add_plan(unverified(trace))
    pool = ReplayingPool(times={name(unverified(trace)): 1.0})
    ((_, why),) = raced(store, pool).left
    assert "of another one" in why


@pytest.mark.parametrize("text", ['{"format":"fuseplan trace 1"}', "[]", '{"format":"fuseplan trace 99"}'])
def test_a_trace_that_is_none_is_one_line(trace: Trace, tmp_path: Path, text: str) -> None:
    store = Store(Places(user=tmp_path / "other.db"))
    store.add_program(trace.key, trace=text)
    store.add_plan(unverified(trace))
    ((_, why),) = raced(store, ReplayingPool()).left
    assert why.startswith("the trace of its program cannot be read: ")


def test_what_tuning_keeps_is_enough_to_verify_elsewhere(trace: Trace, tmp_path: Path) -> None:
    """From one machine's tuning over an export to another's races, with nothing else carried along."""
    theirs = Store(Places(user=tmp_path / "theirs.db"))
    (tuned,) = Tuner(theirs, ReplayingPool(times={"eager": 10.0}), "cpu", QUICK, Settings(), Silent()).tune(
        trace, ("plain",)
    )
    export(theirs.file, tmp_path / "rows.jsonl.gz")
    mine = Store(Places(user=tmp_path / "mine.db"))
    assert import_file(mine.file, tmp_path / "rows.jsonl.gz").complete
    done = raced(mine, ReplayingPool(times={"eager": 20.0}))
    assert [(one.plan, one.status, one.wall_us) for one in done.raced] == [(tuned.plan, "default", 20.0)]


def test_a_dynamic_program_is_raced_at_the_sizes_of_its_plan(tmp_path: Path) -> None:
    def double(x: Tensor) -> Tensor:
        return x * 2 + x.shape[0]

    def seen(size: int) -> Trace:
        torch._dynamo.reset()
        x = torch.randn(size, 4)
        torch._dynamo.mark_dynamic(x, 0)
        (one,) = traces_of(double, x)
        return one

    small, large = seen(12), seen(48)
    assert small.key == large.key
    store = Store(Places(user=tmp_path / "tuning.db"))
    pool = ReplayingPool()
    for one in (small, large):
        list(Tuner(store, pool, "cpu", NONE, Settings(), Silent()).tune(one, ("plain",)))
    boxes = {one.sizes for one in store.plans()}
    assert len(boxes) == 2
    assert {store.find_trace(small.key, box) for box in boxes} == {small.to_json(), large.to_json()}
    assert store.find_trace(small.key, Box.of({"s0": (1, 9)})) is None
    ours = ReplayingPool()
    assert {one.sizes for one in raced(store, ours).raced} == boxes


def test_a_plan_is_raced_under_the_numerics_that_it_was_made_under(trace: Trace, store: Store) -> None:
    here = environment("cpu")
    for precision in ("high", "banana"):  # the latter from a file that somebody made
        store.add_plan(unverified(trace, environment=replace(here, matmul_precision=precision)))
    places = verify.places_of(store, ["cpu"])
    assert [one.matmul_precision for one in places] == ["highest", "high"]
    assert [numerics.matmul_precision for _, numerics in places.values()] == ["highest", "high"]
    assert environment("cpu") == here


def test_a_program_that_is_known_by_key_can_be_tuned_again(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    store = Store(Places(user=path))
    tuner = Tuner(store, ReplayingPool(times={"eager": 10.0}), "cpu", QUICK, Settings(), Silent())
    (first,) = tuner.tune(trace, ("plain",))
    (stored,) = store.plans()
    retune(store, stored.key)
    (again,) = tune(stored.key[:8], effort="none", db=path, workers=lambda *_: nullcontext(ReplayingPool()))
    assert (again.program, again.status) == (first.program, "unverified")
    with pytest.raises(StoreError, match="no trace of such a program"):
        tune("no such thing", db=path)


class BusyPool(ReplayingPool):
    """Whose threads wait for cores that others hold."""

    def raced_plans(self, job: RacePlans) -> Outcome:
        times = {side.name: self._us(side.name, side.name, 1000.0) for side in job.entries}
        samples = {name: [Sample(us, 0.0, us, 0.01, 40.0)] for name, us in times.items()}
        outcome, _ = raced_samples(samples, job.incumbent, job.rivals)
        return outcome


def test_where_the_machine_was_too_busy_a_plan_stays_unverified(trace: Trace, store: Store) -> None:
    plan = unverified(trace)
    store.add_plan(plan)
    done = raced(store, BusyPool())
    (known,) = store.plans(plan.key)
    assert known.status == "unverified"
    assert "too busy to tell" in str([*done.raced, *done.left])


def test_for_real(trace: Trace, store: Store, tmp_path: Path) -> None:
    """Workers, compilers, clocks: a plan that is right and one that does not fit its program."""
    misfit = Plan("aten", carve_outs=(CarveOuts("inference", "12" * 32, Segmentation((Region((0, 1), "inductor"),))),))
    store.add_plan(unverified(trace, misfit))
    fits, does_not = unverified(trace).key, unverified(trace, misfit).key
    path = tmp_path / "tuning.db"
    ran = CliRunner().invoke(main, ["db", "verify", "wave", "--db", str(path), "--device", "cpu", "--json"])
    assert ran.exit_code == 1, ran.output  # one failed
    told = {one["key"]: one for one in json.loads(ran.stdout)["plans"]}
    assert told[does_not]["status"] == "quarantined"
    why = {"tuned": "", "quarantined": "no faster here than", "unverified": "too busy to tell"}
    assert why[told[fits]["status"]] in (told[fits]["why"] or "")
    model, x = Wave(), torch.randn(16, 32)
    with torch.no_grad():
        compiled = fuseplan.compile(model, db=str(path))
        torch.testing.assert_close(compiled(x), model(x))
    assert "database" in str(fuseplan.explain(compiled, graphs=False))
    if told[fits]["status"] != "unverified":
        assert CliRunner().invoke(main, ["db", "verify", "--db", str(path)]).output == "no plan here is unverified\n"
