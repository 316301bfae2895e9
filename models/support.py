"""What a model has ground to stand on: how far a row is from those that were learnt from. Trees alone do not notice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[Any]
    Floats = NDArray[np.float64]

PLACES = 256
"""Rows that stand for all: the distance to the nearest of them tells near from far, and costs microseconds."""
FAR = 0.99
"""So many rows of groups that were not seen are nearer than what is called far."""


@dataclass(frozen=True, eq=False)
class Support:
    """Some of the rows that were learnt from, by features of equal spread."""

    mean: Array
    scale: Array
    places: Array
    limit: float = 1.0

    def distance(self, rows: Array) -> Floats:
        """How far each row is from the nearest place, as a share of what is called far."""
        import numpy as np

        found = np.empty(len(rows))
        for start in range(0, len(rows), 2048):
            part = (rows[start : start + 2048] - self.mean) / self.scale
            squares = np.einsum("ij,ij->i", part, part)[:, None] - part @ (2.0 * self.places).T
            squares += np.einsum("ij,ij->i", self.places, self.places)
            found[start : start + 2048] = np.sqrt(np.maximum(squares.min(axis=1), 0.0))
        return found / self.limit

    def arrays(self) -> dict[str, Array]:
        """All of it, to be stored."""
        import numpy as np

        return {"mean": self.mean, "scale": self.scale, "places": self.places, "limit": np.array([self.limit])}

    @staticmethod
    def of(arrays: Mapping[str, Array]) -> Support:
        """What `arrays` gave."""
        return Support(arrays["mean"], arrays["scale"], arrays["places"], float(arrays["limit"][0]))


def support(rows: Array, folds: Array, seed: int) -> Support:
    """The ground that these rows are; rows of one fold say how far what is new usually lies from the others."""
    import numpy as np

    away = np.zeros(len(rows))
    for fold in np.unique(folds):
        out = folds == fold
        if not out.all():
            away[out] = _drawn(rows[~out], seed).distance(rows[out])
    return replace(_drawn(rows, seed), limit=max(1e-3, float(np.quantile(away, FAR))))


def _drawn(rows: Array, seed: int) -> Support:
    import numpy as np

    mean, scale = rows.mean(axis=0, dtype=np.float64), rows.std(axis=0, dtype=np.float64)
    scale = np.where(scale > 1e-6, scale, 1.0)
    chosen = np.random.default_rng(seed).permutation(len(rows))[:PLACES]
    return Support(mean, scale, (rows[chosen] - mean) / scale)
