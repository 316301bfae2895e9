"""All kinds of moves, one a line. A new one is a file beside this one, and a line here."""

from __future__ import annotations

from fuseplan.segment.moves.evict import EVICT
from fuseplan.segment.moves.keep import KEEP
from fuseplan.segment.moves.kind import MoveKind
from fuseplan.segment.moves.merge import MERGE_DOWN, MERGE_UP
from fuseplan.segment.moves.peel import PEEL_BOTH, PEEL_HEAD, PEEL_TAIL
from fuseplan.segment.moves.recompute import RECOMPUTE, REUSE
from fuseplan.segment.moves.run import RUN
from fuseplan.segment.moves.split import SPLIT

MOVES: list[MoveKind] = [
    KEEP,
    PEEL_HEAD,
    PEEL_TAIL,
    PEEL_BOTH,
    EVICT,
    MERGE_UP,
    MERGE_DOWN,
    SPLIT,
    RECOMPUTE,
    REUSE,
    RUN,
]
"""In the order in which neighbours are made: of two that give the same cut, the first stands."""


def kind_named(name: str) -> MoveKind | None:
    """The kind of that name, if there is one."""
    return next((kind for kind in MOVES if kind.name == name), None)
