"""The roofline: memory, arithmetic and launches, each at the machine's rate, corrected by what was measured here."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fuseplan.models.fit import Weights, fit
from fuseplan.models.machine import Machine
from fuseplan.models.model import Asked, Prediction, Row
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

    def predict(self, regions: Sequence[Asked]) -> list[Prediction]:
        """One prediction for each of `regions`, in order."""
        if self._stale:
            for executor in sorted(self._stale):
                self._refit(executor)
            self._stale.clear()
        return [self._predict(work, executor, variant) for work, executor, variant in regions]

    def update(self, rows: Sequence[Row]) -> None:
        """Learn from measurements, in addition to all that came before. The fit itself waits for the next question."""
        for row in rows:
            self._rows.setdefault(row.executor, []).append(row)
            self._stale.add(row.executor)

    def _predict(self, work: Work, executor: str, variant: str) -> Prediction:
        device, host = self._device.get(executor, _DEVICE), self._host.get(executor, _HOST)
        terms = device_terms(work, executor, self.machine)
        total = device.total(terms)
        time = total * self._factor(work, executor, variant)
        called = host.total(host_terms(work, executor, self.machine))
        return Prediction(time, called, device.spread(terms, total))

    def _factor(self, work: Work, executor: str, variant: str) -> float:
        if variant == "default":
            return 1.0
        return variant_factor(work, variant) * self._variants.get((executor, variant), 1.0)

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


_DEVICE, _HOST = Weights.unfitted(DEVICE_DOUBT), Weights.unfitted(HOST_DOUBT)
