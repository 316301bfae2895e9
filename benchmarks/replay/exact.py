"""Times that are the same on every kind of machine, and the cost models that give them.

Processors, and the libraries made for them, differ in the last digits of a logarithm or of a fit: of two cuts that cost the
same, another one would come first on another machine. So times lie on a grid, so coarse that what machines differ by is lost,
and so that sums of them are exact whatever their order: cuts of the same regions then cost the same to the last digit. What was
learnt from measurements is not fitted here, since a fit decides ties of its own; it is kept (`fit.npz`).
"""

from __future__ import annotations

from collections.abc import Sequence

from fuseplan.models import Cost, CostModel, Question, Roofline
from fuseplan.models.learned import Learned

STEPS = 2.0**16
"""Of the grid, in a µs, and of spreads in one: a power of two, so that sums are exact."""


def on_grid(number: float) -> float:
    """The number of the grid that is nearest.

    >>> on_grid(0.1 + 0.2) == on_grid(0.3), on_grid(1e300)
    (True, 1e+300)
    """
    return round(number * STEPS) / STEPS if abs(number) < 2.0**32 else number


class ExactCost(Cost):
    """A cost on the grid; so is what it is lowered to."""

    __slots__ = ()

    def lowered(self, spreads: float) -> Cost:
        """The same with both times lowered by so many spreads."""
        return exact(Cost.lowered(self, spreads))


def exact(cost: Cost) -> ExactCost:
    """A cost with its numbers on the grid."""
    near = None if cost.near_best is None else on_grid(cost.near_best)
    times = (on_grid(cost.device_us), on_grid(cost.host_us), on_grid(cost.spread), on_grid(cost.fails))
    return ExactCost(*times, near, cost.unsure, cost.status)


class ExactRoofline(Roofline):
    """The roofline on the grid."""

    def predict(self, regions: Sequence[Question]) -> list[Cost]:
        """One cost for each of `regions`, in order."""
        return [exact(cost) for cost in super().predict(regions)]


class ExactLearned(Learned):
    """The learned model on the grid."""

    def predict(self, regions: Sequence[Question]) -> list[Cost]:
        """One cost for each of `regions`, in order."""
        return [exact(cost) for cost in super().predict(regions)]


def exact_model(model: CostModel) -> CostModel:
    """A model that nothing was measured for yet, on the grid."""
    if isinstance(model, Learned):
        return ExactLearned(model.heads)
    assert isinstance(model, Roofline), model
    return ExactRoofline(model.machine)
