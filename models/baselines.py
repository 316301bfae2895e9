"""Cost models to compare others with: one that knows nothing, and one that always prefers the same executor."""

from __future__ import annotations

from collections.abc import Sequence

from fuseplan.models.model import Asked, Prediction, Row


class Random:
    """A number for each region and choice, the same whenever it is asked with the same seed."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def predict(self, regions: Sequence[Asked]) -> list[Prediction]:
        """One prediction for each of `regions`, in order."""
        raise NotImplementedError

    def update(self, rows: Sequence[Row]) -> None:
        """Nothing is learnt."""


class BestSingleExecutor:
    """Ranks executors by their geometric mean over the rows seen, the same for every region."""

    def predict(self, regions: Sequence[Asked]) -> list[Prediction]:
        """One prediction for each of `regions`, in order."""
        raise NotImplementedError

    def update(self, rows: Sequence[Row]) -> None:
        """Learn which executor is the fastest overall."""
        raise NotImplementedError
