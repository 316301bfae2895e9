"""Moves as data: what a plan records of how it came about, and what a person reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fuseplan.errors import PlanError
from fuseplan.graph import Graph
from fuseplan.segment.moves.evict import evict
from fuseplan.segment.moves.merge import merge_down, merge_up
from fuseplan.segment.moves.peel import keep, peel_both, peel_head, peel_tail
from fuseplan.segment.moves.recompute import recompute, reuse
from fuseplan.segment.moves.run import run
from fuseplan.segment.moves.shape import region_of, tidy
from fuseplan.segment.moves.split import split
from fuseplan.segment.region import Segmentation


@dataclass(frozen=True, slots=True)
class Move:
    """One step from a segmentation to another. Ops are named by position, a region by any of its ops.

    >>> Move("evict", ops=(7,), target="aten.view").text
    'evict op 7 (aten.view)'
    >>> Move("run", region=3, executor="nvfuser").text
    'run the region at op 3 under nvfuser'
    """

    name: str  # one of NAMES
    ops: tuple[int, ...] = ()  # that leave, join, or are recomputed
    region: int | None = None  # that they leave or join, or that is peeled or run
    executor: str = ""
    variant: str = "default"
    target: str = field(default="", compare=False)  # what the first of `ops` calls, for people

    @property
    def text(self) -> str:
        """The move in a few words."""
        region = "" if self.region is None else f"the region at op {self.region}"
        variant = "" if self.variant == "default" else f" ({self.variant})"
        words = {
            "keep": f"keep the views beside {region} inside it",
            "peel-head": f"peel the views at the head off {region}",
            "peel-tail": f"peel the views at the tail off {region}",
            "peel-both": f"peel the views at both ends off {region}",
            "evict": f"evict {self._ops}",
            "merge-up": f"merge {self._ops} up into {region or 'the region that it reads from'}",
            "merge-down": f"merge {self._ops} down into {region or 'the region that reads it'}",
            "split": f"split {self._ops} off {region or 'its region'}",
            "recompute": f"recompute {self._ops} in {region or 'each region that reads it'}",
            "reuse": f"reuse {self._ops} in {region or 'each region that recomputes it'}",
            "run": f"run {region or self._ops} under {self.executor}{variant}",
        }
        return words.get(self.name, self.name)

    @property
    def _ops(self) -> str:
        first = f"{self.ops[0] if self.ops else '?'}" + (f" ({self.target})" if self.target else "")
        if len(self.ops) < 2:
            return f"op {first}"
        return f"ops {first} and {self.ops[1]}" if len(self.ops) == 2 else f"op {first} and {len(self.ops) - 1} more"


def apply(graph: Graph, segmentation: Segmentation, move: Move) -> Segmentation:
    """Return the segmentation after `move`, or raise PlanError where it is refused.

    >>> apply(Graph((), (), ()), Segmentation(), Move("evict", ops=(7,)))
    Traceback (most recent call last):
        ...
    fuseplan.errors.PlanError: evict op 7: there is no op 7; the graph has 0
    """
    step = _STEPS.get(move.name)
    if step is None:
        raise PlanError(f"there is no move {move.name!r}; known are {', '.join(NAMES)}")
    try:
        return step(graph, tidy(graph, segmentation), move)
    except PlanError as error:
        raise PlanError(f"{move.text}: {error}") from None


def _merge(graph: Graph, segmentation: Segmentation, move: Move) -> Segmentation:
    region = region_of(segmentation, _first(move))
    if (move.ops[:1] if region is None else region.ops) != tuple(sorted(move.ops)):
        raise PlanError("these ops are not one op of nobody, nor all of a region")
    return (merge_up if move.name == "merge-up" else merge_down)(graph, segmentation, _first(move), move.region)


def _first(move: Move) -> int:
    if not move.ops:
        raise PlanError("it names no op")
    return move.ops[0]


def _region(move: Move) -> int:
    if move.region is None:
        raise PlanError("it names no region")
    return move.region


_STEPS: dict[str, Callable[[Graph, Segmentation, Move], Segmentation]] = {
    "keep": lambda graph, cut, move: keep(graph, cut, _region(move)),
    "peel-head": lambda graph, cut, move: peel_head(graph, cut, _region(move)),
    "peel-tail": lambda graph, cut, move: peel_tail(graph, cut, _region(move)),
    "peel-both": lambda graph, cut, move: peel_both(graph, cut, _region(move)),
    "evict": lambda graph, cut, move: evict(graph, cut, *move.ops),
    "merge-up": _merge,
    "merge-down": _merge,
    "split": lambda graph, cut, move: split(graph, cut, *move.ops),
    "recompute": lambda graph, cut, move: recompute(graph, cut, _first(move), move.region),
    "reuse": lambda graph, cut, move: reuse(graph, cut, _first(move), move.region),
    "run": lambda graph, cut, move: run(
        graph, cut, _first(move) if move.region is None else move.region, move.executor, move.variant
    ),
}

NAMES = tuple(_STEPS)
