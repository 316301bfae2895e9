"""TimedRounds of a guard: whose turn it is, and what is made of the times, all of which are given here."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from fuseplan.guard.rounds import DEFAULT, PLAN, Finding, Pace, TimedRounds, Turn

PACE = Pace(rounds=16, unheeded=2)


def turns(rounds: TimedRounds, many: int, sizes: object = "one size") -> list[Turn]:
    return [rounds.turn(sizes) for _ in range(many)]


def after(rounds: TimedRounds, many: int, us: Callable[[str], float]) -> Finding | None:
    """What is found once so many rounds are over."""
    for turn in turns(rounds, 4 * many):
        rounds.hear(turn, us(turn.side))
    return rounds.finding()


def noisily(plan: float, default: float, noise: float, seed: int = 3) -> Callable[[str], float]:
    draw = random.Random(seed)
    return lambda side: (plan if side == PLAN else default) * draw.lognormvariate(0, noise)


def test_plan_and_default_take_turns_so_that_drift_cancels_out() -> None:
    rounds = TimedRounds(PACE)
    assert [turn.side for turn in turns(rounds, 8)] == [PLAN, DEFAULT, DEFAULT, PLAN, DEFAULT, PLAN, PLAN, DEFAULT]
    clock = iter(range(1000, 10_000))
    found = after(TimedRounds(Pace(rounds=2, unheeded=0)), 2, lambda _: float(next(clock)))
    assert found is not None
    assert found.comparison == "same"
    assert abs(found.speedup - 1) < 1e-5


@pytest.mark.parametrize(
    ("plan", "expected"), [(80.0, "faster"), (99.5, "same"), (100.5, "same"), (103.0, "slower"), (150.0, "slower")]
)
def test_a_difference_counts_that_is_sure_and_beyond_the_noise(plan: float, expected: str) -> None:
    found = after(TimedRounds(PACE), 18, noisily(plan, 100.0, 0.005))
    assert found is not None
    assert found.comparison == expected
    assert abs(found.speedup - 100 / plan) < 0.01
    assert found.rounds == 16


def test_where_calls_differ_much_a_small_difference_does_not_count() -> None:
    found = after(TimedRounds(PACE), 18, noisily(103.0, 100.0, 0.3))
    assert found is not None
    assert found.comparison == "same"
    assert found.noise > 0.05


@pytest.mark.parametrize("noise", [0.002, 0.05, 0.5])
def test_what_is_as_fast_is_hardly_ever_called_slower(noise: float) -> None:
    """2,000 looks each: nobody wants a plan taken back by chance."""
    rounds, us = TimedRounds(PACE), noisily(100.0, 100.0, noise)
    found = [after(rounds, 1, us) for _ in range(2018)]
    assert sum(one is not None and one.comparison == "slower" for one in found) == 0


def test_nothing_is_found_before_there_are_enough_rounds_and_the_first_do_not_count() -> None:
    rounds = TimedRounds(PACE)
    assert after(rounds, 2, noisily(1e6, 1.0, 0.0)) is None  # compiling, capturing
    assert after(rounds, 15, noisily(100.0, 150.0, 0.0)) is None
    found = after(rounds, 1, noisily(100.0, 150.0, 0.0))
    assert found is not None
    assert (found.comparison, found.plan_us, found.default_us) == ("faster", 100.0, 150.0)


def test_a_plan_that_becomes_slower_is_found_within_the_rounds_of_one_decision() -> None:
    rounds = TimedRounds(PACE)
    found = after(rounds, 40, noisily(100.0, 150.0, 0.01))
    assert found is not None
    assert found.comparison == "faster"
    found = after(rounds, PACE.rounds, noisily(170.0, 150.0, 0.01))
    assert found is not None
    assert found.comparison == "slower"


def test_calls_of_other_sizes_are_compared_with_their_own_kind() -> None:
    rounds = TimedRounds(PACE)
    for number in range(18 * 4 * 3):
        scale = (1.0, 7.0, 40.0)[number % 3]
        turn = rounds.turn(scale)
        rounds.hear(turn, scale * (100.0 if turn.side == PLAN else 110.0))
    found = rounds.finding()
    assert found is not None
    assert found.comparison == "faster"
    assert abs(found.speedup - 1.1) < 1e-6


def test_a_round_of_which_a_time_is_never_known_does_not_count_and_changes_no_turn() -> None:
    """Of several ranks, one may lose a time that the others know: all go on alike."""
    rounds, others = TimedRounds(Pace(rounds=1, unheeded=0)), TimedRounds(Pace(rounds=1, unheeded=0))
    first = turns(rounds, 4)
    for turn in (first[0], *first[2:]):
        assert not rounds.hear(turn, 5.0)
    assert not rounds.is_full
    second = turns(rounds, 4)
    assert [turn.side for turn in (*first, *second)] == [turn.side for turn in turns(others, 8)]
    for turn in second:
        rounds.hear(turn, 5.0)
    assert rounds.is_full


def test_sizes_that_never_come_again_are_forgotten() -> None:
    rounds = TimedRounds(PACE)
    for size in range(10_000):
        rounds.turn(size)
    assert len(rounds._open) <= 64
    assert len(rounds._begun) <= 64
