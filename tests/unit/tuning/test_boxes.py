"""Which boxes of sizes are worth a plan: few, those that hold most of a program's time, and the same ones if counts change by a little."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from fuseplan.tuning.queue.boxes import MOST, SHARE, holding_most
from fuseplan.tuning_db import Box


def box(number: int) -> Box:
    return Box.of({"s0": (2**number + 1, 2 ** (number + 1))})


COSTS = st.dictionaries(st.integers(1, 40).map(box), st.floats(0.01, 1e6), max_size=30)


def test_of_nothing_nothing_is_worth_it() -> None:
    assert holding_most({}) == []


def test_equal_boxes_are_in_an_order_of_their_own() -> None:
    same = {box(number): 1.0 for number in (5, 2, 4, 3)}
    assert holding_most(same) == holding_most(dict(reversed(same.items()))) == sorted(same, key=lambda one: one.text)


@given(COSTS)
def test_they_hold_most_and_none_of_them_could_be_left_out(costs: dict[Box, float]) -> None:
    found, total = holding_most(costs), sum(costs.values())
    held = sum(costs[one] for one in found)
    assert len(found) == len(set(found)) <= MOST
    if len(found) < min(MOST, len(costs)):
        assert held >= SHARE * total * (1 - 1e-9)
    if len(found) > 1:
        assert held - costs[found[-1]] < SHARE * total * (1 + 1e-9)
    others = [costs[one] for one in costs if one not in found]
    assert not others or max(others) <= min(costs[one] for one in found)


@given(COSTS, st.integers())
def test_a_box_that_holds_much_stays_whatever_changes_by_a_little(costs: dict[Box, float], seed: int) -> None:
    random = Random(seed)
    changed = {one: cost * random.uniform(0.99, 1.01) for one, cost in costs.items()}
    total = sum(costs.values())
    assert {one for one in holding_most(costs) if costs[one] > total / 5} <= set(holding_most(changed))
