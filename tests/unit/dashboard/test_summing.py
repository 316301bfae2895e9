"""What the dashboard's pages compute, by hand: intervals of races, moves, regret, and verdicts on two sides."""

from __future__ import annotations

import random

import pytest

from fuseplan.tuning_db.dashboard.moves import moves_of
from fuseplan.tuning_db.dashboard.pairs import ACROSS, Side, pairs_of
from fuseplan.tuning_db.dashboard.queries.model import Foretold
from fuseplan.tuning_db.dashboard.race import Lane, against, figure, interval
from fuseplan.tuning_db.dashboard.regret import regrets


def test_an_interval_holds_the_median_as_often_as_it_says() -> None:
    dice = random.Random(5)
    held = 0
    for _ in range(400):
        low, high = interval([dice.lognormvariate(0, 0.3) for _ in range(21)])
        assert low is not None
        assert high is not None
        held += low <= 1.0 <= high
    assert 0.93 <= held / 400 <= 0.995


@pytest.mark.parametrize(
    ("number", "sure"), [(5, (None, None)), (6, (0.0, 5.0)), (8, (0.0, 7.0)), (9, (1.0, 7.0)), (21, (5.0, 15.0))]
)
def test_an_interval_by_the_tables_of_the_sign_test(number: int, sure: tuple[float, float]) -> None:
    assert interval([float(value) for value in range(number)]) == sure


def test_a_ratio_is_of_blocks_that_ran_side_by_side() -> None:
    """The machine became twice as slow on the way: medians over all blocks would call the dropped one faster."""
    reference = Lane("default", "default", True, wall_us=20.0, walls=(10.0, 10.0, 10.0, 20.0, 20.0, 20.0, 20.0))
    dropped = Lane("cut", "loser", wall_us=11.0, walls=(11.0, 11.0, 11.0))
    assert against(dropped, reference).ratio == pytest.approx(1.1)
    assert against(Lane("cut", "loser", wall_us=11.0), reference).ratio == pytest.approx(0.55)
    assert against(Lane("cut", "loser", "error"), reference).ratio is None


def test_a_race_that_nobody_finished_is_not_drawn() -> None:
    assert figure([Lane("cut", "loser", "timeout")], "inductor", 0.01) is None


def test_moves_are_read_back_the_worthiest_first() -> None:
    lines = "forward: evict op 3\nforward: +2.0 µs: split 1..4\nbackward: 12 × -1,000.5 µs: merge-up op 7, and the like\nodd"
    found = moves_of(lines)
    assert [(move.role, move.times, move.change_us, move.text) for move in found] == [
        ("backward", 12, -12006.0, "merge-up op 7, and the like"),
        ("forward", 1, 2.0, "split 1..4"),
        ("forward", 1, None, "evict op 3"),
        ("", 1, None, "odd"),
    ]


def measured(region: int, executor: str, device: float, predicted: float, run: int = 1) -> Foretold:
    return Foretold(executor, "default", region, run, device, predicted, None)


def test_regret_falls_as_what_seemed_best_is_measured() -> None:
    """Region 1 seems best under a (10 where b takes 5); region 2 is right from the start; of region 3 there is no choice."""
    found = [
        measured(2, "a", 20.0, 21.0),
        measured(2, "b", 30.0, 28.0),
        measured(1, "a", 10.0, 4.0),
        measured(1, "b", 5.0, 6.0),
        measured(3, "a", 70.0, 1.0),
    ]
    curve = regrets(found)
    assert [one.spent for one in curve] == [0, 1, 2, 3, 4, 5]
    # Once a is known to take 10, b seems better with its predicted 6, and is.
    assert [one.median for one in curve] == pytest.approx([5 / 25, 5 / 25, 5 / 25, 0.0, 0.0, 0.0])


def test_regret_of_several_runs_is_their_middle() -> None:
    wrong = [measured(1, "a", 10.0, 4.0, run=1), measured(1, "b", 5.0, 6.0, run=1)]
    right = [measured(1, "a", 5.0, 4.0, run=2), measured(1, "b", 10.0, 6.0, run=2)]
    assert regrets([*wrong, *right])[0].median == pytest.approx(0.5)
    assert regrets([]) == ()


def side(us: float | None, noise: float | None = 0.0, plan: str | None = "p") -> Side:
    return Side("name", us, noise, None, None, "tuned", plan)


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        (side(100.0), side(96.0), "faster"), (side(100.0), side(98.0), "same"), (side(96.0), side(100.0), "slower"),
        (side(100.0, 8.0), side(90.0, 9.0), "same"), (side(100.0), side(None), "not raced"), (None, side(1.0), "only in B"),
        (side(1.0), None, "only in A"), (side(0.0), side(1.0), "not raced"),
    ],
)  # fmt: skip
def test_a_verdict_needs_more_than_noise(a: Side | None, b: Side | None, verdict: str) -> None:
    key = ("k", "plain", "", "", "the plan")
    (pair,) = pairs_of({key: a} if a else {}, {key: b} if b else {})
    assert pair.verdict == verdict
    assert pair.band >= ACROSS


def test_another_plan_is_told_only_where_both_are_known() -> None:
    keys = [(name, "plain", "", "", "the plan") for name in "abc"]
    before = {keys[0]: side(1.0), keys[1]: side(1.0), keys[2]: side(1.0, plan=None)}
    after = {keys[0]: side(1.0), keys[1]: side(1.0, plan="q"), keys[2]: side(1.0)}
    assert {pair.program: pair.changed for pair in pairs_of(before, after)} == {"a": False, "b": True, "c": None}


@pytest.mark.parametrize("slowest", [1.2, 2.0, 10.0, 3000.0])
def test_every_plan_of_a_race_is_in_sight(slowest: float) -> None:
    reference = Lane("default", "default", True, wall_us=100.0)
    lanes = [against(Lane(name, "loser", wall_us=us), reference) for name, us in (("a", 60.0), ("b", 100.0 * slowest))]
    drawn = figure([against(reference, reference), *lanes], "default", 0.01)
    assert drawn is not None
    axis = drawn.layout["xaxis"]
    low, high = (10**end for end in axis["range"]) if axis.get("type") == "log" else axis["range"]
    assert low < 0.6
    assert slowest < high < 3 * slowest
