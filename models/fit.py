"""Non-negative least squares on the logarithm of times, drawn towards what was believed before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

ROUNDS = 30
NOISE = 0.15
"""The scatter around a good fit that is expected before there are rows; counts as much as `NOISE_ROWS` of them."""
NOISE_ROWS = 4
_LEAST_NOISE = 0.02
_TAIL = 4.0
"""Errors are taken to follow Student's t with so many degrees of freedom: a clock that stumbled is no law of nature."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What terms are multiplied by, what is still in doubt about that, and the scatter that no weight explains."""

    values: tuple[float, ...]
    doubt: tuple[tuple[float, ...], ...]
    """The covariance of the weights."""
    noise: float

    @staticmethod
    def unfitted(doubt: Sequence[float]) -> Weights:
        """Before any row: all weights are one, and each may be wrong by its share."""
        matrix = tuple(tuple(d * d if i == j else 0.0 for j in range(len(doubt))) for i, d in enumerate(doubt))
        return Weights((1.0,) * len(doubt), matrix, NOISE)

    def total(self, terms: Sequence[float]) -> float:
        """The weighted sum.

        >>> Weights.unfitted((0.3, 0.4)).total((1.0, 2.5))
        3.5
        """
        return sum([value * term for value, term in zip(self.values, terms, strict=True)])

    def spread(self, terms: Sequence[float], total: float) -> float:
        """One standard deviation of the logarithm of a time that has these terms.

        >>> round(Weights.unfitted((0.3, 0.4)).spread((1.0, 0.0), 1.0) ** 2, 4)
        0.1125
        """
        variance = self.noise * self.noise
        if total > 0:
            present = [(i, term / total) for i, term in enumerate(terms) if term]
            for i, share in present:
                row = self.doubt[i]
                variance += share * sum([row[j] * other for j, other in present])
        return sqrt(variance)


def fit(terms: Sequence[Sequence[float]], times: Sequence[float], doubt: Sequence[float]) -> Weights:
    """The weights under which the terms explain the times best; each is drawn towards one, the more the less its doubt.

    Errors count relative to the time, as a linear fit of the logarithm does: Gauss-Newton steps, each a non-negative
    least squares. The same rows give the same weights.
    """
    import numpy as np

    matrix, measured = np.asarray(terms, dtype=np.float64), np.asarray(times, dtype=np.float64)
    usable = (measured > 0) & np.isfinite(measured) & (matrix.sum(axis=1) > 0)
    matrix, measured = matrix[usable], measured[usable]
    if not len(measured):
        return Weights.unfitted(doubt)
    believed = np.asarray(doubt, dtype=np.float64)
    weights, noise = np.ones(len(believed)), NOISE
    for _ in range(ROUNDS):
        predicted = np.maximum(matrix @ weights, 1e-9)
        error = np.log(measured / predicted)
        trust = (_TAIL + 1) / (_TAIL + (error / noise) ** 2)
        scale = np.sqrt(trust) / noise
        rows = matrix / predicted[:, None] * scale[:, None]
        # A step of more than a factor of e would leave the range in which the logarithm is nearly straight.
        better = _solve(rows, (1.0 + np.clip(error, -1.0, 1.0)) * scale, believed)
        moved = float(np.max(np.abs(better - weights)))
        weights = better
        scatter = float(NOISE_ROWS * NOISE**2 + np.sum(trust * error**2)) / (NOISE_ROWS + len(measured))
        noise = max(_LEAST_NOISE, sqrt(scatter))
        if moved < 1e-6:
            break
    doubts = np.linalg.inv(rows.T @ rows + np.diag(believed**-2.0))
    return Weights(tuple(map(float, weights)), tuple(tuple(map(float, row)) for row in doubts), noise)


def _solve(rows: Array, aims: Array, doubt: Array) -> Array:
    """One non-negative least squares, with a row for each belief that a weight is one."""
    import numpy as np
    from scipy.optimize import nnls

    beliefs = doubt**-2.0
    triangle = np.linalg.cholesky(
        rows.T @ rows + np.diag(beliefs)
    ).T  # stands for all rows; the beliefs keep it regular
    solution: Array = nnls(triangle, np.linalg.solve(triangle.T, rows.T @ aims + beliefs))[0]
    return solution
