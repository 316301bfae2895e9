"""What is compared: the learned model, its functions one by one, the baselines, and a random forest on raw shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fuseplan.models.baselines import BestSingleExecutor, Random
from fuseplan.models.evaluation.data import Data
from fuseplan.models.features import EXECUTORS, VARIANTS, Looking
from fuseplan.models.fitting import SEED, WILD
from fuseplan.models.heads import QuestionTable
from fuseplan.models.learners import FAMILIES, one_thread
from fuseplan.models.model import CostModel, Question, Row
from fuseplan.models.roofline import Roofline

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LEARNED = "learned"
RAW = "random forest on raw shapes"


def baselines(data: Data) -> dict[str, Callable[[], CostModel]]:
    """Models that are asked and told like the learned one, made anew."""
    return {
        "roofline": lambda: Roofline(data.machine),
        "best single executor": lambda: BestSingleExecutor(data.machine),
        "random": lambda: Random(SEED),
    }


def by_functions(data: Data, train: Sequence[int], test: Sequence[int], looking: Looking) -> dict[str, Floats]:
    """The device time of the rows of `test`, by each family of functions fitted on `train`: nothing but the function differs."""
    import numpy as np

    known = [i for i in train if data.rows[i].usable]
    roofline = Roofline(data.machine)
    roofline.update([data.rows[i] for i in known])
    rates = roofline.rates
    seen = QuestionTable.of([data.questions[i] for i in known], looking, rates)
    table = QuestionTable.of([data.questions[i] for i in test], looking, rates)
    device = np.array([data.rows[i].device_us for i in known])
    ratio = np.clip(np.log(device / np.maximum(seen.device_us, 1e-3)), -WILD, WILD)
    found: dict[str, Any] = {}
    for name, fit in FAMILIES.items():
        parts = name.split(" + ")
        if len(parts) > 1:  # both have been fitted by now, with the same seed
            found[name] = np.mean([found[part] for part in parts], axis=0)
        else:
            found[name] = fit(seen.features, ratio, SEED).predict(table.features)
    return {name: table.device_us * np.exp(one) for name, one in found.items()}


def by_raw_shapes(train: Sequence[Row], test: Sequence[Question]) -> Floats:
    """The device time by scikit-learn's random forest as it comes, from sizes and the executor alone."""
    import numpy as np
    from sklearn.ensemble import RandomForestRegressor

    known = [row for row in train if row.usable]
    rows = np.array([_raw((row.work, row.executor, row.variant)) for row in known])
    with one_thread():
        forest = RandomForestRegressor(random_state=SEED).fit(rows, [row.device_us for row in known])
        found: Floats = forest.predict(np.array([_raw(question) for question in test]))
    return found


def _raw(question: Question) -> tuple[float, ...]:
    work, executor, variant = question
    traits = work.traits
    return (
        traits.largest / max(1, traits.inner),
        traits.inner,
        traits.item,
        work.inputs,
        work.outputs,
        EXECUTORS.index(executor) if executor in EXECUTORS else -1,
        VARIANTS.index(variant) if variant in VARIANTS else -1,
    )
