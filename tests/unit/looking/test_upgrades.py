"""What an upgrade did to programs, as `diff` tells it: which are slower, by which kernels, and where their plans differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fuseplan.diff import default_of, diff
from fuseplan.errors import StoreError
from fuseplan.looking.apart import plans_apart
from fuseplan.looking.kernels import UNKNOWN, kernel_changes
from fuseplan.plan import Plan, Rewrite
from fuseplan.tuning_db import Environment, Evidence, Raced, StoredPlan
from fuseplan.tuning_db.evidence import SiteEvidence, WayEvidence
from fuseplan.tuning_db.profile_evidence import GapEvidence, ProfileEvidence
from stored import BOTH, HERE, INDUCTOR, NVFUSER, OTHER_PROGRAM, plan, store_at

NEW = replace(HERE, torch="2.12.0", versions=(("inductor", "2.12.0, triton 3.6"), ("nvfuser", "0.2.36")))
CAUSAL = Plan("inductor", (Rewrite("attention", 0, "auto+causal"),))


def profile(*kernels: tuple[str, float], unknown_us: float = 0.0) -> ProfileEvidence:
    gaps = tuple(GapEvidence("inference", what, (f"triton_{what}",), 1, us, 1.0, "memory") for what, us in kernels)
    return ProfileEvidence("inductor", sum(us for _, us in kernels) + unknown_us, unknown_us, gaps=gaps)


def stored(us: float, found: ProfileEvidence | None, here: Environment = HERE, **fields: object) -> StoredPlan:
    evidence = Evidence(profile=found)
    known = {"wall_us": us, "best_default": "inductor", "best_default_us": us, "noise_us": 0.5, "evidence": evidence}
    return plan(environment=here, status="default", **{**known, **fields})


def test_kernels_are_matched_by_what_they_compute() -> None:
    first = profile(("add", 10.0), ("add", 5.0), ("gelu", 20.0), ("mm", 50.0), unknown_us=3.0)
    second = profile(("add", 25.0), ("gelu, mm", 60.0), ("mm", 50.5), unknown_us=9.0)
    found = [(one.what, one.first_us, one.second_us, one.verdict) for one in kernel_changes(first, second)]
    assert found == [
        ("gelu, mm", None, 60.0, "new"),
        ("gelu", 20.0, None, "gone"),
        ("add", 15.0, 25.0, "slower"),
        (UNKNOWN, 3.0, 9.0, "slower"),
    ], "mm differs by less than two profiles of one version may"


@pytest.mark.parametrize(
    "apart", [{"matmul_precision": "high"}, {"fp16_reduction": 0}, {"gpu_sms": 66}, {"gpu_memory_gib": 80}]
)
def test_what_computes_otherwise_is_another_machine(tmp_path: Path, apart: dict[str, object]) -> None:
    store = store_at(tmp_path / "tuning.db")
    store.add_plan(stored(100.0, None))
    store.add_plan(stored(100.0, None, NEW))
    store.add_plan(stored(40.0, None, replace(NEW, **apart), changed_at="2026-11-23T12:00:00.000Z"))  # type: ignore[arg-type]
    store.close()
    found = diff("torch==2.11", "torch==2.12", db=tmp_path / "tuning.db")
    assert sorted(pair.verdict for pair in found.pairs) == ["only second", "same"]


def test_profiles_of_two_plans_tell_nothing_of_kernels(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tuning.db")
    store.add_plan(stored(100.0, replace(profile(("add", 40.0)), name="inductor, attention proven")))
    store.add_plan(stored(150.0, profile(("add", 90.0)), NEW))
    store.close()
    found = diff("torch==2.11", "torch==2.12", db=tmp_path / "tuning.db")
    assert "under inductor now: nothing can be told by kernels" in str(found)
    assert found.as_dict()["pairs"][0]["kernels"] is None


@pytest.fixture
def upgraded(tmp_path: Path) -> Path:
    """A program that is slower under a new torch, one that is not, and one that another machine has under the new one."""
    store = store_at(tmp_path / "tuning.db")
    store.add_program("ab" * 32, "slow")
    store.add_plan(stored(100.0, profile(("add", 40.0), ("mm", 60.0))))
    store.add_plan(stored(150.0, profile(("add", 90.0), ("mm", 60.0)), NEW))
    store.add_plan(stored(100.0, None, program=OTHER_PROGRAM))
    store.add_plan(stored(101.0, None, NEW, program=OTHER_PROGRAM))
    store.add_plan(stored(10.0, None, replace(NEW, gpu="NVIDIA H100"), program=OTHER_PROGRAM))
    store.close()
    return tmp_path / "tuning.db"


def test_releases_are_compared_on_one_machine_each_with_the_kernels_that_changed(upgraded: Path) -> None:
    found = diff("torch==2.11", "torch==2.12", db=upgraded)
    slow, same, elsewhere = found.pairs
    assert (slow.known.name, slow.verdict, slow.ratio, default_of(slow).verdict) == ("slow", "slower", 1.5, "slower")
    assert (same.verdict, elsewhere.verdict) == ("same", "only second")
    text = str(found)
    assert "slow: 100.0 µs -> 150.0 µs on the device under inductor, 1.50× as long" in text
    assert "+50.0 µs" in text
    assert "triton_mm" not in text
    assert "nobody has looked" not in text
    assert "nobody has looked on both sides" in str(diff("torch==2.11", "torch==2.12", db=upgraded, kernels=True)), (
        "of the other"
    )
    (told, *_) = found.as_dict()["pairs"]
    assert [(one["what"], one["change_us"]) for one in told["kernels"]] == [("add", 50.0)]
    assert told["default"] == {"verdict": "slower", "ratio": 1.5}


@pytest.mark.parametrize(
    ("one", "two"),
    [("triton==3", "torch==2.12"), ("nvfuser==0.2.36", "cuda==13.0"), ("torch==2.11.0", "torch == 2.12.0")],
)
def test_a_release_is_of_torch_cuda_or_an_executor(upgraded: Path, one: str, two: str) -> None:
    assert len(diff(one, two, db=upgraded).pairs) == 3, "two programs on one machine, and one on the other"


@pytest.mark.parametrize("missing", ["torch==2.1", "numpy==2.0", "torch==2.13.0"])
def test_a_release_that_nothing_was_tuned_under_is_an_error(upgraded: Path, missing: str) -> None:
    with pytest.raises(StoreError, match="no plan was tuned under"):
        diff(missing, "torch==2.12", db=upgraded)


def test_where_nobody_has_looked_it_says_so(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tuning.db")
    store.add_plan(stored(100.0, None))
    store.add_plan(stored(150.0, profile(("add", 1.0)), NEW))
    store.close()
    assert "nobody has looked on both sides" in str(diff("torch==2.11", "torch==2.12", db=tmp_path / "tuning.db"))


def test_plans_that_are_equal_do_not_differ() -> None:
    assert plans_apart(plan(plan=CAUSAL), plan(plan=CAUSAL, environment=NEW)) == ()


def test_ways_differ_by_what_each_race_found_of_them() -> None:
    def site(chosen: str, **ways: float) -> Evidence:
        told = tuple(WayEvidence(way.replace("_", "-"), wall_us=us) for way, us in ways.items())
        refused = (WayEvidence("flash", refused="it has no such mask"),)
        return Evidence(sites=(SiteEvidence("attention", (0,), chosen=chosen, ways=told + refused),))

    one = plan(plan=CAUSAL, evidence=site("auto+causal", as_is=900.0, causal=400.0))
    two = plan(plan=INDUCTOR, environment=NEW, evidence=site("as-is", as_is=300.0, causal=350.0))
    (found,) = plans_apart(one, two)
    assert (found.what, found.first, found.second) == ("attention", "auto+causal", "as-is")
    assert found.why == (
        "NVIDIA H200, torch 2.11.0: causal 400.0 µs, as-is 900.0 µs, flash refused, since it has no such mask",
        "NVIDIA H200, torch 2.12.0: as-is 300.0 µs, causal 350.0 µs, flash refused, since it has no such mask",
    )


def test_cuts_differ_by_what_became_of_the_other_plan() -> None:
    one = plan(plan=NVFUSER)
    raced = (Raced(f"plan {one.key[:12]}", wall_us=120.0), Raced("cut 1", wall_us=100.0))
    two = plan(plan=BOTH, environment=NEW, evidence=Evidence(raced))
    (found,) = plans_apart(one, two)
    assert found.line == (
        "carved out: 1 under nvfuser -> 1 under nvfuser, 1 under inductor"
        " (NVIDIA H200, torch 2.12.0: the other plan takes 1.20× as long)"
    )
