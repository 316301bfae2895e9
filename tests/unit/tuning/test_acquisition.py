"""What a measurement is worth: nothing where it changes no plan, the most where the most time hangs on it."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from fuseplan.segment import Choice
from fuseplan.tuning.program.acquisition import (
    AUDITED,
    AUDITED_FROM,
    Estimate,
    RegionChoice,
    Unit,
    Units,
    expected_losses,
    pick,
)
from fuseplan.tuning.program.spending import seconds_for

ATEN, INDUCTOR, NVFUSER = ("aten", "default"), ("inductor", "default"), ("nvfuser", "default")


def unit(key: str, calls: int = 1, **ways: Estimate) -> Unit:
    return Unit(key, calls, {(name, "default"): way for name, way in ways.items()})


def test_what_is_measured_is_worth_nothing_more() -> None:
    assert expected_losses([[unit("a", inductor=Estimate(10.0), nvfuser=Estimate(10.0))]]) == {}


def test_what_is_decided_is_not_measured() -> None:
    decided = unit("a", inductor=Estimate(10.0, 0.1), nvfuser=Estimate(15.0, 0.1))
    assert expected_losses([[decided]]) == {("a", INDUCTOR): 0.0, ("a", NVFUSER): 0.0}
    open_ = unit("a", inductor=Estimate(10.0, 0.1), nvfuser=Estimate(11.0, 0.1))
    assert all(value > 0 for value in expected_losses([[open_]]).values())


def test_what_is_unsure_is_measured_though_it_seems_decided() -> None:
    ways = {"inductor": Estimate(10.0, 0.1), "nvfuser": Estimate(15.0, 0.1, unsure=True)}
    values = expected_losses([[unit("a", **ways)]])
    assert values["a", NVFUSER] > 0


def test_what_is_immaterial_is_not_measured_however_much_in_doubt() -> None:
    small = unit("small", inductor=Estimate(0.1, 0.3), nvfuser=Estimate(0.1, 0.3))
    large = unit("large", inductor=Estimate(1000.0))
    assert set(expected_losses([[small, large]]).values()) == {0.0}
    assert all(value > 0 for value in expected_losses([[small]]).values())


def test_the_same_doubt_counts_for_more_where_it_is_called_more_often() -> None:
    ways = {"inductor": Estimate(10.0, 0.1), "nvfuser": Estimate(10.5, 0.1)}
    values = expected_losses([[unit("once", **ways), *(unit("often", **ways) for _ in range(12))]])
    assert values["often", NVFUSER] == pytest.approx(12 * values["once", NVFUSER])
    assert values["once", NVFUSER] > 0


def test_only_what_two_plans_do_not_share_tells_them_apart() -> None:
    shared = unit("shared", inductor=Estimate(50.0, 0.2))
    whole = unit("whole", inductor=Estimate(20.0, 0.2))
    parts = [unit("first", inductor=Estimate(11.0, 0.2)), unit("second", inductor=Estimate(11.0))]
    values = expected_losses([[shared, whole], [shared, *parts]])
    assert values["shared", INDUCTOR] == 0
    assert values["whole", INDUCTOR] > values["first", INDUCTOR] > 0


def test_a_plan_that_cannot_be_the_best_asks_for_nothing() -> None:
    good, bad = unit("good", inductor=Estimate(10.0, 0.05)), unit("bad", inductor=Estimate(20.0, 0.05))
    assert expected_losses([[good], [bad]]) == {("good", INDUCTOR): 0.0, ("bad", INDUCTOR): 0.0}


def test_what_may_fail_is_tried_where_the_next_best_is_far() -> None:
    risky = Estimate(10.0, 0.01, failing=0.1)
    values = expected_losses([[unit("a", nvfuser=risky, aten=Estimate(30.0))]])
    assert values["a", NVFUSER] == 0.1 * (30.0 - 10.0)


def test_cheap_measurements_come_first() -> None:
    ways = {"inductor": Estimate(10.0), "nvfuser": Estimate(10.0, 0.2, seconds=1.0)}
    dear = {**ways, "nvfuser": Estimate(10.0, 0.2, seconds=9.0)}
    found = pick([[unit("dear", **dear), unit("cheap", **ways)]], 8)
    assert [key for key, _ in found.wanted] == ["cheap", "dear"]


def test_of_kin_one_is_measured_at_a_time_with_all_that_is_asked_of_it() -> None:
    ways = {"aten": Estimate(10.0, 0.3), "inductor": Estimate(10.0, 0.2)}
    plan = [
        replace(unit(key, **ways), kin=kin) for key, kin in (("a", 1), ("b", 1), ("c", 2), ("d", None), ("e", None))
    ]
    found = {key: {choice for other, choice in pick([plan], 99).wanted if other == key} for key in "abcde"}
    assert {key: len(choices) for key, choices in found.items()} == {"a": 2, "b": 0, "c": 2, "d": 2, "e": 2}


def test_what_costs_next_to_nothing_is_not_free() -> None:
    """Else all such are measured before the first that is worth more."""
    much = unit("much", inductor=Estimate(10.0), nvfuser=Estimate(10.0, 0.2, seconds=seconds_for(NVFUSER)))
    little = unit("little", inductor=Estimate(8.0), aten=Estimate(8.0, 0.2, seconds=seconds_for(ATEN)))
    assert [key for key, _ in pick([[much, little]], 8).wanted] == ["much", "little"]
    assert [key for key, _ in pick([[much, little]], 8, rule=lambda seconds: seconds).wanted] == ["little", "much"]


def test_a_few_of_those_that_are_skipped_are_audited_always_the_same() -> None:
    skipped = [unit(f"s{i}", inductor=Estimate(0.01, 0.3)) for i in range(100)]
    asked = [unit(f"a{i}", inductor=Estimate(10.0), nvfuser=Estimate(10.0, 0.2)) for i in range(10)]
    audits: list[RegionChoice] = []
    measured = 0
    for _ in range(20):
        found = pick([[*asked, *skipped]], 10, measured=measured, audited=len(audits))
        assert found == pick([[*asked, *skipped]], 10, measured=measured, audited=len(audits))
        audits += found.audit
        measured += len(found.wanted) + len(found.audit)
    assert 0.02 <= len(audits) / measured <= 0.05
    assert abs(len(audits) - AUDITED * measured) < 2


@pytest.mark.parametrize("seed", range(8))
def test_a_small_run_is_audited_too(seed: int) -> None:
    asked = [unit(f"a{i}", inductor=Estimate(10.0), nvfuser=Estimate(10.0, 0.2)) for i in range(4)]
    skipped = unit("s", inductor=Estimate(0.01, 0.3))
    plan = [*asked, skipped]
    first = pick([plan], 4, measured=AUDITED_FROM - 4, seed=seed)
    assert first.audit == (("s", INDUCTOR),)
    assert pick([plan], 4, measured=AUDITED_FROM - 4, audited=1, seed=seed).audit == ()
    assert pick([[*asked]], 4, measured=AUDITED_FROM - 4, seed=seed).audit == ()  # nothing was skipped
    late = pick([[skipped]], 4, measured=AUDITED_FROM, seed=seed)
    assert (late.wanted, late.audit) == ((), (("s", INDUCTOR),))  # what is due is drawn though nothing else is left


class World:
    """Ten places of a program that can be cut in three ways each; a model knows the times up to some doubt."""

    def __init__(self, seed: int, spread: float) -> None:
        chance = random.Random(seed)
        self.truth: dict[RegionChoice, float] = {}
        self.told: dict[RegionChoice, float] = {}
        self.spread = spread
        self.cuts = [[[f"{place} whole"], [f"{place} a", f"{place} b"], [f"{place} c"]] for place in range(10)]
        for cuts in self.cuts:
            size = 10.0 ** chance.uniform(0, 2)
            for keys in cuts:
                for key in keys:
                    for choice in (ATEN, INDUCTOR, NVFUSER):
                        true = size / len(keys) * math.exp(chance.gauss(0.0, 0.4))
                        self.truth[key, choice] = true
                        self.told[key, choice] = true * math.exp(chance.gauss(0.0, spread))

    def unit(self, key: str, known: set[RegionChoice]) -> Unit:
        ways: dict[Choice, Estimate] = {}
        for choice in (ATEN, INDUCTOR, NVFUSER):
            asked = (key, choice)
            ways[choice] = Estimate(self.truth[asked]) if asked in known else Estimate(self.told[asked], self.spread)
        return Unit(key, 1, ways)

    def plans(self, known: set[RegionChoice]) -> list[Units]:
        """The best cut of each place, and all that differ from it in one place."""
        ways = [[[self.unit(key, known) for key in keys] for keys in cuts] for cuts in self.cuts]
        ranked = [sorted(one, key=lambda units: sum(unit.best.us for unit in units)) for one in ways]
        best = [one[0] for one in ranked]
        others = [[*best[:i], way, *best[i + 1 :]] for i, one in enumerate(ranked) for way in one[1:]]
        return [[unit for units in plan for unit in units] for plan in (best, *others)]

    def regret(self, known: set[RegionChoice]) -> float:
        """How much longer what is believed to be the best takes than what is."""
        (best, *_) = self.plans(known)
        (ideal, *_) = self.plans(set(self.truth))
        return sum(self.truth[u.key, u.chosen] for u in best) / sum(u.best.us for u in ideal) - 1


def test_a_fifth_of_the_measurements_leaves_little_regret() -> None:
    before, after, share = [], [], []
    for seed in range(20):
        world, known = World(seed, 0.15), set[RegionChoice]()
        before.append(world.regret(known))
        while found := pick(world.plans(known), 4).wanted:
            known.update(found)
            if len(known) >= 0.2 * len(world.truth):
                break
        after.append(world.regret(known))
        share.append(len(known) / len(world.truth))
    mean = [sum(one) / len(one) for one in (before, after, share)]
    assert mean[0] > 0.02
    assert mean[1] < 0.005
    assert mean[2] <= 0.25
