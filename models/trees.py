"""Ensembles of regression trees as flat arrays: they are stored without pickle and asked for a few rows at no great cost.

scikit-learn fits them. Its own `predict` takes milliseconds whatever it is asked, and the search asks for a handful of
regions, thousands of times: few rows go through all trees at once in numpy, many through scikit-learn's compiled trees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[Any]
    Floats = NDArray[np.float64]

FEW = 16
"""Rows up to which numpy is the faster of the two."""


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees, one after the other in the arrays; a leaf leads to itself. Features are float32, as they were when fitted."""

    feature: Array
    threshold: Array
    """A row goes right where its feature is larger."""
    child: Array
    """The left and the right child of each node, in turn."""
    value: Array
    roots: Array
    base: float
    """What is added to the sum over the trees."""
    depth: int
    mean: bool
    """Whether the trees are of one mind each, and the answer is their mean; else each corrects those before it."""

    def predict(self, rows: Array) -> Floats:
        """One value for each row."""
        return self.both(rows)[0]

    def both(self, rows: Array) -> tuple[Floats, Floats]:
        """The values, and how far the trees are from one another: nothing where they are not of one mind each."""
        import numpy as np

        count = len(self.roots)
        if not count:
            return np.full(len(rows), self.base), np.zeros(len(rows))
        few = len(rows) <= FEW or self._compiled is None
        total, squares = self._few(rows) if few else self._many(rows)
        if not self.mean:
            return self.base + total, np.zeros(len(rows))
        middle = total / count
        return middle, np.sqrt(np.maximum(squares / count - middle * middle, 0.0))

    def _few(self, rows: Array) -> tuple[Floats, Floats]:
        import numpy as np

        at = np.broadcast_to(self.roots, (len(rows), len(self.roots)))
        number = np.arange(len(rows))[:, None]
        for _ in range(self.depth):
            right = rows[number, self.feature[at]] > self.threshold[at]
            at = self.child[2 * at + right]
        found: Floats = self.value[at]
        return found.sum(axis=1), (found * found).sum(axis=1)

    def _many(self, rows: Array) -> tuple[Floats, Floats]:
        import numpy as np

        assert self._compiled is not None
        rows = np.ascontiguousarray(rows, dtype=np.float32)
        total, squares = np.zeros(len(rows)), np.zeros(len(rows))
        for tree, value in self._compiled:
            found = value.take(tree.apply(rows))
            total += found
            if self.mean:
                squares += found * found
        return total, squares

    @cached_property
    def _compiled(self) -> list[tuple[Any, Array]] | None:
        """The trees as scikit-learn's, with the values of their nodes; None where its version has others."""
        import numpy as np

        try:
            from sklearn.tree._tree import NODE_DTYPE, Tree
        except ImportError:
            return None
        ends = [*self.roots[1:], len(self.feature)]
        found = []
        for begin, end in zip(self.roots, ends, strict=True):
            nodes = np.zeros(end - begin, dtype=NODE_DTYPE)
            children = self.child[2 * begin : 2 * end].reshape(-1, 2) - begin
            leaf = children[:, 0] == np.arange(end - begin)
            nodes["left_child"] = np.where(leaf, -1, children[:, 0])
            nodes["right_child"] = np.where(leaf, -1, children[:, 1])
            nodes["feature"] = np.where(leaf, -2, self.feature[begin:end])
            nodes["threshold"] = np.where(leaf, -2.0, self.threshold[begin:end])
            nodes["n_node_samples"] = nodes["weighted_n_node_samples"] = 1
            values = np.ascontiguousarray(self.value[begin:end].reshape(-1, 1, 1))
            tree = Tree(int(self.feature.max()) + 1, np.ones(1, dtype=np.intp), 1)
            try:
                tree.__setstate__(
                    {"max_depth": self.depth, "node_count": end - begin, "nodes": nodes, "values": values}
                )
            except (KeyError, TypeError, ValueError):
                return None
            found.append((tree, values.reshape(-1)))
        return found

    def arrays(self) -> dict[str, Array]:
        """All of it, to be stored."""
        import numpy as np

        names = ("feature", "threshold", "child", "value", "roots")
        return {name: getattr(self, name) for name in names} | {"base": np.array([self.base, self.depth, self.mean])}

    @staticmethod
    def of(arrays: Mapping[str, Array]) -> Forest:
        """What `arrays` gave. Raises KeyError where something is missing."""
        base, depth, mean = arrays["base"]
        return Forest(
            arrays["feature"], arrays["threshold"], arrays["child"], arrays["value"], arrays["roots"],
            float(base), int(depth), bool(mean),
        )  # fmt: skip


def of_boosting(model: Any) -> Forest:
    """The trees of a fitted HistGradientBoosting model without categories and missing values."""
    import numpy as np

    parts = []
    for (predictor,) in model._predictors:
        nodes = predictor.nodes
        leaf = nodes["is_leaf"].astype(bool)
        own = np.arange(len(nodes))
        children = np.stack([np.where(leaf, own, nodes["left"]), np.where(leaf, own, nodes["right"])], axis=1)
        threshold = np.where(leaf, np.inf, nodes["num_threshold"])
        parts.append((np.where(leaf, 0, nodes["feature_idx"]), threshold, children, nodes["value"] * leaf))
    return _joined(parts, float(np.ravel(model._baseline_prediction)[0]), mean=False)


def of_trees(model: Any) -> Forest:
    """The trees of a fitted forest of scikit-learn: their mean."""
    import numpy as np

    parts = []
    for one in model.estimators_:
        tree = one.tree_
        leaf = tree.children_left < 0
        own = np.arange(tree.node_count)
        children = np.stack([np.where(leaf, own, tree.children_left), np.where(leaf, own, tree.children_right)], axis=1)
        value = tree.value[:, 0, 0] * leaf
        parts.append((np.where(leaf, 0, tree.feature), np.where(leaf, np.inf, tree.threshold), children, value))
    return _joined(parts, 0.0, mean=True)


def constant(value: float) -> Forest:
    """The same for all.

    >>> constant(2.5).predict([[0.0], [1.0]]).tolist()
    [2.5, 2.5]
    """
    return _joined([], value, mean=False)


def _joined(parts: list[tuple[Array, Array, Array, Array]], base: float, *, mean: bool) -> Forest:
    import numpy as np

    sizes = [len(part[0]) for part in parts]
    roots = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64) if parts else np.zeros(0, np.int64)
    children = [part[2] + root for part, root in zip(parts, roots, strict=True)]
    depth = max((_depth(part[2]) for part in parts), default=0)
    return Forest(
        np.concatenate([part[0] for part in parts]).astype(np.int16) if parts else np.zeros(0, np.int16),
        np.concatenate([part[1] for part in parts]).astype(np.float64) if parts else np.zeros(0),
        np.concatenate(children).astype(np.int32).reshape(-1) if parts else np.zeros(0, np.int32),
        np.concatenate([part[3] for part in parts]).astype(np.float64) if parts else np.zeros(0),
        roots,
        base,
        depth,
        mean,
    )


def _depth(children: Array) -> int:
    """How many steps the longest way down takes."""
    import numpy as np

    level, depth = np.zeros(1, dtype=np.int64), 0
    while True:
        below = children[level]
        level = below[below[:, 0] != level].reshape(-1)
        if not len(level):
            return depth
        depth += 1
