"""What a cost model is: it predicts the times of regions and learns from those that were measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fuseplan.models.work import Work

Asked = tuple[Work, str, str]
"""A region's work, the executor that would run it, and the variant."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The times of one call, and how sure the model is of them."""

    device_us: float
    host_us: float
    spread: float
    """One standard deviation of the logarithm of the device time: 0.1 is about ten percent either way."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement to learn from."""

    work: Work
    executor: str
    variant: str
    device_us: float
    host_us: float


class CostModel(Protocol):
    """Predicts and learns. The same rows in the same order always give the same predictions."""

    def predict(self, regions: Sequence[Asked]) -> list[Prediction]:
        """One prediction for each of `regions`, in order."""
        ...

    def update(self, rows: Sequence[Row]) -> None:
        """Learn from measurements, in addition to all that came before."""
        ...
