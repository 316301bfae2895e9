"""Which features carry the predictions and the decisions: how much worse they get when a feature is shuffled among regions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fuseplan.models.evaluation.data import Data
from fuseplan.models.evaluation.moves import moved
from fuseplan.models.evaluation.splits import Split, heads_of
from fuseplan.models.features import FEATURES, Looking
from fuseplan.models.heads import QuestionTable
from fuseplan.models.learned import Gap

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

TOP = 12
"""So many features, of those that matter most for times, are looked at for each move."""


def importances(data: Data) -> dict[str, Any]:
    """Learnt on three quarters of the islands, asked of the last. The roofline below keeps what it knows.

    `error` is by how much the mean absolute error of log time grows, by feature and by group of features; `moves` is by how
    much the share of right decisions of each move shrinks.
    """
    import numpy as np

    split = _quarter(data)
    heads = heads_of(data, split.train)
    table = QuestionTable.of([data.questions[i] for i in split.test], Looking(data.machine), heads.rates)
    known = np.array([data.timed[i] for i in split.test])
    truth = np.array([data.rows[i].device_us for i in split.test])[known]
    function, chance = heads.functions["device"], np.random.default_rng(11)
    order = chance.permutation(len(split.test))

    def device(columns: list[int]) -> Floats:
        rows = table.features.copy()
        rows[:, columns] = rows[order][:, columns]
        found: Floats = np.maximum(table.device_us * np.exp(function.predict(rows)), 1e-3)
        return found

    def error(values: Floats) -> float:
        return float(np.abs(np.log(values[known] / truth)).mean())

    whole = device([])
    columns = {feature.name: [i] for i, feature in enumerate(FEATURES)}
    groups: dict[str, list[int]] = {}
    for i, feature in enumerate(FEATURES):
        groups.setdefault(feature.group, []).append(i)
    growth = {name: error(device(found)) - error(whole) for name, found in columns.items()}
    ranked = sorted(growth, key=lambda name: -growth[name])
    base = _right(data, split, whole)
    losses = {
        name: _loss(base, _right(data, split, device(found)))
        for name, found in {**groups, **{name: columns[name] for name in ranked[:TOP]}}.items()
    }
    return {
        "error": {name: round(growth[name], 4) for name in ranked},
        "error_by_group": {name: round(error(device(found)) - error(whole), 4) for name, found in groups.items()},
        "moves": {
            kind: dict(sorted(((name, one[kind]) for name, one in losses.items()), key=lambda item: -item[1]))
            for kind in base
        },
    }


def _quarter(data: Data) -> Split:
    """A quarter of the islands, with all that they are cut into."""
    apart = {one.island for one in data.decisions if int(one.island[:4], 16) % 4 == 0}
    decisions = tuple(one for one in data.decisions if one.island in apart)
    regions = {key for one in decisions for cut in one.cuts for key in cut.units}
    test = tuple(i for i, row in enumerate(data.measured) if row.region in regions)
    train = tuple(i for i, row in enumerate(data.measured) if row.region not in regions)
    return Split("a quarter", train, test, decisions)


def _right(data: Data, split: Split, device: Floats) -> dict[str, tuple[int, int]]:
    """By move, how many decisions are right of those that matter."""
    values = dict(zip(split.test, device.tolist(), strict=True))

    def gap(first: Any, second: Any) -> Gap:
        before, after = (sum(values[row] for row in rows) for rows in (second, first))
        return Gap(float(after - before), 0.0)

    found: dict[str, tuple[int, int]] = {}
    for one in moved(data, split.decisions, values.__getitem__, gap, lambda _: False):
        if one.verdict != "immaterial":
            right, of = found.get(one.kind, (0, 0))
            found[one.kind] = (right + (one.forced == "right"), of + 1)
    return found


def _loss(base: dict[str, tuple[int, int]], other: dict[str, tuple[int, int]]) -> dict[str, float]:
    return {kind: round((right - other[kind][0]) / of, 4) for kind, (right, of) in base.items()}
