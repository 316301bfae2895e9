"""What a measurement is worth: by how much it may change which plan is chosen, and for how much time of the program.

Plans are lists of units, of which some have been measured and others are predicted, with a doubt. What is decided (the
gap is wider than the doubts) or immaterial (whoever wins, the program's time stays the same within a tie) is worth
nothing; the rest is worth the time that one would expect to lose without knowing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fuseplan.models.cost import NINE_OF_TEN
from fuseplan.noise import FLOOR
from fuseplan.segment import Choice
from fuseplan.tuning.program.spending import Rule, floored

RegionChoice = tuple[str, Choice]
"""What can be measured: the key of a region, and a choice."""

TIE = FLOOR
"""What counts as equal, relative to the whole program."""
LEAST_LOSS = TIE / 8
"""An expected loss that is less than this share of the program's time is not worth a measurement."""
UNSURE_SPREAD = 0.5
"""What a prediction is in doubt by at least that says itself that it does not know."""
AUDITED = 0.03
"""The share of measurements that are drawn among those that seem not worth it: what they show is how far off the model is
where nobody looks."""
AUDITED_FROM = 8
"""From so many measurements on, at least one is drawn."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one way to run a unit takes of the time of its program: a `Cost` as one number, in µs of the clock that counts. A spread
    of zero is a measurement.
    """

    us: float
    spread: float = 0.0
    unsure: bool = False
    seconds: float = 1.0
    """What measuring it would take."""
    failing: float = 0.0
    """The chance that it will not run at all."""

    @property
    def doubt(self) -> float:
        """One standard deviation, relative."""
        return max(self.spread, UNSURE_SPREAD) if self.unsure else self.spread

    @property
    def low(self) -> float:
        """It hardly takes less than this."""
        return self.us * math.exp(-NINE_OF_TEN * self.doubt)

    @property
    def high(self) -> float:
        """It hardly takes more than this."""
        return self.us * math.exp(NINE_OF_TEN * self.doubt)

    @property
    def known(self) -> bool:
        """Whether it has been measured."""
        return self.doubt == 0.0


@dataclass(frozen=True)
class Unit:
    """Something that a plan runs so many times, and what it takes under each choice."""

    key: str
    calls: int
    estimates: Mapping[Choice, Estimate]
    kin: object = None
    """Of those that have this in common one measurement tells about all; None: of nothing else."""

    @cached_property
    def chosen(self) -> Choice:
        """The choice that is expected to be the fastest."""
        return min(self.estimates, key=lambda choice: (self.estimates[choice].us, choice))

    @property
    def best(self) -> Estimate:
        """What that takes."""
        return self.estimates[self.chosen]


Units = Sequence[Unit]
"""All that a plan runs."""


def joined(units: Iterable[Unit]) -> list[Unit]:
    """The units, those of one key counted together.

    >>> way = {("aten", "default"): Estimate(2.0)}
    >>> [unit.calls for unit in joined([Unit("a", 1, way), Unit("b", 1, way), Unit("a", 1, way)])]
    [2, 1]
    """
    found: dict[str, Unit] = {}
    for unit in units:
        before = found[unit.key].calls if unit.key in found else 0
        found[unit.key] = replace(unit, calls=before + unit.calls)
    return list(found.values())


def expected_gain(gap: float, spread: float) -> float:
    """What one may expect to gain by knowing, if something seems slower by `gap` and may be off by `spread`.

    >>> round(expected_gain(0.0, 1.0), 3), expected_gain(1.0, 0.0), round(expected_gain(3.0, 1.0), 4)
    (0.399, 0.0, 0.0004)
    """
    if spread <= 0:
        return max(0.0, -gap)
    x = gap / spread
    return spread * math.exp(-x * x / 2) / math.sqrt(2 * math.pi) - gap * _above(x)


def _above(x: float) -> float:
    """The chance that a standard normal number is larger than x."""
    return 0.5 * math.erfc(x / math.sqrt(2))


def expected_losses(plans: Sequence[Units], total_us: float | None = None) -> dict[RegionChoice, float]:
    """The µs that one would expect to lose by not measuring, for each choice of a unit of `plans` that is unknown.

    Those that are decided or immaterial are in it with nothing. `total_us` is how long the program takes, by which
    something is immaterial; without it, what the best plan takes.

    >>> sure, doubtful = Estimate(10.0), Estimate(10.5, 0.1)
    >>> plan = [Unit("region", 12, {("aten", "default"): sure, ("inductor", "default"): doubtful})]
    >>> round(expected_losses([plan])["region", ("inductor", "default")], 2)
    2.59
    """
    return _Weighing([joined(plan) for plan in plans], total_us).losses()


class _Weighing:
    def __init__(self, plans: Sequence[Units], total_us: float | None) -> None:
        self.plans = plans
        self.totals = [sum(unit.calls * unit.best.us for unit in plan) for plan in plans]
        self.best = min(range(len(plans)), key=lambda i: (self.totals[i], i), default=0)
        whole = total_us if total_us is not None else min(self.totals, default=0.0)
        self.tie, self.least = TIE * whole, LEAST_LOSS * whole
        self.found: dict[RegionChoice, float] = {}

    def losses(self) -> dict[RegionChoice, float]:
        for number, plan in enumerate(self.plans):
            for unit in plan:
                for choice, estimate in unit.estimates.items():
                    if not estimate.known:
                        self.found.setdefault((unit.key, choice), 0.0)
            likely = 1.0 if number == self.best else self._against(number)
            if likely > 0:
                self._choices(plan, likely)
        return {one: value if value >= self.least else 0.0 for one, value in self.found.items()}

    def _against(self, number: int) -> float:
        """Weigh one plan against the best; return the chance that it is the faster one."""
        gap = self.totals[number] - self.totals[self.best]
        parts = list(self._differences(number))
        spread = math.sqrt(math.fsum(part * part for _, part in parts))
        if spread == 0 or gap > NINE_OF_TEN * spread or NINE_OF_TEN * spread - gap < self.tie:
            return 0.0
        gain = expected_gain(gap, spread)
        for one, part in parts:
            self._note(one, gain * (part / spread) ** 2)
        return _above(gap / spread)

    def _differences(self, number: int) -> Iterator[tuple[RegionChoice, float]]:
        """What is unknown and not in both plans alike, with the µs that it is in doubt by."""
        counts: dict[str, int] = {}
        units: dict[str, Unit] = {}
        for sign, plan in ((1, self.plans[number]), (-1, self.plans[self.best])):
            for unit in plan:
                counts[unit.key] = counts.get(unit.key, 0) + sign * unit.calls
                units[unit.key] = unit
        for key, count in counts.items():
            best = units[key].best
            if count and not best.known:
                yield (key, units[key].chosen), abs(count) * best.us * best.doubt

    def _choices(self, plan: Units, likely: float) -> None:
        """Weigh the other choices of each unit against the one that is made."""
        for unit in plan:
            best = unit.best
            others = sorted(other.us for choice, other in unit.estimates.items() if choice != unit.chosen)
            if best.failing and not best.known:
                instead = others[0] if others else 2.0 * best.us
                self._note((unit.key, unit.chosen), likely * unit.calls * best.failing * (instead - best.us))
            for choice, estimate in unit.estimates.items():
                if choice != unit.chosen:
                    self._choice(unit, choice, estimate, likely)

    def _choice(self, unit: Unit, choice: Choice, other: Estimate, likely: float) -> None:
        best = unit.best
        mine, theirs = best.us * best.doubt, other.us * other.doubt
        spread = math.hypot(mine, theirs)
        if spread == 0 or other.low > best.high or unit.calls * (best.high - other.low) < self.tie:
            return
        gain = likely * unit.calls * expected_gain(other.us - best.us, spread)
        for one, part in (((unit.key, unit.chosen), mine), ((unit.key, choice), theirs)):
            if part:
                self._note(one, gain * (part / spread) ** 2)

    def _note(self, one: RegionChoice, value: float) -> None:
        """Many plans are alike: what they say of one measurement is not summed, but the most of it counts."""
        self.found[one] = max(self.found.get(one, 0.0), value)


@dataclass(frozen=True)
class Picked:
    """What to measure next: what is worth it, the best first, and what is drawn to audit the model."""

    wanted: tuple[RegionChoice, ...]
    audit: tuple[RegionChoice, ...] = ()


def pick(
    plans: Sequence[Units],
    most: int,
    *,
    among: Container[str] | None = None,
    measured: int = 0,
    audited: int = 0,
    seed: int = 0,
    rule: Rule = floored,
) -> Picked:
    """At most so many measurements, by expected loss over the time they take, and the audits that are due; `among` these keys
    alone.

    Of kin, one is measured: the others are weighed again when it has told of them. `measured` and `audited` are how many
    there have been; `rule` says what the time counts for. The same question has the same answer.
    """
    losses = {one: loss for one, loss in expected_losses(plans).items() if among is None or one[0] in among}
    units = [unit for plan in plans for unit in plan]
    takes = {(unit.key, choice): rule(found.seconds) for unit in units for choice, found in unit.estimates.items()}
    ranked = sorted((one for one in losses if losses[one] > 0), key=lambda one: (-losses[one] / takes[one], one))
    wanted = _one_of_kin(ranked, {unit.key: unit.kin for unit in units})[:most]
    skipped = sorted((one for one in losses if losses[one] == 0), key=lambda one: _drawn(one, seed))
    due = _audits_due(measured + len(wanted), seed) - audited
    return Picked(tuple(wanted), tuple(skipped[: max(0, due)]))


def _one_of_kin(ranked: Sequence[RegionChoice], kin: Mapping[str, object]) -> list[RegionChoice]:
    """Of the keys that are kin only the one that comes first, with all that is one of it."""
    first: dict[object, str] = {}
    return [one for one in ranked if kin[one[0]] is None or first.setdefault(kin[one[0]], one[0]) == one[0]]


def _audits_due(measured: int, seed: int) -> int:
    """How many of so many measurements are drawn."""
    drawn = math.floor(AUDITED * measured + _drawn(("due", ("", "")), seed))
    return max(drawn, 1) if measured >= AUDITED_FROM else drawn


def _drawn(one: RegionChoice, seed: int) -> float:
    """A number between 0 and 1, always the same for the same seed."""
    text = f"{seed} {one[0]} {one[1][0]} {one[1][1]}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") / 2**64
