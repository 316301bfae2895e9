"""Which plans of elsewhere a race is offered here, and in which order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fuseplan.plan import Plan, Rewrite
from fuseplan.tuning_db import Box, Hit, Miss, StoredPlan
from fuseplan.tuning_db.offers import offers, offers_for
from stored import BOTH, CPU, HERE, INDUCTOR, NVFUSER, PROGRAM, having, plan, question, store_at

H100 = replace(HERE, gpu="NVIDIA H100 80GB HBM3", gpu_l2_mib=50, gpu_memory_gib=80)
CAUSAL = Plan("inductor", (Rewrite("attention", 0, "auto+causal"),))


def won(of: Plan = CAUSAL, times: float = 1.5, **fields: object) -> StoredPlan:
    return plan(plan=of, wall_us=100.0, best_default="inductor", best_default_us=100.0 * times, **fields)


def offered(*plans: StoredPlan, kinds: tuple[str, ...] | None = None, launch: str = "plain") -> list[Plan]:
    found = offers(plans, H100, Box(), launches={launch}, kinds=kinds)
    return [one.stored.plan for one in found]


def test_a_plan_of_another_machine_is_offered_with_what_is_other_there() -> None:
    (one,) = offers([won()], H100, Box(), launches={"plain"})
    assert str(one.differences[0]) == "GPU NVIDIA H200 -> NVIDIA H100 80GB HBM3"
    assert not one.is_of_this_machine


def test_those_of_this_machine_come_first_and_then_those_that_gained_most() -> None:
    old = won(BOTH, 1.1, environment=replace(H100, torch="2.10.0"))
    assert offered(won(CAUSAL, 1.3), won(NVFUSER, 1.6), old) == [BOTH, NVFUSER, CAUSAL]


@pytest.mark.parametrize(
    "stored",
    [
        won(INDUCTOR),
        won(Plan.named("nvfuser-greedy")),
        won(status="default"),
        won(status="quarantined"),
        won(word="disabled"),
        won(environment=CPU),
        won(sizes=Box.parse("s0=16..64")),
        won(launch="cudagraph"),
    ],
)
def test_what_is_no_offer(stored: StoredPlan) -> None:
    assert offered(stored) == []


def test_what_raced_or_failed_here_is_not_offered_again() -> None:
    lost = won(environment=H100, status="quarantined", detail="no faster here")
    assert offered(won(), lost) == []


def test_what_needs_an_executor_that_is_not_here_is_left_out() -> None:
    without = having(H100, nvfuser=None)
    assert offers([won(NVFUSER)], without, Box(), launches={"plain"}) == []


def test_kinds_that_are_forbidden_are_left_out() -> None:
    assert offered(won(), kinds=("matmul",)) == []
    assert offered(won(), kinds=("attention",)) == [CAUSAL]


def test_what_was_imported_for_here_is_offered_and_what_was_only_predicted_is_not() -> None:
    assert offered(won(environment=H100, status="unverified")) == [CAUSAL]
    predicted = plan(plan=CAUSAL, environment=H100, status="unverified", wall_us=None, predicted_us=90.0)
    assert offered(predicted) == []


def test_no_look_up_takes_it_be_it_asked_for_what_is_unverified(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tuning.db")
    store.add_plan(won())
    for unverified in (False, True):
        answer = store.find_plan(question(environment=H100, unverified=unverified))
        assert isinstance(answer, Miss)
        assert answer.reason == "other environment"
    assert isinstance(store.find_plan(question()), Hit)
    assert [one.stored.plan for one in offers_for(store, PROGRAM, H100, Box(), {"plain"})] == [CAUSAL]


def test_of_this_machine_the_latest_comes_first_whatever_others_gained() -> None:
    earlier = won(CAUSAL, 1.6, environment=replace(H100, torch="2.10.0"), changed_at="2026-01-01T00:00:00.000Z")
    latest = won(BOTH, 1.5, environment=replace(H100, torch="2.9.1"), changed_at="2026-06-01T00:00:00.000Z")
    assert offered(earlier, latest) == [BOTH, CAUSAL]


def test_where_all_is_tuned_again_what_won_here_is_offered_unless_it_failed() -> None:
    own = won(environment=H100)
    assert offered(own) == []
    assert [one.stored for one in offers([own], H100, Box(), launches={"plain"}, own=True)] == [own]
    failed = won(environment=H100, status="quarantined")
    assert offers([failed], H100, Box(), launches={"plain"}, own=True) == []
