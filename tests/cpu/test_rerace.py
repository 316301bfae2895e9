"""Plans that an upgrade has made stale race again, on replayed timings: what races, what is kept, and what is told."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from torch import Tensor

from cpu.test_tuning_launches import Racing
from fuseplan.capture.dynamo.numerics import Numerics
from fuseplan.capture.trace.format import Trace
from fuseplan.cli.main import main
from fuseplan.errors import OptionError
from fuseplan.explain import explained
from fuseplan.measure.environment import environment
from fuseplan.measure.jobs import ProfilePlan, RacePlans
from fuseplan.plan import Plan
from fuseplan.rerace import stale, tune_stale
from fuseplan.tune import Tuner, tune
from fuseplan.tuning.effort import INSTANT, QUICK, RERACE, Effort
from fuseplan.tuning.program.baseline import SEARCHING
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.program.result import Tuned
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.queue.stale import Reraced
from fuseplan.tuning.traces import query_of, traces_of
from fuseplan.tuning_db import Environment, Hit, Places, Raced, Store, StoredPlan
from fuseplan.tuning_db.resume import usual_seconds
from replaying import ProfilingPool

PROVEN = "inductor, attention proven"
TUNED = {"inductor": 900.0, "eager": 1000.0, PROVEN: 400.0}


def attends(q: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, q, q, mask) * 2


@pytest.fixture(scope="module")
def trace() -> Trace:
    with torch.no_grad():
        (found,) = traces_of(attends, torch.randn(2, 4, 16, 8), torch.zeros(2, 1, 16, 16), name="attends")
    return found


def before() -> Environment:
    """This machine before torch was upgraded."""
    return replace(environment("cpu"), torch="2.12.0", versions=(("inductor", "2.12.0"),))


def tuned(trace: Trace, file: Path, pool: Racing, here: Environment, effort: Effort = INSTANT) -> Tuned:
    store = Store(Places(file))
    (found,) = Tuner(store, pool, "cpu", effort, Settings(model="roofline"), Silent(), here=here).tune(
        trace, ("plain",)
    )
    store.close()
    return found


@pytest.fixture
def file(trace: Trace, tmp_path: Path) -> Path:
    """A database in which the program was tuned before the upgrade."""
    found = tmp_path / "tuning.db"
    assert tuned(trace, found, Racing(times=TUNED), before()).winner == PROVEN
    return found


def plans(file: Path, here: Environment) -> list[StoredPlan]:
    store = Store(Places(file))
    found = [one for one in store.plans() if one.environment.key == here.key]
    store.close()
    return found


def test_an_upgrade_makes_it_stale_and_a_race_settles_that(file: Path) -> None:
    (one,) = stale(db=file)
    assert (one.name, one.stale.changes[0].stored) == ("attends", "2.12.0")
    pool = Racing(times=TUNED)
    (found,) = tune_stale(db=file, workers=lambda device, effort: nullcontext(pool), progress=Silent())
    assert set(pool.vetted) == {"inductor", "eager", PROVEN}, "the old plan is what is preferred: it races once"
    assert (found.tuned.status, found.tuned.winner, found.old_us, found.then_us) == ("tuned", PROVEN, 400.0, 400.0)
    assert found.verdict == "same"
    assert len(plans(file, environment("cpu"))) == 1
    assert len(plans(file, before())) == 1, "what raced before the upgrade stays"
    assert stale(db=file) == []
    assert any(isinstance(job, ProfilePlan) for job in pool.jobs), "for who asks by which kernels"


def test_where_the_old_plan_does_not_run_any_more_the_default_takes_over(file: Path) -> None:
    pool = Racing(times=TUNED, bad={PROVEN: "wrong"})
    (found,) = tune_stale(db=file, workers=lambda device, effort: nullcontext(pool), progress=Silent())
    assert (found.tuned.status, found.tuned.winner) == ("default", "inductor")
    assert found.old_us is None
    assert found.verdict == "slower", "900 µs, where it was 400"


@pytest.mark.parametrize("effort", [INSTANT, QUICK.times(5.0), RERACE])
def test_a_plan_of_another_machine_races_first(trace: Trace, tmp_path: Path, effort: Effort) -> None:
    here, file = environment("cpu"), tmp_path / "tuning.db"
    assert tuned(trace, file, Racing(times=TUNED), replace(here, cpu="another CPU")).winner == PROVEN
    (elsewhere,) = plans(file, replace(here, cpu="another CPU"))
    other = in_math(elsewhere, wall_us=300.0)
    store = Store(Places(file))
    store.add_plan(other)
    store.close()
    name = f"plan {other.key[:12]}"
    pool = Racing(times={**TUNED, name: 300.0})
    found = tuned(trace, file, pool, here, effort)
    assert name in pool.vetted
    assert pool.vetted.index(name) < pool.vetted.index(PROVEN)
    assert (found.status, found.winner) == ("tuned", name)
    assert [one.plan for one in plans(file, here)] == [other.plan]


def test_what_is_interrupted_goes_on_from_there(file: Path) -> None:
    with torch.no_grad():
        (second,) = traces_of(lambda x: (x + 1).relu(), torch.randn(4, 4), name="plain")
    assert tuned(second, file, Racing(times=TUNED), before()).plan is not None

    def raced(pool: Racing) -> list[str]:
        found = tune_stale(db=file, workers=lambda device, effort: nullcontext(pool), progress=Silent())
        return [one.program.name for one in found]

    whole = Racing(times=TUNED)
    copy = file.with_name("copy.db")
    copy.write_bytes(file.read_bytes())
    tune_stale(db=copy, workers=lambda device, effort: nullcontext(whole), progress=Silent())
    with pytest.raises(KeyboardInterrupt):
        raced(
            Racing(
                times=TUNED,
                fail_after=max(number for number, job in enumerate(whole.jobs) if isinstance(job, RacePlans)),
            )
        )
    (left,) = stale(db=file)
    assert raced(Racing(times=TUNED)) == [left.name]
    assert stale(db=file) == []


def test_who_interrupts_the_profile_loses_no_verdict(file: Path) -> None:
    whole = Racing(times=TUNED)
    copy = file.with_name("copy.db")
    copy.write_bytes(file.read_bytes())
    tune_stale(db=copy, workers=lambda *_: nullcontext(whole), progress=Silent())
    *others, last = whole.jobs
    assert isinstance(last, ProfilePlan)
    assert last.entry.name == "inductor", "the default, which an older version has too, and not what is preferred"
    assert last.limit_s is not None
    pool = Racing(times=TUNED, fail_after=len(others))
    with pytest.raises(KeyboardInterrupt):
        tune_stale(db=file, workers=lambda *_: nullcontext(pool), progress=Silent())
    assert stale(db=file) == []
    assert [one.plan for one in plans(file, environment("cpu"))] == [one.plan for one in plans(file, before())]


@pytest.mark.parametrize(("profile", "name"), [(False, None), (True, "inductor")])
def test_a_profile_that_was_asked_for_stands_beside_the_plan(
    trace: Trace, tmp_path: Path, profile: bool, name: str | None
) -> None:
    db, pool = tmp_path / "tuning.db", ProfilingPool(times=TUNED)
    tune([trace], db=db, effort="instant", profile=profile, workers=lambda *_: nullcontext(pool), progress=Silent())
    (one,) = plans(db, environment("cpu"))
    assert (one.evidence.profile and one.evidence.profile.name) == name
    assert one.evidence.raced, "and the rest is there still"


def test_a_profile_is_made_where_it_is_asked_for(trace: Trace, tmp_path: Path) -> None:
    def profiles(profile: bool) -> int:
        pool = Racing(times=TUNED)
        db = tmp_path / f"{profile}.db"
        tune([trace], db=db, effort="instant", profile=profile, workers=lambda *_: nullcontext(pool), progress=Silent())
        return sum(isinstance(job, ProfilePlan) for job in pool.jobs)

    assert (profiles(False), profiles(True)) == (0, 1)


def test_the_command_lists_them_and_refuses_what_does_not_go_with_it(file: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["tune", "--stale", *arguments, "--db", str(file)])
        return done.exit_code, done.output

    code, text = run("--dry-run")
    assert code == 0
    assert "attends" in text
    assert "torch 2.12.0 -> " in text
    code, text = run("--dry-run", "--json")
    assert json.loads(text)[0]["changes"][0]["field"] == "torch"
    for given in (["--queue"], ["--effort", "quick"], ["--shard", "1/2"], ["traces/"]):
        code, text = run(*given)
        assert code == 2
        assert "does not go with --stale" in text


def test_a_default_that_is_stale_needs_no_plan_of_its_own(trace: Trace, tmp_path: Path) -> None:
    file = tmp_path / "tuning.db"
    slow = {**TUNED, PROVEN: 950.0}
    assert tuned(trace, file, Racing(times=slow), before()).plan == Plan("inductor")
    pool = Racing(times=TUNED)
    (found,) = tune_stale(db=file, workers=lambda device, effort: nullcontext(pool), progress=Silent())
    assert (found.then_us, found.old_us, found.tuned.wall_us) == (900.0, 900.0, 400.0)
    assert found.verdict == "faster"


def in_math(of: StoredPlan, **fields: object) -> StoredPlan:
    """The same plan with its one rewrite in another way."""
    (rewrite,) = of.plan.rewrites
    return replace(of, plan=replace(of.plan, rewrites=(replace(rewrite, way="math"),)), **fields)  # type: ignore[arg-type]


def test_a_better_plan_of_this_very_place_is_not_thrown_away_unraced(trace: Trace, tmp_path: Path) -> None:
    """As after an upgrade of the driver, which is no part of the place."""
    here, file = environment("cpu"), tmp_path / "tuning.db"
    tuned(trace, file, Racing(times=TUNED), here)
    (own,) = plans(file, here)
    store = Store(Places(file))
    store.change_plan(own.key, status="quarantined", detail="no faster here")
    best = in_math(own, wall_us=300.0)
    store.add_plan(best)
    name, query = f"plan {best.key[:12]}", query_of(trace, trace.key, here, "plain")
    pool = Racing(times={**TUNED, name: 300.0})
    tuner = Tuner(store, pool, "cpu", RERACE, Settings(model="roofline"), Silent(), here=here)
    (found,) = tuner.tune(trace, ("plain",), again=True)
    answer = store.find_plan(query)
    store.close()
    assert name in pool.vetted
    assert found.winner == name
    assert isinstance(answer, Hit)
    assert answer.plan.plan == best.plan


def test_what_would_be_searched_for_kernels_is_told_not_to_race(trace: Trace, file: Path) -> None:
    store = Store(Places(file))
    (old,) = store.plans()
    later = {"changed_at": "2099-01-01T00:00:00.000Z"}
    store.add_plan(replace(old, plan=replace(old.plan, settings=SEARCHING), wall_us=350.0, **later))
    store.close()
    (found,) = tune_stale(db=file, workers=lambda *_: nullcontext(Racing(times=TUNED)), progress=Silent())
    assert found.old_us is None
    assert found.why_not == "not raced: Inductor would search for kernels"


def test_a_program_without_its_trace_is_told_of_and_fails(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("DELETE FROM trace")
    done = CliRunner().invoke(main, ["tune", "--stale", "--db", str(file)])
    assert done.exit_code == 1
    assert "attends" in done.output
    assert "no trace of it can be read here" in done.output


def test_each_races_only_where_it_is_stale(trace: Trace, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On two kinds of device that are named together."""
    here = environment("cpu")

    def of(device: str) -> Environment:
        return here if device == "cpu" else replace(here, cpu="another CPU")

    for module in ("rerace", "tuning.queue.stale", "tuning.queue.devices"):
        monkeypatch.setattr(f"fuseplan.{module}.environment", of)
    monkeypatch.setattr("fuseplan.rerace.named", lambda text: tuple(text.split(",")))
    elsewhere = {**TUNED, PROVEN: 300.0}
    tuned(trace, file, Racing(times=elsewhere), replace(before(), cpu="another CPU"))
    pools = {"cpu": Racing(times=TUNED), "cpu:0": Racing(times=elsewhere)}
    found = tune_stale(
        db=file, device="cpu,cpu:0", workers=lambda device, effort: nullcontext(pools[device]), progress=Silent()
    )
    assert sorted((one.then_us, one.tuned.wall_us) for one in found) == [(300.0, 300.0), (400.0, 400.0)]
    assert [len(pool.raced) for pool in pools.values()] == [1, 1]


@pytest.mark.parametrize("given", [{"top": -1}, {"top": 0}, {"budget_s": -1.0}])
def test_what_tune_refuses_is_refused(file: Path, given: dict[str, float]) -> None:
    with pytest.raises(OptionError):
        tune_stale(db=file, **given)  # type: ignore[arg-type]


def test_a_plan_is_explained_as_it_computes(trace: Trace, tmp_path: Path) -> None:
    """By a process that computes otherwise."""
    file = tmp_path / "tuning.db"
    with Numerics("high", True, True, True).applied():
        there = environment("cpu")
    tuned(trace, file, Racing(times=TUNED), there)
    (found,) = explained(trace.key, db=file)
    assert found.stored is not None
    assert found.stored.environment == there
    assert "unverified" not in " ".join(found.remarks)
    with Numerics("high", True, True, True).applied():
        tuned(trace, file, Racing(times=TUNED), replace(there, cpu="another CPU"))
    (found,) = explained(found.stored.key, db=file)
    assert "unverified" not in " ".join(found.remarks), "it has won here"


def test_who_explains_plans_of_a_cpu_asks_no_gpu(trace: Trace, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", broken)
    (found,) = explained(trace.key, db=file)
    assert "is stale" in " ".join(found.remarks)
    (old,) = plans(file, before())
    store = Store(Places(file))
    store.add_plan(replace(old, environment=Environment("cuda", "2.12.0", gpu="NVIDIA H200")))
    store.close()
    (found,) = explained(old.key, db=file)
    assert "is stale" in " ".join(found.remarks), "a GPU that is broken is no place"


def test_what_a_race_again_takes_tells_nothing_of_others(file: Path) -> None:
    tune_stale(db=file, workers=lambda *_: nullcontext(Racing(times=TUNED)), progress=Silent())
    store, here = Store(Places(file)), environment("cpu")
    assert usual_seconds(store, INSTANT.name, here) is None
    assert usual_seconds(store, RERACE.name, here) is not None
    store.close()
    assert RERACE.name in INSTANT.harder
    assert RERACE.name not in QUICK.harder


def test_a_neighbour_that_fails_is_not_the_old_plan(trace: Trace, file: Path) -> None:
    (old,) = plans(file, before())
    (one,) = stale(db=file)
    name = f"plan {old.key[:12]}"

    def reraced(stored: StoredPlan, *timed: Raced) -> Reraced:
        program = replace(one, stale=replace(one.stale, stored=stored))
        return Reraced(
            program, Tuned(old.program, "", "plain", "default", Plan("inductor"), "inductor", 900.0, timed=timed)
        )

    near = Raced(f"{name} without attention", status="error", detail="boom")
    raced = reraced(old, Raced(name, status="ok", wall_us=950.0), near)
    assert (raced.old_us, raced.why_not) == (950.0, "")
    assert reraced(old, near).why_not == ""
    assert reraced(old, Raced(name, status="wrong", detail="off")).why_not == "wrong: off"
    bare = replace(old, evidence=replace(old.evidence, raced=()))
    assert reraced(bare, Raced("inductor", status="ok", wall_us=900.0)).old_us is None, "that is the default's"
