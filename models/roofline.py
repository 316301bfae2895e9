"""The roofline: memory, arithmetic and launches, each at the machine's rate, corrected by what was measured here."""

from __future__ import annotations

from collections.abc import Sequence

from fuseplan.models.machine import Machine
from fuseplan.models.model import Asked, Prediction, Row


class Roofline:
    """Needs no data; with rows of an executor, its rates become that executor's own."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def predict(self, regions: Sequence[Asked]) -> list[Prediction]:
        """One prediction for each of `regions`, in order."""
        raise NotImplementedError

    def update(self, rows: Sequence[Row]) -> None:
        """Learn from measurements, in addition to all that came before."""
        raise NotImplementedError
