"""What a cost model is: it predicts the costs of regions and learns from those that were measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fuseplan.models.cost import Cost
from fuseplan.models.work import Work

Question = tuple[Work, str, str]
"""A region's work, the executor that would run it, and the variant."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement to learn from; what did not run has a status other than `ok`, and times that are not finite."""

    work: Work
    executor: str
    variant: str
    device_us: float
    host_us: float
    status: str = "ok"

    @property
    def usable(self) -> bool:
        """Whether there is a time to learn from."""
        return self.status == "ok" and 0 < self.device_us < math.inf and 0 <= self.host_us < math.inf


class CostModel(Protocol):
    """Predicts and learns. The same rows in the same order always give the same predictions."""

    def predict(self, regions: Sequence[Question]) -> list[Cost]:
        """One cost for each of `regions`, in order."""
        ...

    def update(self, rows: Sequence[Row]) -> None:
        """Learn from measurements, in addition to all that came before."""
        ...
