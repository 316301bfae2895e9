"""The race: who wins, who is dropped and when, on clocks whose noise is known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuseplan.errors import OptionError
from fuseplan.measure.jobs import PLAN_RULE, REGION_RULE
from fuseplan.measure.race import AGAIN, LaneError, RaceResult, ReplayClock, Rule, Sample, race
from fuseplan.noise import NOISY
from fuseplan.wire import codec


def sample(device: float, host: float = 1.0, seconds: float = 0.0) -> Sample:
    return Sample(device, host, device, seconds)


class NoisyClock:
    """Times with a drift that all candidates share from one block to the next, and noise of their own."""

    def __init__(self, true: dict[str, float], noise: float, seed: int, drift: float = 0.0) -> None:
        self.true, self.noise, self.drift = true, noise, drift
        self.random = random.Random(seed)
        self.blocks: list[str] = []

    def block(self, name: str) -> Sample:
        self.blocks.append(name)
        shared = 1 + self.drift * len(self.blocks)
        return sample(self.true[name] * shared * self.random.gauss(1.0, self.noise))


def test_the_fastest_wins_by_more_than_noise() -> None:
    clock = NoisyClock({"default": 100.0, "a": 97.0, "b": 80.0, "c": 250.0}, noise=0.01, seed=1)
    result = race(["default", "a", "b", "c"], clock, incumbent="default")
    assert result.winner == "b"
    assert result.lane("b").ratio == pytest.approx(0.8, abs=0.02)
    assert result.lane("b").low < 0.8 < result.lane("b").high  # type: ignore[operator]
    assert result.noise < 0.05


def test_equals_go_to_the_incumbent() -> None:
    wins = 0
    for seed in range(40):
        clock = NoisyClock(dict.fromkeys("abcd", 100.0), noise=0.02, seed=seed)
        wins += race(list("abcd"), clock, incumbent="c", rule=Rule(seed=seed)).winner != "c"
    assert wins <= 2  # three candidates, 40 races, and each has to be surely better by more than the noise


def test_a_gain_below_the_floor_is_no_gain() -> None:
    clock = ReplayClock({"default": [sample(100.0)], "new": [sample(99.9)]})
    assert race(["default", "new"], clock, incumbent="default").winner == "default"
    assert race(["default", "new"], clock, incumbent="default", rule=Rule(floor=0.0005)).winner == "new"


def test_a_drift_that_all_share_decides_nothing() -> None:
    clock = NoisyClock({"default": 100.0, "new": 100.0}, noise=0.001, seed=0, drift=0.01)
    assert race(["default", "new"], clock, incumbent="default").winner == "default"


def test_of_two_that_tie_the_earlier_wins() -> None:
    clock = ReplayClock({"default": [sample(100.0)], "b": [sample(80.01)], "a": [sample(80.0)]})
    assert race(["default", "b", "a"], clock, incumbent="default").winner == "b"
    assert race(["default", "a", "b"], clock, incumbent="default").winner == "a"


def test_the_hopeless_leave_at_once_and_the_slower_once_it_is_sure() -> None:
    clock = NoisyClock({"default": 100.0, "slow": 115.0, "hopeless": 300.0}, noise=0.01, seed=3)
    result = race(["default", "slow", "hopeless"], clock, incumbent="default")
    assert result.lane("hopeless").dropped == 2
    assert result.lane("slow").dropped == 7
    assert result.rounds == 7  # nobody is left to race
    assert clock.blocks.count("hopeless") == 2
    assert clock.blocks.count("default") == 14  # with its duplicate


SHORT = Rule(least=6, most=6, floor=0.02)


def disturbed(us: float, rounds: int, at: int) -> list[Sample]:
    """The blocks of one round took half as long again."""
    return [sample(1.5 * us if i == at else us) for i in range(rounds)]


def test_one_disturbed_block_hides_no_winner_where_more_rounds_may_follow() -> None:
    lanes = {"default": [sample(110.0)], "new": disturbed(97.0, 12, 0)}
    assert race(["default", "new"], ReplayClock(lanes), incumbent="default", rule=SHORT).winner == "default"
    result = race(["default", "new"], ReplayClock(lanes), incumbent="default", rule=replace(SHORT, doubtful=6))
    assert result.winner == "new"
    assert 6 < result.rounds <= 12


@pytest.mark.parametrize("new", [112.0, 109.0, 90.0], ids=["slower", "as fast", "surely faster"])
def test_no_more_rounds_follow_without_doubt(new: float) -> None:
    lanes = {"default": [sample(110.0)], "new": [sample(new)]}
    result = race(["default", "new"], ReplayClock(lanes), incumbent="default", rule=replace(SHORT, doubtful=6))
    assert result.rounds <= 6
    assert result.winner == ("new" if new < 100 else "default")


def test_doubt_ends_when_its_rounds_are_through() -> None:
    """Whatever of the new one is fast, half of it is not: it is waited for longest where it would be worth most."""
    lanes = {"default": [sample(110.0)], "new": [sample(us) for us in (90.0, 90.0, 90.0, 130.0, 130.0)]}
    result = race(["default", "new"], ReplayClock(lanes), incumbent="default", rule=replace(SHORT, doubtful=6))
    assert result.rounds == 24
    assert result.winner == "default"


@pytest.mark.parametrize("limit_s", [None, 0.6], ids=["rounds", "seconds"])
def test_what_is_far_ahead_is_not_lost_to_the_first_seconds(limit_s: float | None) -> None:
    """While the rounds of a short race last a compiler is at work; its time is over before it shows what is faster."""

    def lane(us: float, disturbed: set[int]) -> list[Sample]:
        return [replace(sample(1.3 * us if i in disturbed else us), seconds=0.05) for i in range(30)]

    lanes = {"default": lane(110.0, {1, 4, 6, 9, 13, 17}), "new": lane(97.0, {0, 2, 5, 7})}
    rule = replace(SHORT, seconds=limit_s)
    assert race(["default", "new"], ReplayClock(lanes), incumbent="default", rule=rule).winner == "default"
    result = race(["default", "new"], ReplayClock(lanes), incumbent="default", rule=replace(rule, doubtful=6))
    assert result.winner == "new"
    assert 12 < result.rounds <= 24


def test_the_longest_race_ends_in_doubt() -> None:
    lanes = {
        "default": [replace(sample(100.0), seconds=0.1)],
        "new": [replace(sample(us), seconds=0.1) for us in (90.0, 90.0, 90.0, 130.0, 130.0)],
    }
    rule = replace(SHORT, doubtful=6, seconds=3.0)
    assert race(["default", "new"], ReplayClock(lanes), incumbent="default", rule=rule).rounds == 24
    rule = replace(rule, longest=5.0)
    assert race(["default", "new"], ReplayClock(lanes), incumbent="default", rule=rule).rounds == 17


def test_what_is_little_ahead_is_not_waited_for_as_long() -> None:
    lanes = {"default": [sample(100.0)], "new": [sample(us) for us in (97.5, 97.5, 97.5, 110.0, 110.0)]}
    result = race(["default", "new"], ReplayClock(lanes), incumbent="default", rule=replace(SHORT, doubtful=6))
    assert result.rounds == 12


def test_with_more_rounds_equals_still_go_to_the_incumbent() -> None:
    wins = 0
    for seed in range(60):
        clock = NoisyClock(dict.fromkeys("abc", 100.0), noise=0.04, seed=seed)
        rule = replace(SHORT, doubtful=6, seed=seed)
        wins += race(list("abc"), clock, incumbent="b", rule=rule).winner != "b"
    assert wins <= 3


def test_who_is_spared_is_timed_to_the_end_and_wins_no_more_than_others() -> None:
    clock = NoisyClock({"default": 100.0, "lean": 300.0, "hopeless": 300.0}, noise=0.01, seed=3)
    result = race(["default", "lean", "hopeless"], clock, incumbent="default", rule=Rule(spared=("lean",)))
    assert (result.lane("lean").dropped, result.lane("hopeless").dropped) == (None, 2)
    assert len(result.lane("lean").samples) == result.rounds
    assert result.winner == "default"


def test_the_incumbent_stays_however_slow_it_is() -> None:
    clock = NoisyClock({"default": 1000.0, "a": 100.0, "b": 99.9}, noise=0.01, seed=3)
    result = race(["default", "a", "b"], clock, incumbent="default")
    assert result.lane("default").dropped is None
    assert len(result.lane(AGAIN).samples) == result.rounds


def test_each_round_has_all_lanes_in_a_new_order() -> None:
    clock = NoisyClock(dict.fromkeys("abc", 100.0), noise=0.01, seed=0)
    race(list("abc"), clock, incumbent="a", rule=Rule(most=9))
    rounds = [clock.blocks[i : i + 4] for i in range(0, 36, 4)]
    assert all(sorted(one) == ["a", "a", "b", "c"] for one in rounds)
    assert len({tuple(one) for one in rounds}) > 3


def test_of_two_times_neither_alone_drops() -> None:
    both = Rule(by=("device_us", "host_us"))
    times = {"default": [sample(100.0, 10.0)], "frugal": [sample(120.0, 5.0)], "worse": [sample(120.0, 12.0)]}
    result = race(list(times), ReplayClock(times), incumbent="default", rule=both)
    assert result.lane("frugal").dropped is None
    assert result.lane("worse").dropped == 7
    assert result.winner == "default"
    alone = race(list(times), ReplayClock(times), incumbent="default", rule=Rule(by=("device_us",)))
    assert alone.lane("frugal").dropped == 7


def test_a_race_ends_when_all_that_are_left_are_alike_and_beat_the_incumbent() -> None:
    def rounds(true: dict[str, float], alike: float, noise: float = 0.003) -> int:
        clock = NoisyClock(true, noise=noise, seed=3)
        return race(list(true), clock, incumbent="default", rule=Rule(least=12, most=60, alike=alike)).rounds

    equal = {"default": 100.0, "a": 80.0, "b": 80.05, "c": 80.0}
    assert rounds(equal, alike=0.01) < 20
    assert rounds(equal, alike=0.0) == 60
    assert rounds(equal, alike=0.01, noise=0.05) > 20, "who knows which is the best"
    assert rounds({**equal, "default": 80.0}, alike=0.01) == 60, "who knows whether any is better"


@pytest.mark.parametrize("seed", range(10))
def test_a_race_that_ends_early_finds_what_is_as_fast(seed: int) -> None:
    true = {"default": 100.0, "a": 80.4, "b": 80.0, "c": 80.3, "d": 95.0}
    winner = race(
        list(true), NoisyClock(true, 0.004, seed), incumbent="default", rule=replace(PLAN_RULE, most=60)
    ).winner
    assert true[winner] <= 80.0 * 1.01


def test_a_budget_ends_a_race_after_its_least_rounds() -> None:
    times = {"default": [sample(100.0, seconds=1.0)], "new": [sample(100.0, seconds=1.0)]}
    assert race(list(times), ReplayClock(times), incumbent="default", rule=Rule(seconds=30.0)).rounds == 11
    assert race(list(times), ReplayClock(times), incumbent="default", rule=Rule(seconds=1.0)).rounds == 7


def test_two_blocks_in_which_the_host_was_busy_are_no_noise() -> None:
    """In the shortest race of whole plans: what one has too many would else keep all that is faster from winning."""

    class Hiccups(NoisyClock):
        def block(self, name: str) -> Sample:
            taken = super().block(name)
            busy = name == "default" and self.blocks.count(name) in (3, 8)
            return replace(taken, wall_us=(1.4 if busy else 1.0) * taken.wall_us, seconds=1.0)

    def raced(rule: Rule) -> RaceResult:
        clock = Hiccups({"default": 100.0, "new": 90.0}, noise=0.002, seed=1)
        return race(["default", "new"], clock, incumbent="default", rule=replace(rule, seconds=1.0))

    result = raced(PLAN_RULE)
    assert result.rounds == PLAN_RULE.least
    assert (result.winner, result.noise < 0.02) == ("new", True)
    assert raced(replace(PLAN_RULE, least=7)).winner == "default"


def test_the_median_noise_of_a_race_is_large_only_where_half_of_its_rounds_are_off() -> None:
    def raced(*device_us: float) -> tuple[bool, float]:
        clock = ReplayClock({"default": [sample(us) for us in device_us]})
        result = race(["default"], clock, incumbent="default", rule=replace(REGION_RULE, least=7, most=7))
        return result.noise > NOISY, result.median_noise("device_us")

    assert raced(10.0) == (False, 0.0)
    assert raced(*[10.0] * 4, 40.0, *[10.0] * 5, 40.0, *[10.0] * 3) == (True, 0.0), "two blocks of fourteen"
    assert raced(10.0, 90.0) == (True, pytest.approx(8.0))


def test_too_few_rounds_to_be_sure_decide_nothing() -> None:
    clock = NoisyClock({"default": 100.0, "new": 80.0}, noise=0.01, seed=1)
    result = race(["default", "new"], clock, incumbent="default", rule=Rule(least=2, most=2))
    assert (result.winner, result.lane("new").low) == ("default", None)
    assert 0 < result.noise < 0.1


class FailingClock(ReplayClock):
    """One candidate fails at its second block."""

    def __init__(self, fails: str) -> None:
        super().__init__({"default": [sample(100.0)], "new": [sample(50.0)]})
        self.fails = fails

    def block(self, name: str) -> Sample:
        if name == self.fails and self.next[name] == 1:
            raise LaneError("out-of-memory", "no memory")
        return super().block(name)


def test_a_candidate_that_fails_on_the_way_is_out() -> None:
    result = race(["default", "new"], FailingClock("new"), incumbent="default")
    assert (result.winner, result.lane("new").status, result.lane("new").detail) == (
        "default",
        "out-of-memory",
        "no memory",
    )
    with pytest.raises(LaneError, match="no memory"):
        race(["default", "new"], FailingClock("default"), incumbent="default")


@pytest.mark.parametrize("names", [["a", "b"], ["a", "a", "c"], [AGAIN, "c"]])
def test_names_are_checked(names: Sequence[str]) -> None:
    with pytest.raises(OptionError):
        race(names, ReplayClock({}), incumbent="c")


def test_a_rule_is_checked() -> None:
    with pytest.raises(OptionError, match="goes by"):
        Rule(by=("wall",))
    with pytest.raises(OptionError, match="at least one round"):
        Rule(least=5, most=4)


times = st.floats(0.01, 1e7).map(lambda us: round(us, 3))
stored = st.dictionaries(
    st.sampled_from("abcde"),
    st.lists(st.builds(Sample, times, times, times, st.just(0.0)), min_size=1, max_size=25),
    min_size=1,
)


@settings(max_examples=60)
@given(stored, st.integers(0, 3))
def test_the_same_samples_give_the_same_result_to_the_byte(samples: dict[str, list[Sample]], seed: int) -> None:
    names = sorted(samples)
    rule = Rule(by=("device_us", "host_us"), most=12, seed=seed)
    results = [race(names, ReplayClock(samples), incumbent=names[0], rule=rule) for _ in range(2)]
    texts = [codec.to_json(result) for result in results]
    assert texts[0] == texts[1]
    assert codec.from_json(RaceResult, texts[0]) == results[0]
    again = ReplayClock({lane.name: lane.samples for lane in results[0].lanes})
    merged = again.samples[names[0]] + again.samples.pop(AGAIN)
    assert sorted(merged, key=repr) == sorted(
        (samples[names[0]] * 25)[: 2 * results[0].rounds], key=repr
    )  # every block of the incumbent is kept, whichever lane it was for
    assert results[0].winner in names


@pytest.mark.parametrize(
    ("times", "busy"), [((1.0, 1.1, 0.6), False), ((1.0, 40.0, 1.0), False), ((40.0, 30.0, 1.0), True)]
)
def test_threads_that_wait_for_cores_are_noise_however_alike_the_times(times: tuple[float, ...], busy: bool) -> None:
    """Of a machine that is busy all the while each round is as slow as the next, and who wins is who was held up the least."""
    slow = [Sample(1e5, 0.0, 1e5, 0.1, one) for one in times]
    clock = ReplayClock({"inductor": slow, "eager": [replace(one, wall_us=8e4) for one in slow]})
    result = race(["inductor", "eager"], clock, incumbent="inductor")
    assert (result.noise > NOISY) is busy
    assert (result.median_noise("wall_us") > NOISY) is busy
