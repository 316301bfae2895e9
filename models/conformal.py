"""How far off predictions are, learnt from regions that the model had not seen: nine of ten errors stay within a band.

Errors are divided by what the model itself expects of them; the bands are by executor and size class, since neither
small regions nor all executors are predicted equally well. A class with few rows borrows from all of its executor.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SIZES_US = (5.0, 10.0, 30.0, 100.0)
"""Where size classes end, by predicted device time."""
SHARE = 0.9
ENOUGH = 60
"""Rows of a class that make it one of its own."""


def size_class(device_us: float) -> int:
    """The class of a predicted time.

    >>> [size_class(us) for us in (1, 7, 50, 1e6)]
    [0, 1, 3, 4]
    """
    return bisect_right(SIZES_US, device_us)


@dataclass(frozen=True)
class Bands:
    """By which factor of the expected error nine of ten errors are within, by executor and size class."""

    classes: Mapping[tuple[str, int], float]
    executors: Mapping[str, float]
    overall: float

    def of(self, executor: str, size: int) -> float:
        """The factor for one class."""
        return self.classes.get((executor, size), self.executors.get(executor, self.overall))

    def all(self, executors: Sequence[str], device_us: Floats) -> Floats:
        """The factor for each of many."""
        import numpy as np

        sizes = np.searchsorted(SIZES_US, device_us, side="right").tolist()
        return np.array([self.of(*one) for one in zip(executors, sizes, strict=True)])


def bands(executors: Sequence[str], device_us: Floats, scores: Floats, share: float = SHARE) -> Bands:
    """The bands that hold so large a share of `scores`: errors, divided by what was expected of them.

    >>> import numpy as np
    >>> found = bands(["aten"] * 99, np.full(99, 7.0), np.arange(1.0, 100.0))
    >>> found.of("aten", 1), found.of("aten", 4), found.of("other", 0)
    (90.0, 90.0, 90.0)
    """
    import numpy as np

    sizes = np.searchsorted(SIZES_US, device_us, side="right")
    names = np.asarray(executors)
    classes, by_executor = {}, {}
    for executor in sorted(set(executors)):
        mine = names == executor
        if mine.sum() >= ENOUGH // 2:
            by_executor[executor] = quantile(scores[mine], share)
        for size in range(len(SIZES_US) + 1):
            here = mine & (sizes == size)
            if here.sum() >= ENOUGH:
                classes[executor, size] = quantile(scores[here], share)
    return Bands(classes, by_executor, quantile(scores, share))


def quantile(scores: Floats, share: float) -> float:
    """The score that a new one stays below in so many cases: the rank counts the new one too."""
    import numpy as np

    if not len(scores):
        return 1.0
    rank = min(len(scores), int(np.ceil(share * (len(scores) + 1))))
    return float(np.partition(scores, rank - 1)[rank - 1])
