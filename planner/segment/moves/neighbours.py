"""The legal neighbours of a cut: what each move, wherever it can be tried, makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fuseplan.errors import PlanError
from fuseplan.graph import Graph
from fuseplan.segment.moves.kind import MoveKind, Runners
from fuseplan.segment.moves.kinds import MOVES
from fuseplan.segment.moves.move import Move
from fuseplan.segment.moves.shape import target_text, tidy
from fuseplan.segment.region import Segmentation


def neighbours(
    graph: Graph, cut: Segmentation, moves: Sequence[MoveKind] = MOVES, runners: Runners = ()
) -> Iterator[tuple[Move, Segmentation]]:
    """Give each legal cut that is one move away from a legal `cut`, once, with the first move that leads there.

    A region may be given to one of `runners`, or to whoever runs another region of the cut. It may merge with those that
    share a value with it, and is split at one of its ops: alone, or with all in the region that it waits for or that waits
    for it.
    """
    here = tidy(graph, cut)
    known = (*runners, *((region.executor, region.variant) for region in here.regions))
    seen = {here}
    for kind in moves:
        for step in kind.steps(graph, here, tuple(dict.fromkeys(known))):
            try:
                found = kind.apply(graph, here, step)
            except PlanError:
                continue
            if found not in seen:
                seen.add(found)
                yield Move(**vars(step), target=target_text(graph, step.ops[0]) if step.ops else ""), found
