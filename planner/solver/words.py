"""The words of the solver: what a region may cost, what an island and a whole program may be cut into."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fuseplan.models import Cost
from fuseplan.segment import Choice, Region, Segmentation

PLAIN: Choice = ("aten", "default")
"""What every other choice is compared with, and what runs an op that is in no region."""


class Costs(Protocol):
    """What the regions of one graph cost.

    Every fusible op must have a choice alone, or a region that holds it; the ops that no island holds are asked for
    alone as well, and count nothing where there is no choice.
    """

    def __call__(self, ops: tuple[int, ...], recompute: tuple[int, ...]) -> Mapping[Choice, Cost]:
        """What these ops cost as one region, by choice; nothing if no executor takes them together. Both are sorted by position."""


Ops = tuple[tuple[int, ...], tuple[int, ...]]
"""The ops of a region, as costs are asked for it: its own, and those that it computes again."""


def cost_all(costs: Costs, regions: Sequence[Ops]) -> Sequence[Mapping[Choice, Cost]]:
    """What each of many regions costs. Who can tell of many at once more cheaply has a method `all` beside the call.

    >>> cost_all(lambda ops, recompute: {PLAIN: Cost(float(len(ops)), 0.0)}, [((1, 2), ())])[0][PLAIN].device_us
    2.0
    """
    at_once: Callable[[Sequence[Ops]], Sequence[Mapping[Choice, Cost]]] | None = getattr(costs, "all", None)
    return [costs(*region) for region in regions] if at_once is None else at_once(regions)


@dataclass(frozen=True, slots=True)
class SolverLimits:
    """How far the search looks. An island within them is solved exactly; a larger one is solved nearly so."""

    region_ops: int = 16
    """The most ops of one region, recomputed ones included."""
    window: int = 96
    """The most ops that are looked at together; windows of a larger island overlap by more than a region."""
    regions: int = 8192
    """The most candidate regions of one island, but never less than a handful for each of its ops."""
    all_regions: int = 60_000
    """The most candidate regions of all islands together, by the same rule."""
    states: int = 512
    """The most ways to have done the same number of ops of an island of `region_ops`: those go on that promise the lowest
    cost. Of an island of twice as many ops an eighth of that, since its time grows so much faster."""


@dataclass(frozen=True, slots=True)
class Solution:
    """One way to cut an island: its regions in an order in which they can run, and what they cost together.

    Every op of the island is in a region, but for those that are computed again wherever they are read; where others
    need such an op too, it runs alone under ATen, and `calls` has it.
    """

    regions: tuple[Region, ...]
    device_us: float
    host_us: float
    calls: tuple[tuple[float, float], ...] = ()
    """(host, device) µs of all that runs, in order."""


@dataclass(frozen=True, slots=True)
class WholeSolution:
    """One way to cut all graphs of a program, and how long it is predicted to take."""

    segmentations: tuple[Segmentation, ...]
    total_us: float
