"""Families of learned functions, all fitted by scikit-learn and kept as plain arrays; evaluation chooses among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fuseplan.models.trees import Forest, constant, of_boosting, of_trees

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[Any]
    Floats = NDArray[np.float64]


class Fitted(Protocol):
    """A function of features."""

    def predict(self, rows: Array) -> Floats:
        """One value for each row of float32 features."""
        ...

    def both(self, rows: Array) -> tuple[Floats, Floats]:
        """The values, and by how much those disagree that they are made of: what has no parts does not."""
        ...

    def arrays(self) -> dict[str, Array]:
        """All of it, to be stored."""
        ...


Fit = Callable[["Array", "Floats", int], Fitted]
"""Rows of features, what they should give, and a seed; the same three give the same function."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Fits take part of a machine that measures or trains beside them; waiting for busy cores would take longer yet."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1):
        yield


def boosting(rows: Array, target: Floats, seed: int, *, trees: int = 200, leaves: int = 24) -> Fitted:
    """Gradient boosting over histograms."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(
        max_iter=trees, max_leaf_nodes=leaves, learning_rate=0.06, min_samples_leaf=8, l2_regularization=1.0,
        max_features=0.4, early_stopping=False, random_state=seed,
    )  # fmt: skip
    with one_thread():
        return of_boosting(model.fit(rows, target))


def small_boosting(rows: Array, target: Floats, seed: int) -> Fitted:
    """Boosting of fewer and smaller trees, for what is simpler than device time."""
    return boosting(rows, target, seed, trees=100, leaves=12)


def extra_trees(rows: Array, target: Floats, seed: int) -> Fitted:
    """Extremely randomised trees."""
    from sklearn.ensemble import ExtraTreesRegressor

    model = ExtraTreesRegressor(32, min_samples_leaf=3, max_features=0.3, random_state=seed)
    with one_thread():
        return of_trees(model.fit(rows, target))


def classifier(rows: Array, target: Array, seed: int) -> Fitted:
    """Boosted trees for the log odds that `target` is one; where it always or never is, the share says so."""
    import numpy as np
    from sklearn.ensemble import HistGradientBoostingClassifier

    ones = int(np.sum(target))
    if min(ones, len(target) - ones) < 5:
        return constant(float(np.log((ones + 0.5) / (len(target) - ones + 0.5))))
    model = HistGradientBoostingClassifier(
        max_iter=80, max_leaf_nodes=12, learning_rate=0.08, min_samples_leaf=8, l2_regularization=1.0, max_features=0.4,
        early_stopping=False, random_state=seed,
    )  # fmt: skip
    with one_thread():
        return of_boosting(model.fit(rows, target))


def random_forest(rows: Array, target: Floats, seed: int) -> Fitted:
    """A random forest."""
    from sklearn.ensemble import RandomForestRegressor

    model = RandomForestRegressor(60, min_samples_leaf=2, max_features=0.4, random_state=seed)
    with one_thread():
        return of_trees(model.fit(rows, target))


@dataclass(frozen=True, eq=False)
class Kernel:
    """A ridge regression in the space of a Gaussian kernel, spanned by some of the rows."""

    mean: Array
    scale: Array
    centres: Array
    weights: Array
    gamma: float
    base: float

    def predict(self, rows: Array) -> Floats:
        """One value for each row."""
        import numpy as np

        found = np.empty(len(rows))
        for start in range(0, len(rows), 2048):
            part = (rows[start : start + 2048] - self.mean) / self.scale
            found[start : start + 2048] = _gauss(part, self.centres, self.gamma) @ self.weights + self.base
        return found

    def both(self, rows: Array) -> tuple[Floats, Floats]:
        """The values; nothing disagrees."""
        import numpy as np

        return self.predict(rows), np.zeros(len(rows))

    def arrays(self) -> dict[str, Array]:
        """All of it, to be stored."""
        import numpy as np

        names = ("mean", "scale", "centres", "weights")
        return {name: getattr(self, name) for name in names} | {"kernel": np.array([self.gamma, self.base])}


def kernel_ridge(rows: Array, target: Floats, seed: int, *, centres: int = 256, penalty: float = 0.3) -> Fitted:
    """Kernel ridge regression; at most so many rows, drawn at random, span its space."""
    import numpy as np

    rows64 = np.asarray(rows, dtype=np.float64)
    mean, scale = rows64.mean(axis=0), rows64.std(axis=0)
    scale = np.where(scale > 1e-9, scale, 1.0)
    near = (rows64 - mean) / scale
    chosen = np.random.default_rng(seed).permutation(len(near))[:centres]
    gamma = 0.25 / near.shape[1]
    base = float(np.mean(target))
    with one_thread():
        seen, own = _gauss(near, near[chosen], gamma), _gauss(near[chosen], near[chosen], gamma)
        left = seen.T @ seen + penalty * (own + 1e-6 * np.eye(len(chosen)))
        weights = np.linalg.solve(left, seen.T @ (target - base))
    return Kernel(mean, scale, near[chosen], weights, gamma, base)


def _gauss(rows: Array, centres: Array, gamma: float) -> Floats:
    import numpy as np

    found: Floats = rows @ (2.0 * centres).T
    found -= np.einsum("ij,ij->i", rows, rows)[:, None]
    found -= np.einsum("ij,ij->i", centres, centres)
    np.minimum(found, 0.0, out=found)
    found *= gamma
    return np.exp(found, out=found)


@dataclass(frozen=True, eq=False)
class Blend:
    """The mean of several."""

    parts: tuple[Fitted, ...]

    def predict(self, rows: Array) -> Floats:
        """One value for each row."""
        return self.both(rows)[0]

    def both(self, rows: Array) -> tuple[Floats, Floats]:
        """The mean, and by how much the parts disagree, within themselves and with one another."""
        import numpy as np

        found = [part.both(rows) for part in self.parts]
        values = np.stack([value for value, _ in found])
        inside = np.stack([scatter for _, scatter in found])
        return values.mean(axis=0), np.sqrt((inside**2).sum(axis=0) + values.var(axis=0))

    def arrays(self) -> dict[str, Array]:
        """All of it, to be stored."""
        return {f"{i}.{name}": one for i, part in enumerate(self.parts) for name, one in part.arrays().items()}


def blend(*fits: Fit) -> Fit:
    """Several together: they err in different places."""
    return lambda rows, target, seed: Blend(tuple(fit(rows, target, seed) for fit in fits))


FAMILIES: dict[str, Fit] = {
    "boosting": boosting,
    "extra-trees": extra_trees,
    "random-forest": random_forest,
    "kernel-ridge": kernel_ridge,
    "boosting + extra-trees": blend(boosting, extra_trees),
    "boosting + extra-trees + kernel-ridge": blend(boosting, extra_trees, kernel_ridge),
}
"""What is compared; a sum of names is the mean of those."""
CHOSEN = "boosting + extra-trees + kernel-ridge"
"""What the shipped model is, by benchmarks/results/cost-model.json."""


def fitted_of(arrays: Mapping[str, Array]) -> Fitted:
    """What `arrays` of any family gave."""
    if "kernel" in arrays:
        gamma, base = map(float, arrays["kernel"])
        return Kernel(arrays["mean"], arrays["scale"], arrays["centres"], arrays["weights"], gamma, base)
    if "roots" in arrays:
        return Forest.of(arrays)
    parts: dict[str, dict[str, Array]] = {}
    for name, one in arrays.items():
        number, _, rest = name.partition(".")
        parts.setdefault(number, {})[rest] = one
    return Blend(tuple(fitted_of(parts[number]) for number in sorted(parts, key=int)))
