"""Cost models to compare others with: one that knows nothing, and one that always prefers the same executor."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence
from dataclasses import astuple

from fuseplan.models.cost import Cost
from fuseplan.models.machine import Machine
from fuseplan.models.model import Question, Row
from fuseplan.models.terms import device_terms, host_terms
from fuseplan.models.work import Work

_UNSURE = 1.5
"""The spread of a model that knows next to nothing: a factor of four either way."""


class Random:
    """Times between 1 µs and 1 ms for each region and choice, the same whenever they are asked for with the same seed.

    >>> Random(1).predict([(Work(), "aten", "default")]) == Random(1).predict([(Work(), "aten", "default")])
    True
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def predict(self, regions: Sequence[Question]) -> list[Cost]:
        """One cost for each of `regions`, in order."""
        return [self._predict(question) for question in regions]

    def update(self, rows: Sequence[Row]) -> None:
        """Nothing is learnt."""

    def _predict(self, question: Question) -> Cost:
        work, executor, variant = question
        text = repr((self.seed, astuple(work), executor, variant))
        chance = random.Random(hashlib.blake2b(text.encode(), digest_size=8).digest())
        return Cost(1000 ** chance.random(), 1 + 19 * chance.random(), _UNSURE)


class BestSingleExecutor:
    """One order of executors for all regions: by the geometric mean of time against that of an ideal machine.

    Before there are rows, and for choices that have none, the ideal counts: executors tie. A choice is an executor with
    a variant.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._seen: dict[tuple[str, str], tuple[int, float, float]] = {}
        """For each choice how many rows, and the sums of log ratios of device time and of ratios of host time."""

    @property
    def best(self) -> tuple[str, str] | None:
        """The choice that is preferred everywhere, once there are rows."""
        return min(self._seen, key=lambda choice: (self._means(choice)[0], choice), default=None)

    def predict(self, regions: Sequence[Question]) -> list[Cost]:
        """One cost for each of `regions`, in order."""
        return [self._predict(work, executor, variant) for work, executor, variant in regions]

    def update(self, rows: Sequence[Row]) -> None:
        """Learn which executor is the fastest overall."""
        for row in rows:
            device, host = self._ideal(row.work)
            if device > 0 and row.usable:
                choice = (row.executor, row.variant)
                count, logs, hosts = self._seen.get(choice, (0, 0.0, 0.0))
                self._seen[choice] = (
                    count + 1,
                    logs + math.log(row.device_us / device),
                    hosts + (row.host_us / host if host else 0.0),
                )

    def _predict(self, work: Work, executor: str, variant: str) -> Cost:
        device, host = self._ideal(work)
        device_ratio, host_ratio = self._means((executor, variant))
        return Cost(device * device_ratio, host * host_ratio, _UNSURE)

    def _means(self, choice: tuple[str, str]) -> tuple[float, float]:
        count, logs, hosts = self._seen.get(choice, (0, 0.0, 0.0))
        return (math.exp(logs / count), hosts / count) if count else (1.0, 1.0)

    def _ideal(self, work: Work) -> tuple[float, float]:
        """What the region would take fused, whoever runs it: a measure of its size, not of anybody's skill."""
        return sum(device_terms(work, "fused", self.machine)), sum(host_terms(work, "fused", self.machine))
