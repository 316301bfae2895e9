"""The roofline: memory, arithmetic and launches, each at the machine's rate, corrected by what was measured here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fuseplan.models.cost import Cost
from fuseplan.models.fit import Weights, fit
from fuseplan.models.machine import Machine
from fuseplan.models.model import Question, Row
from fuseplan.models.terms import (
    DEVICE_DOUBT,
    HOST_DOUBT,
    device_terms,
    host_terms,
    scaled,
    variant_factor,
)
from fuseplan.models.work import Work

_SHRINKAGE = 3
"""So many rows of a variant count as much as what was believed of it."""


@dataclass(frozen=True)
class Rates:
    """What was learnt: the weights of terms by executor, and how variants compare with what was believed of them."""

    device: Mapping[str, Weights]
    host: Mapping[str, Weights]
    variants: Mapping[tuple[str, str], float]

    def device_weights(self, executor: str) -> Weights:
        """Those of the terms of device time."""
        return self.device.get(executor, _DEVICE)

    def host_weights(self, executor: str) -> Weights:
        """Those of the terms of host time."""
        return self.host.get(executor, _HOST)

    def factor(self, work: Work, executor: str, variant: str) -> float:
        """How a variant compares with the default of its region."""
        if variant == "default":
            return 1.0
        return variant_factor(work, variant) * self.variants.get((executor, variant), 1.0)


class Roofline:
    """Needs no data; with rows of an executor, its rates become that executor's own.

    >>> from fuseplan.models.work import Work
    >>> model = Roofline(Machine.guess("NVIDIA H200"))
    >>> work = Work(ops=1, bytes_in=43_000_000, bytes_out=43_000_000, kernels=1, inputs=1, outputs=1)
    >>> round(model.predict([(work, "inductor", "default")])[0].device_us)
    22
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._rows: dict[str, list[Row]] = {}
        self._device: dict[str, Weights] = {}
        self._host: dict[str, Weights] = {}
        self._variants: dict[tuple[str, str], float] = {}
        self._stale: set[str] = set()

    def predict(self, regions: Sequence[Question]) -> list[Cost]:
        """One cost for each of `regions`, in order."""
        rates = self.rates
        return [_predict(rates, self.machine, *question) for question in regions]

    @property
    def rates(self) -> Rates:
        """What was learnt of this machine by now."""
        for executor in sorted(self._stale):
            self._refit(executor)
        self._stale.clear()
        return Rates(self._device, self._host, self._variants)

    def update(self, rows: Sequence[Row]) -> None:
        """Learn from measurements, in addition to all that came before. The fit itself waits for the next question."""
        for row in rows:
            if row.status != "ok" or (not row.work.ops and self.machine.device != "cpu"):
                continue  # what launches nothing takes less than a GPU's clock can tell
            self._rows.setdefault(row.executor, []).append(row)
            self._stale.add(row.executor)

    def _refit(self, executor: str) -> None:
        """Rates first, from all variants as they were believed to compare; then how the variants do compare."""
        rows = self._rows[executor]
        believed = [
            scaled(device_terms(row.work, executor, self.machine), variant_factor(row.work, row.variant))
            for row in rows
        ]
        weights = fit(believed, [row.device_us for row in rows], DEVICE_DOUBT)
        self._device[executor] = weights
        calls = [host_terms(row.work, executor, self.machine) for row in rows]
        self._host[executor] = fit(calls, [row.host_us for row in rows], HOST_DOUBT)
        errors: dict[str, list[float]] = {}
        for row, terms in zip(rows, believed, strict=True):
            total = weights.total(terms)
            if row.variant != "default" and total > 0 and 0 < row.device_us < math.inf:
                errors.setdefault(row.variant, []).append(math.log(row.device_us / total))
        for variant, found in errors.items():
            self._variants[executor, variant] = math.exp(math.fsum(found) / (len(found) + _SHRINKAGE))


def _predict(rates: Rates, machine: Machine, work: Work, executor: str, variant: str) -> Cost:
    weights = rates.device_weights(executor)
    terms = device_terms(work, executor, machine)
    total = weights.total(terms)
    called = rates.host_weights(executor).total(host_terms(work, executor, machine))
    return Cost(total * rates.factor(work, executor, variant), called, weights.spread(terms, total))


_DEVICE, _HOST = Weights.unfitted(DEVICE_DOUBT), Weights.unfitted(HOST_DOUBT)
