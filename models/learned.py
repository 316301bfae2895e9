"""The learned model: what shipped rows have taught, adapted to the machine at hand by its own measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fuseplan.executors.known import traits_of
from fuseplan.models.conformal import size_class
from fuseplan.models.cost import NINE_OF_TEN, Cost
from fuseplan.models.features import Looking
from fuseplan.models.heads import Heads
from fuseplan.models.model import Question, Row
from fuseplan.models.work import Work

SHRINKAGE = 8.0
"""So many rows of an executor, or of one of its size classes, count as much as what the fit believes of it."""
OF_A_REGION = 1.0
"""The same for one region, whose choices share a part of their errors."""
OF_KIN = 0.97
"""How far the errors of regions that differ in their views alone are the same: their correlation (`scripts/bench kin`)."""
FAR_OFF = 2.0
"""An error, in log time, from which on one measurement corrects no other any further, nor takes away a doubt."""
WIDEST, NARROWEST = 4.0, 0.7
"""By how much own measurements may change what errors are expected."""
IDLE_SPREAD = 0.05
_KEPT = 300_000


class Gap(NamedTuple):
    """How two ways to run the same ops compare: the log of the first's time over the second's, and how sure that is."""

    ratio: float
    spread: float

    @property
    def decided(self) -> bool:
        """Whether nine times of ten the sign is right.

        >>> Gap(0.2, 0.1).decided, Gap(0.1, 0.1).decided
        (True, False)
        """
        return abs(self.ratio) > NINE_OF_TEN * self.spread


class _Raw(NamedTuple):
    device_us: float
    host_us: float
    spread: float
    fails: float
    near: float
    novelty: float
    error: float
    size: int
    kin: Work
    """As `Work.kin`, one object for all kin."""


@dataclass
class _Errors:
    """Sums of what measurements were off by, in log time, so that the order in which they came does not matter."""

    count: int = 0
    total: float = 0.0
    weight: float = 0.0
    weighted: float = 0.0
    squares: float = 0.0
    """The last three against the square of what was expected of each."""

    def add(self, error: float, spread: float = 1.0) -> None:
        weight = 1.0 / (spread * spread)
        self.count += 1
        self.total += error
        self.weight += weight
        self.weighted += weight * error
        self.squares += weight * error * error

    def beyond(self, known: float, shrinkage: float) -> float:
        """The mean of what is beyond a correction that is known already, drawn towards none."""
        return (self.total - self.count * known) / (self.count + shrinkage)

    @property
    def scatter(self) -> float:
        """By how much they differ among themselves, where each had the same weight."""
        mean = self.total / self.count
        return math.sqrt(max(0.0, self.squares / self.count - mean * mean))

    def growth(self, known: float) -> float:
        """How the errors that are left compare with what was expected of them."""
        left = self.squares - 2.0 * known * self.weighted + known * known * self.weight
        factor = math.sqrt((SHRINKAGE + max(0.0, left)) / (SHRINKAGE + self.count))
        return min(WIDEST, max(NARROWEST, factor))


@dataclass
class _Correction:
    """What own measurements say of an executor's times: all of them, those of a variant, those of a size."""

    overall: _Errors = field(default_factory=_Errors)
    parts: dict[tuple[str, int], _Errors] = field(default_factory=dict)

    def add(self, variant: str, size: int, error: float, spread: float) -> None:
        self.overall.add(error, spread)
        self.parts.setdefault((variant, size), _Errors()).add(error, spread)

    def of(self, variant: str, size: int) -> float:
        common = self.overall.beyond(0.0, SHRINKAGE)
        part = self.parts.get((variant, size))
        return common if part is None else common + part.beyond(common, SHRINKAGE)

    def growth(self) -> float:
        return self.overall.growth(self.overall.beyond(0.0, SHRINKAGE))


class Learned:
    """A CostModel out of `Heads`, which `fit_heads` makes and `shipped_heads` loads. Own rows adapt it.

    What is unlike anything learnt from is `unsure`. Where own measurements are further off than expected, spreads grow.
    """

    def __init__(self, heads: Heads) -> None:
        self.heads = heads
        self.machine = heads.machine
        self._looking = Looking(heads.machine)
        self._raw: dict[Question, _Raw] = {}
        self._device: dict[str, _Correction] = {}
        self._host: dict[str, _Errors] = {}
        self._regions: dict[Work, list[tuple[str, str, int, float]]] = {}
        self._kin: dict[Question, _Errors] = {}
        self._kinds: dict[Work, Work] = {}
        self._corrected: dict[tuple[str, str, int], float] = {}
        """What is corrected by how much, until there are more measurements."""
        self._grown: dict[str, float] = {}

    def predict(self, regions: Sequence[Question]) -> list[Cost]:
        """One cost for each of `regions`, in order."""
        self._ask(regions)
        if not self._device:
            return [self._unadapted(self._raw[question]) for question in regions]
        return [self._adapted(question, self._raw[question]) for question in regions]

    def update(self, rows: Sequence[Row]) -> None:
        """Adapt to measurements, in addition to all that came before."""
        rows = [row for row in rows if row.usable]
        questions = [(row.work, row.executor, row.variant) for row in rows]
        self._ask(questions)
        self._corrected.clear()
        self._grown.clear()
        for row, question in zip(rows, questions, strict=True):
            raw = self._raw[question]
            if raw.device_us <= 0:
                continue
            whole = math.log(row.device_us / raw.device_us)
            error = max(-FAR_OFF, min(FAR_OFF, whole))
            self._device.setdefault(row.executor, _Correction()).add(row.variant, raw.size, error, raw.spread)
            self._regions.setdefault(row.work, []).append((row.executor, row.variant, raw.size, error))
            self._kin.setdefault((raw.kin, row.executor, row.variant), _Errors()).add(whole)
            if row.host_us > 0 and raw.host_us > 0:
                self._host.setdefault(row.executor, _Errors()).add(math.log(row.host_us / raw.host_us))

    def gap(self, first: Sequence[Question], second: Sequence[Question]) -> Gap:
        """How the device times of two cuts of the same ops compare; what is in both is in neither's doubt."""
        predicted = dict(zip([*first, *second], self.predict([*first, *second]), strict=True))
        totals = [math.fsum(predicted[one].device_us for one in cut) for cut in (first, second)]
        if min(totals) <= 0:
            return Gap(0.0 if totals[0] == totals[1] else math.copysign(math.inf, totals[0] - totals[1]), 0.0)
        common = set(first) & set(second)
        doubt = 0.0
        for cut, total in zip((first, second), totals, strict=True):
            doubt += sum((predicted[one].device_us * self._error(one) / total) ** 2 for one in cut if one not in common)
        executors = [{executor for _, executor, _ in cut} for cut in (first, second)]
        names = [next(iter(one)) if len(one) == 1 else "" for one in executors]
        factor = self.heads.pair(*names) if all(names) else self.heads.pairs["", ""]
        return Gap(math.log(totals[0] / totals[1]), factor * math.sqrt(doubt) / NINE_OF_TEN)

    def _error(self, question: Question) -> float:
        """The error to expect, before any factor."""
        return self._raw[question].error

    def _ask(self, questions: Sequence[Question]) -> None:
        """See to it that the fit's own answers are there."""
        if len(self._raw) > _KEPT:
            self._raw.clear()
            self._kinds.clear()
        new = [one for one in dict.fromkeys(questions) if one not in self._raw]
        if not new:
            return
        found = self.heads.answer(new, self._looking)
        columns = (found.device_us, found.host_us, found.spread, found.fails, found.near, found.novelty, found.error)
        kin = [self._kin_of(work) for work, _, _ in new]
        told = zip(
            *(column.tolist() for column in columns), map(size_class, found.device_us.tolist()), kin, strict=True
        )
        self._raw.update(zip(new, (_Raw(*one) for one in told), strict=True))

    def _kin_of(self, work: Work) -> Work:
        found = self._kinds.get(work)
        if found is None:
            kin = work.kin
            found = self._kinds[work] = self._kinds.setdefault(kin, kin)
        return found

    def _unadapted(self, raw: _Raw) -> Cost:
        if raw.device_us <= 0:  # views alone, on a GPU
            return Cost(0.0, raw.host_us, IDLE_SPREAD, raw.fails, raw.near)
        return Cost(raw.device_us, raw.host_us, raw.spread, raw.fails, raw.near, raw.novelty > 1.0)

    def _adapted(self, question: Question, raw: _Raw) -> Cost:
        if raw.device_us <= 0:
            return self._unadapted(raw)
        work, executor, variant = question
        ratio = self._correction(executor, variant, raw.size)
        spread = raw.spread * self._growth(executor)
        unsure = raw.novelty > 1.0
        if kin := self._kin.get((raw.kin, executor, variant)):
            ratio += OF_KIN * kin.beyond(ratio, 0.0)
            least = max(traits_of(executor).kin_spread, kin.scatter)
            spread = min(spread, max(least, spread * math.sqrt(1.0 - OF_KIN**2)))
            unsure = unsure and abs(ratio) > FAR_OFF
        elif seen := self._regions.get(work):
            left = [error - self._correction(*choice) for *choice, error in seen]  # type: ignore[arg-type]
            ratio += math.fsum(left) / (len(left) + OF_A_REGION)
        hosts = self._host.get(executor)
        host = raw.host_us * (math.exp(hosts.beyond(0.0, SHRINKAGE)) if hosts else 1.0)
        return Cost(raw.device_us * math.exp(ratio), host, spread, raw.fails, raw.near, unsure)

    def _correction(self, executor: str, variant: str, size: int) -> float:
        key = executor, variant, size
        ratio = self._corrected.get(key)
        if ratio is None:
            found = self._device.get(executor)
            ratio = self._corrected[key] = 0.0 if found is None else found.of(variant, size)
        return ratio

    def _growth(self, executor: str) -> float:
        growth = self._grown.get(executor)
        if growth is None:
            known = self._device.get(executor)
            growth = self._grown[executor] = known.growth() if known else 1.0
        return growth
