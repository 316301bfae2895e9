"""What the dashboard's pages compute, by hand: moves, regret, and verdicts on two sides."""

from __future__ import annotations

import pytest

from fuseplan.noise import ACROSS, RaceTime
from fuseplan.segment.moves import Move
from fuseplan.tuning_db.dashboard.pages.compare import ComparedProgram, lines_of
from fuseplan.tuning_db.dashboard.pages.program import worthiest_first
from fuseplan.tuning_db.dashboard.queries.model import Foretold
from fuseplan.tuning_db.dashboard.race import RaceLine, against, figure
from fuseplan.tuning_db.dashboard.regret import regrets
from fuseplan.tuning_db.pairs import PairKey


def test_a_ratio_is_of_blocks_that_ran_side_by_side() -> None:
    """The machine became twice as slow on the way: medians over all blocks would call the dropped one faster."""
    reference = RaceLine("default", True, wall_us=20.0, walls=(10.0, 10.0, 10.0, 20.0, 20.0, 20.0, 20.0))
    dropped = RaceLine("cut", wall_us=11.0, walls=(11.0, 11.0, 11.0))
    assert against(dropped, reference).ratio == pytest.approx(1.1)
    assert against(RaceLine("cut", wall_us=11.0), reference).ratio == pytest.approx(0.55)
    assert against(RaceLine("cut", status="error"), reference).ratio is None


def test_a_race_that_nobody_finished_is_not_drawn() -> None:
    assert figure([RaceLine("cut", status="timeout")], "inductor", 0.01) is None


def test_moves_stand_the_worthiest_first() -> None:
    twelve = Move("peel-head", region=7, role="backward", times=12, change_us=-1000.5)
    one, unknown = Move("split", (1, 2), 1, change_us=2.0), Move("evict", (3,))
    assert worthiest_first([unknown, one, twelve]) == (twelve, one, unknown)
    assert twelve.total_us == -12006.0


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


def side(us: float | None, noise: float | None = 0.0, plan: str | None = "p") -> ComparedProgram:
    return ComparedProgram("name", RaceTime(us, noise), None, plan)


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        (side(100.0), side(96.0), "faster"), (side(100.0), side(98.0), "same"), (side(96.0), side(100.0), "slower"),
        (side(100.0, 0.08), side(90.0, 0.1), "same"), (side(100.0), side(None), "not raced"), (None, side(1.0), "only in B"),
        (side(1.0), None, "only in A"), (side(0.0), side(1.0), "not raced"),
    ],
)  # fmt: skip
def test_a_verdict_needs_more_than_noise(a: ComparedProgram | None, b: ComparedProgram | None, verdict: str) -> None:
    key = PairKey("k", "plain", "")
    (line,) = lines_of({key: a} if a else {}, {key: b} if b else {})
    assert line.verdict == verdict
    assert line.pair.noise >= ACROSS


def test_another_plan_is_told_only_where_both_are_known() -> None:
    keys = [PairKey(name, "plain", "") for name in "abc"]
    before = {keys[0]: side(1.0), keys[1]: side(1.0), keys[2]: side(1.0, plan=None)}
    after = {keys[0]: side(1.0), keys[1]: side(1.0, plan="q"), keys[2]: side(1.0)}
    changed = {line.pair.key.program: line.changed for line in lines_of(before, after)}
    assert changed == {"a": "same", "b": "changed", "c": None}


@pytest.mark.parametrize("slowest", [1.2, 2.0, 10.0, 3000.0])
def test_every_plan_of_a_race_is_in_sight(slowest: float) -> None:
    reference = RaceLine("default", True, wall_us=100.0)
    lanes = [against(RaceLine(name, wall_us=us), reference) for name, us in (("a", 60.0), ("b", 100.0 * slowest))]
    drawn = figure([against(reference, reference), *lanes], "default", 0.01)
    assert drawn is not None
    axis = drawn.layout["xaxis"]
    low, high = (10**end for end in axis["range"]) if axis.get("type") == "log" else axis["range"]
    assert low < 0.6
    assert slowest < high < 3 * slowest
