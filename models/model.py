"""What a cost model is: it predicts the times of regions and learns from those that were measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fuseplan.models.work import Work

Asked = tuple[Work, str, str]
"""A region's work, the executor that would run it, and the variant."""
NINE_OF_TEN = 1.645
"""So many standard deviations either way hold nine of ten."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The times of one call, and how sure the model is of them."""

    device_us: float
    host_us: float
    spread: float
    """One standard deviation of the logarithm of the device time: 0.1 is about ten percent either way."""
    fails: float = 0.0
    """How likely it is not to run at all, or to compute something else."""
    near_best: float | None = None
    """How likely it is within 3 % of the best there is for its region; None from a model that does not say."""
    unsure: bool = False
    """Unlike what was learnt from: measure it rather than believe this."""

    @property
    def low_us(self) -> float:
        """The lower end of what holds nine times of ten.

        >>> round(Prediction(100.0, 5.0, 0.1).low_us), round(Prediction(100.0, 5.0, 0.1).high_us)
        (85, 118)
        """
        return self.device_us * math.exp(-NINE_OF_TEN * self.spread)

    @property
    def high_us(self) -> float:
        """The upper end of it."""
        return self.device_us * math.exp(NINE_OF_TEN * self.spread)


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

    def predict(self, regions: Sequence[Asked]) -> list[Prediction]:
        """One prediction for each of `regions`, in order."""
        ...

    def update(self, rows: Sequence[Row]) -> None:
        """Learn from measurements, in addition to all that came before."""
        ...
