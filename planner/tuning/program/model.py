"""Which cost model tuning goes by: the learned one where it knows the kind of machine, or one to compare it with."""

from __future__ import annotations

from pathlib import Path

from fuseplan.errors import OptionError
from fuseplan.models import BestSingleExecutor, CostModel, Machine, Random, Roofline
from fuseplan.models.learned import Learned
from fuseplan.models.shipped import planner_model

LEARNED = "learned"
MODELS = (LEARNED, "roofline", "best-single-executor", "random")


def cost_model(name: str, machine: Machine, folder: Path | None = None) -> CostModel:
    """The model of a name for a machine; fits are kept in `folder`, if there is one.

    Where nothing was learnt of such a machine, the learned model is the roofline.

    >>> type(cost_model("roofline", Machine.guess("NVIDIA H200"))).__name__
    'Roofline'
    """
    check_name(name)
    match name:
        case "roofline":
            return Roofline(machine)
        case "best-single-executor":
            return BestSingleExecutor(machine)
        case "random":
            return Random()
    return planner_model(machine, folder)


def check_name(name: str) -> None:
    """Raise OptionError for a model that there is not."""
    if name not in MODELS:
        raise OptionError(f"there is no cost model {name!r}; known are {', '.join(MODELS)}")


def knows_its_doubts(model: CostModel) -> bool:
    """Whether what the model says of its errors is good enough to leave things unmeasured for it."""
    return isinstance(model, Learned)
