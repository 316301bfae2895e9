"""The race: short shuffled blocks of all candidates beside the incumbent and the incumbent again, losers dropped.

Two windows of identical code differ by 1 to 3 %, so that only what ran side by side is compared: the difference of two
candidates is the median of their paired differences, and the incumbent's difference from itself is the noise. Nothing
here asks the time: the same samples give the same result.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol

from fuseplan.errors import FuseplanError, OptionError
from fuseplan.noise import ACROSS, FLOOR, SURE, Comparison, bounds, judged, noise_of, surely_slower
from fuseplan.tuning_db.records import Repeats

AGAIN = "incumbent again"
"""The lane of the incumbent's duplicate."""
METRICS = ("device_us", "host_us", "wall_us")
HEATS = 2
"""Blocks of each rival before a race, of which the faster counts: they say who takes the incumbent's part."""
LONGER = 3
"""How many times as long it is worth to be in doubt about a gain that no two timings of one plan differ by."""
SURELY = 0.99
"""The confidence with which a race of several ends before its time."""
HELD_UP = 3.0
"""A block that takes so many times as long as its process computes says nothing of what was timed: its threads waited for cores, or for each
other while these did."""
_LEAST_US = 1e-3
"""What a time counts for at least, so that it has a logarithm: a CPU has no host time of its own."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The time of one call, in µs, as the mean over one block of them; `seconds` is what taking the block cost."""

    device_us: float
    host_us: float
    wall_us: float
    seconds: float = 0.0
    held_up: float = 0.0
    """On a CPU, how many times as long the block took as all threads of its process computed together: by what else the machine does."""

    def rounded(self) -> Sample:
        """To the nanosecond, as it is stored: a race run again from the database must come out the same."""
        device_us, host_us, wall_us = (round(us, 3) for us in (self.device_us, self.host_us, self.wall_us))
        return Sample(device_us, host_us, wall_us, round(self.seconds, 6), round(self.held_up, 3))


class Clock(Protocol):
    """Takes the time of candidates by name."""

    def block(self, name: str) -> Sample:
        """Run one short block of a candidate; LaneError if it fails."""
        ...


class LaneError(FuseplanError):
    """A candidate failed while it was being timed; `status` is a word of the database."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


@dataclass(frozen=True)
class Rule:
    """When a race drops a candidate, when it ends, and who wins.

    `by` are the times that count, first the one that decides: a candidate is dropped that is surely slower by that than
    some other, and by none of the rest surely faster.
    """

    by: tuple[str, ...] = ("wall_us",)
    most: int = 21
    """Rounds at most, but for those in doubt."""
    doubtful: int = 0
    """So many rounds more may follow, and as much more time, as long as one is faster than the incumbent in the middle of its rounds, and not
    surely so: in a short race, a single block that was disturbed hides a winner. Where it is much faster there may be LONGER times as
    many: what disturbs the first seconds is over then."""
    least: int = 7
    """Rounds before anything is decided, but for the hopeless."""
    hopeless: float = 1.5
    """A candidate so many times as slow as another in each of its first two rounds is dropped at once."""
    sure: float = SURE
    floor: float = FLOOR
    alike: float = 0.0
    """A race ends, too, when the fastest surely beats the incumbent, and all others that still run surely differ from it by
    no more than this, relative. Whoever wants their times, and not a winner, has it go on."""
    spared: tuple[str, ...] = ()
    """Candidates that only each other may drop: of these the fastest is looked for, though others may be faster."""
    seconds: float | None = None
    """After so many seconds spent on blocks a race ends, once `least` rounds are through, …"""
    longest: float | None = None
    """… and after so many, however much it is in doubt."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.by or not set(self.by) <= set(METRICS):
            raise OptionError(f"a race goes by {', '.join(METRICS)}, not by {self.by!r}")
        if not 1 <= self.least <= self.most:
            raise OptionError(f"a race has at least one round and no more than its most: {self.least}, {self.most}")


@dataclass(frozen=True)
class Lane:
    """What became of one candidate: all its samples, and its time as a multiple of the incumbent's."""

    name: str
    samples: tuple[Sample, ...] = ()
    dropped: int | None = None  # after this round, counted from 1
    status: str = "ok"
    detail: str = ""
    ratio: float | None = None
    low: float | None = None  # the ratio surely lies between these two; None where there are too few samples to say
    high: float | None = None

    @property
    def medians(self) -> Sample | None:
        """The median of each time, and the sum of what they cost; None without a sample."""
        if not self.samples:
            return None
        device, host, wall = (median(getattr(sample, metric) for sample in self.samples) for metric in METRICS)
        return Sample(device, host, wall, sum(sample.seconds for sample in self.samples)).rounded()

    @property
    def repeats(self) -> Repeats:
        """The samples as the database keeps them."""
        return Repeats(*(tuple(getattr(sample, metric) for sample in self.samples) for metric in METRICS))


@dataclass(frozen=True)
class RaceResult:
    """Who won, how large the noise was, relative, and every lane in the order of the candidates, the duplicate last."""

    incumbent: str
    winner: str
    noise: float
    rounds: int
    lanes: tuple[Lane, ...]

    def lane(self, name: str) -> Lane:
        """The lane of one candidate."""
        return next(lane for lane in self.lanes if lane.name == name)

    def differences(self, name: str, to: str, metric: str = "wall_us") -> list[float]:
        """Of each round that both were in, by how much `name` was slower than `to`, as a logarithm."""
        return _differences(self.lane(name), self.lane(to), metric)

    def compared(self, name: str, to: str, metric: str = "wall_us") -> Comparison:
        """How a candidate compares with another that ran side by side with it."""
        return judged(self.differences(name, to, metric), math.log1p(self.noise))

    def median_noise(self, metric: str) -> float:
        """How far the incumbent was from itself in the middle one of its rounds, relative, or more where it was held up.

        The noise is as large as the largest difference where the rounds are few; this is large only where the times of half
        of them are wrong, so that medians tell nothing.
        """
        own = math.expm1(median(map(abs, self.differences(AGAIN, self.incumbent, metric))))
        return max(own, _noise_of_others(self.lane(self.incumbent)))


def race(
    names: Sequence[str],
    clock: Clock,
    *,
    incumbent: str,
    rule: Rule | None = None,
    on_round: Callable[[int, int], None] | None = None,
) -> RaceResult:
    """Time the candidates called `names` against each other; the incumbent is one of them, and wins ties.

    Among equals the earlier name wins. `on_round` hears the number of each round and of the candidates still in it.
    LaneError means that the incumbent itself failed.

    >>> slow, fast = [[Sample(us, 1, us)] for us in (10.0, 8.0)]
    >>> clock = ReplayClock({"default": slow, "tuned": fast})
    >>> result = race(["default", "tuned"], clock, incumbent="default")
    >>> result.winner, result.lane("tuned").ratio, clock.spent
    ('tuned', 0.8, 21)
    """
    if incumbent not in names or len(set(names)) != len(names) or AGAIN in names:
        raise OptionError(f"the candidates of a race have names of their own, the incumbent's among them: {names!r}")
    course = _Race(tuple(names), incumbent, rule or Rule())
    while not course.over:
        course.round(clock)
        if on_round is not None:
            on_round(course.rounds, len(course.running))
    return course.result()


def fastest(names: Sequence[str], clock: Clock, rule: Rule) -> str:
    """Which of several candidates a race had best compare all others with: a few blocks show it, roughly.

    >>> clock = ReplayClock({"a": [Sample(9.0, 1, 9.0)], "b": [Sample(5.0, 1, 5.0)]})
    >>> fastest(["a", "b"], clock, Rule())
    'b'
    """
    if len(names) == 1:
        return names[0]

    def least(name: str) -> float:
        try:
            return min(getattr(clock.block(name), rule.by[0]) for _ in range(HEATS))  # type: ignore[no-any-return]
        except LaneError:  # as it will again in the race, where that counts
            return math.inf

    return min(names, key=least)


class ReplayClock:
    """Gives stored samples again, in their order and from the start when they run out. `spent` counts the blocks."""

    def __init__(self, samples: Mapping[str, Sequence[Sample]]) -> None:
        self.samples = {name: tuple(taken) for name, taken in samples.items()}
        self.next = dict.fromkeys(samples, 0)
        self.spent = 0

    def block(self, name: str) -> Sample:
        """The next stored sample."""
        taken = self.samples.get(name)
        if not taken:
            raise LaneError("error", f"no timings are stored for {name}")
        self.spent += 1
        self.next[name] += 1
        return taken[(self.next[name] - 1) % len(taken)]


class _Race:
    """A race on its way: the samples of each lane so far, round by round."""

    def __init__(self, names: tuple[str, ...], incumbent: str, rule: Rule) -> None:
        self.names, self.incumbent, self.rule = names, incumbent, rule
        self.lanes = {name: Lane(name) for name in (*names, AGAIN)}
        self.running = list(self.lanes)
        self.rounds = 0
        self.shuffler = random.Random(rule.seed)

    @property
    def challengers(self) -> list[str]:
        return [name for name in self.running if name not in (self.incumbent, AGAIN)]

    @property
    def over(self) -> bool:
        if self.rounds < self.rule.least:
            return False
        challengers, most = self.challengers, self.rule.most
        seconds = math.inf if self.rule.seconds is None else self.rule.seconds
        spent = sum(sample.seconds for lane in self.lanes.values() for sample in lane.samples)
        if self.rounds < most and spent <= seconds:
            return not challengers or self._as_good_as_any(challengers)
        more = self._doubted(challengers)
        may_s = seconds * (most + more) / most
        if self.rule.longest is not None:
            may_s = min(may_s, max(seconds, self.rule.longest))
        return self.rounds >= most + more or spent > may_s

    def round(self, clock: Clock) -> None:
        """One block of every lane that is still running, in a new order, and then the dropping."""
        self.rounds += 1
        order = list(self.running)
        self.shuffler.shuffle(order)
        for name in order:
            lane = self.lanes[name]
            try:
                sample = clock.block(self.incumbent if name == AGAIN else name)
            except LaneError as failure:
                if name in (self.incumbent, AGAIN):
                    raise
                self.lanes[name] = replace(lane, dropped=self.rounds, status=failure.status, detail=failure.detail)
            else:
                self.lanes[name] = replace(lane, samples=(*lane.samples, sample.rounded()))
        self.running = [name for name in self.running if self.lanes[name].dropped is None]
        lost = [name for name in self.challengers if any(self._loses(name, to) for to in self._rivals(name))]
        for name in lost:
            self.lanes[name] = replace(self.lanes[name], dropped=self.rounds)
        self.running = [name for name in self.running if name not in lost]

    def _rivals(self, name: str) -> list[str]:
        """Those that may drop a challenger: all others, or of one that is spared the others that are, too."""
        spared = set(self.rule.spared)
        if self.incumbent in spared:
            spared.add(AGAIN)
        return [to for to in self.running if to != name and (name not in spared or to in spared)]

    def _differences(self, name: str, to: str, metric: str) -> list[float]:
        return _differences(self.lanes[name], self.lanes[to], metric)

    def _loses(self, name: str, to: str) -> bool:
        first, *rest = self.rule.by
        differences = self._differences(name, to, first)
        others = [self._differences(name, to, metric) for metric in rest]
        if len(differences) == 2:
            return min(differences) > math.log(self.rule.hopeless) and all(min(other) >= 0 for other in others)
        if self.rounds < self.rule.least:
            return False
        slower = surely_slower(differences, self.rule.floor, self.rule.sure)
        return slower and not any(bounds(other, self.rule.sure)[1] < 0 for other in others)

    def _noise(self) -> float:
        """How far the incumbent may be from itself, as a logarithm."""
        differences = self._differences(AGAIN, self.incumbent, self.rule.by[0])
        return noise_of(differences, self.rule.floor, self.rule.sure)

    def _as_good_as_any(self, challengers: Sequence[str]) -> bool:
        """Whether one of them beats the incumbent, and all others are as fast as that one."""
        metric = self.rule.by[0]
        best = min(challengers, key=lambda name: median(self._differences(name, self.incumbent, metric)))
        most = math.log1p(self.rule.alike)
        others = [self._differences(name, best, metric) for name in challengers if name != best]
        surely_within = [bounds(differences, self.rule.sure) for differences in others]
        # of several that are no faster, one would seem so all too often if every round were asked
        surely = not others or bounds(self._differences(best, self.incumbent, metric), SURELY)[1] < 0
        return surely and self._beaten_by(best) and all(-most <= low and high <= most for low, high in surely_within)

    def _doubted(self, challengers: Sequence[str]) -> int:
        """How many rounds more there may be: as long as one of them is faster, by more than would be noise at least, and does not win for
        want of rounds. In the rounds beyond, who is asked again and again has to be surer.
        """
        metric, sure = self.rule.by[0], self.rule.sure if self.rounds <= self.rule.most else SURELY
        gains = {name: -median(self._differences(name, self.incumbent, metric)) for name in challengers}
        ahead = [name for name, gain in gains.items() if gain > math.log1p(self.rule.floor)]
        if not ahead or any(self._beaten_by(name, sure) for name in ahead):
            return 0
        return self.rule.doubtful * (LONGER if max(gains.values()) > math.log1p(ACROSS) else 1)

    def _beaten_by(self, name: str, sure: float | None = None) -> bool:
        """Whether the incumbent is slower than `name`, surely, and by more than noise."""
        differences = self._differences(name, self.incumbent, self.rule.by[0])
        return judged(differences, self._noise(), sure or self.rule.sure) == "faster"

    def _winner(self) -> str:
        metric = self.rule.by[0]
        faster = [name for name in self.challengers if self._beaten_by(name)]
        if not faster:
            return self.incumbent
        best = min(faster, key=lambda name: median(self._differences(name, self.incumbent, metric)))

        def ties(name: str) -> bool:
            differences = self._differences(name, best, metric)
            surely = surely_slower(differences, self.rule.floor, self.rule.sure)
            return not surely and median(differences) <= self._noise()

        return next(name for name in faster if name == best or ties(name))

    def result(self) -> RaceResult:
        lanes = tuple(self._compared(lane) for lane in self.lanes.values())
        noise = max(math.expm1(self._noise()), _noise_of_others(self.lanes[self.incumbent]))
        return RaceResult(self.incumbent, self._winner(), round(noise, 6), self.rounds, lanes)

    def _compared(self, lane: Lane) -> Lane:
        differences = self._differences(lane.name, self.incumbent, self.rule.by[0])
        if not differences:
            return lane
        low, high = bounds(differences, self.rule.sure)
        ratio = round(math.exp(median(differences)), 6)
        if math.isinf(high):
            return replace(lane, ratio=ratio)
        return replace(lane, ratio=ratio, low=round(math.exp(low), 6), high=round(math.exp(high), 6))


def _noise_of_others(lane: Lane) -> float:
    """The noise of a candidate that was held up in the middle one of its blocks, however alike its times are; else none.

    >>> [_noise_of_others(Lane("a", (Sample(9.0, 0.0, 9.0, held_up=times),) * 3)) for times in (1.1, 40.0)]
    [0.0, 39.0]
    """
    held_up = median([sample.held_up for sample in lane.samples] or [0.0])
    return held_up - 1 if held_up >= HELD_UP else 0.0


def _differences(lane: Lane, to: Lane, metric: str) -> list[float]:
    """Of each round that both were in, by how much `lane` was slower than `to`, as a logarithm."""
    pairs = zip(lane.samples, to.samples, strict=False)
    return [math.log(max(getattr(a, metric), _LEAST_US) / max(getattr(b, metric), _LEAST_US)) for a, b in pairs]
