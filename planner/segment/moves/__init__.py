"""Moves: named steps from one legal segmentation to another, each refused where the result may not stand.

Each kind is a file and a line of `kinds`; `move` is one as data, `neighbours` tries all, `path` leads from a cut to another.
"""

from fuseplan.segment.moves.evict import evict
from fuseplan.segment.moves.keep import keep
from fuseplan.segment.moves.kind import MoveKind, Runners, Step
from fuseplan.segment.moves.kinds import MOVES
from fuseplan.segment.moves.merge import merge_down, merge_up
from fuseplan.segment.moves.move import Move, apply
from fuseplan.segment.moves.neighbours import neighbours
from fuseplan.segment.moves.path import moves_between
from fuseplan.segment.moves.peel import peel_both, peel_head, peel_tail
from fuseplan.segment.moves.recompute import recompute, reuse
from fuseplan.segment.moves.run import run
from fuseplan.segment.moves.shape import tidy
from fuseplan.segment.moves.split import split

__all__ = [
    "MOVES",
    "Move",
    "MoveKind",
    "Runners",
    "Step",
    "apply",
    "evict",
    "keep",
    "merge_down",
    "merge_up",
    "moves_between",
    "neighbours",
    "peel_both",
    "peel_head",
    "peel_tail",
    "recompute",
    "reuse",
    "run",
    "split",
    "tidy",
]
