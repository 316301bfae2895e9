"""One split: everything learnt on the one part and asked of the other. What is left out shares no region with the rest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fuseplan.models.evaluation.choices import executor_regrets, island_regrets
from fuseplan.models.evaluation.contenders import LEARNED, RAW, baselines, by_functions, by_raw_shapes
from fuseplan.models.evaluation.data import Data, Decision
from fuseplan.models.evaluation.moves import Moved, moved
from fuseplan.models.evaluation.replay import SHARES, ByBounds, Spent, sessions_of
from fuseplan.models.features import Looking
from fuseplan.models.fitting import fit_heads
from fuseplan.models.heads import Heads
from fuseplan.models.learned import Gap, Learned
from fuseplan.models.model import CostModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Split:
    """Numbers of rows to learn from and to be asked about, and the islands to choose for."""

    name: str
    train: tuple[int, ...]
    test: tuple[int, ...]
    """The rows that errors are counted on."""
    decisions: tuple[Decision, ...]


@dataclass(frozen=True)
class Regrets:
    """Of one model in one split: top-1 and top-3 of both kinds of choice."""

    executor: list[float]
    executor_3: list[float]
    island: list[float]
    island_3: list[float]


@dataclass(frozen=True)
class SplitResult:
    """What came of one split."""

    name: str
    train: int
    test: tuple[int, ...]
    device: dict[str, Any]
    """By model, the predicted device time of each row of the test part."""
    regrets: dict[str, Regrets]
    host: Any
    host_roofline: Any
    low: Any
    high: Any
    unsure: Any
    fails: Any
    near: Any
    moves: list[Moved]
    plans: dict[str, list[tuple[str, list[Spent]]]] = field(default_factory=dict)


def left_out(data: Data) -> list[Split]:
    """Each model family in turn; regions that it shares with others are not learnt from."""
    splits = []
    for family in sorted(set(data.families)):
        apart = data.regions_of([family])
        test = tuple(i for i, one in enumerate(data.families) if one == family)
        train = tuple(i for i, row in enumerate(data.measured) if row.region not in apart)
        splits.append(Split(family, train, test, tuple(data.decided_in([family]))))
    return splits


def grouped(data: Data, folds: int) -> list[Split]:
    """Islands at random, with all that was cut from them; the same every time."""

    def fold_of(island: str) -> int:
        return hashlib.blake2b(island.encode(), digest_size=4, key=b"grouped").digest()[1] % folds

    splits = []
    for fold in range(folds):
        test = tuple(i for i, row in enumerate(data.measured) if fold_of(row.island) == fold)
        inside = set(test)
        train = tuple(i for i in range(len(data.measured)) if i not in inside)
        splits.append(Split(f"fold {fold}", train, test, ()))
    return splits


def heads_of(data: Data, train: Sequence[int]) -> Heads:
    """The whole learned model, on part of the rows."""
    return fit_heads([data.rows[i] for i in train], data.machine, [data.measured[i].island for i in train])


def run_split(data: Data, split: Split, *, contenders: bool = True) -> SplitResult:
    """Fit all models on one part, and ask them about the other."""
    import numpy as np

    looking = Looking(data.machine)
    heads = heads_of(data, split.train)
    learned = Learned(heads)
    wanted = sorted({*split.test, *_rows_of(data, split.decisions)})
    place = {row: i for i, row in enumerate(wanted)}
    questions = [data.questions[i] for i in wanted]
    predictions = learned.predict(questions)
    device = {LEARNED: np.array([one.device_us for one in predictions])}
    host_roofline = np.array([one.host_us for one in predictions])
    if contenders:
        train = [data.rows[i] for i in split.train]
        for name, make in baselines(data).items():
            model = make()
            model.update(train)
            found = model.predict(questions)
            device[name] = np.array([one.device_us for one in found])
            host_roofline = np.array([one.host_us for one in found]) if name == "roofline" else host_roofline
        device[RAW] = by_raw_shapes(train, questions)
        device |= by_functions(data, split.train, wanted, looking)
    regions = sorted({data.measured[i].region for i in split.test})
    at = [place[i] for i in split.test]
    tested = [predictions[i] for i in at]
    return SplitResult(
        split.name,
        len(split.train),
        split.test,
        {name: values[at] for name, values in device.items()},
        {name: _regrets(data, split, regions, _looked_up(place, values)) for name, values in device.items()},
        np.array([one.host_us for one in tested]),
        host_roofline[at],
        np.array([one.low_us for one in tested]),
        np.array([one.high_us for one in tested]),
        np.array([one.unsure for one in tested]),
        np.array([one.fails for one in tested]),
        np.array([one.near_best or 0.0 for one in tested]),
        _moves(data, split, learned, place, device[LEARNED], np.array([one.unsure for one in predictions])),
        _plans(data, split, heads) if contenders else {},
    )


def _rows_of(data: Data, decisions: Sequence[Decision]) -> set[int]:
    keys = {key for one in decisions for cut in one.cuts for key in cut.units}
    return {choice.row for key in keys for choice in data.units[key]}


def _looked_up(place: dict[int, int], values: Floats) -> Callable[[int], float]:
    numbers = values.tolist()
    return lambda row: float(numbers[place[row]])


def _regrets(data: Data, split: Split, regions: Sequence[str], predicted: Callable[[int], float]) -> Regrets:
    return Regrets(*executor_regrets(data, regions, predicted), *island_regrets(data, split.decisions, predicted))


def _moves(
    data: Data, split: Split, learned: Learned, place: dict[int, int], device: Floats, unsure: Any
) -> list[Moved]:
    def gap(first: Sequence[int], second: Sequence[int]) -> Gap:
        return learned.gap([data.questions[i] for i in first], [data.questions[i] for i in second])

    return moved(data, split.decisions, _looked_up(place, device), gap, lambda row: bool(unsure[place[row]]))


def _plans(data: Data, split: Split, heads: Heads) -> dict[str, list[tuple[str, list[Spent]]]]:
    """Each session by each model, which is told of nothing but the training part before."""
    train = [data.rows[i] for i in split.train]

    def told(make: Callable[[], CostModel]) -> Callable[[], CostModel]:
        def fresh() -> CostModel:
            model = make()
            model.update(train)
            return model

        return fresh

    models: dict[str, Callable[[], CostModel]] = {LEARNED: lambda: Learned(replace(heads))}
    models |= {name: told(make) for name, make in baselines(data).items()}
    sessions = sessions_of(split.decisions)
    return {
        name: [(one.name, ByBounds(data, one.plans, make()).spend(SHARES)) for one in sessions]
        for name, make in models.items()
    }
