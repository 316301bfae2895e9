"""Moves: named steps from one legal segmentation to another, each refused where the result may not stand."""

from fuseplan.segment.moves.evict import evict
from fuseplan.segment.moves.merge import merge_down, merge_up
from fuseplan.segment.moves.move import NAMES, Move, apply
from fuseplan.segment.moves.path import moves_between
from fuseplan.segment.moves.peel import keep, peel_both, peel_head, peel_tail
from fuseplan.segment.moves.recompute import recompute, reuse
from fuseplan.segment.moves.run import run
from fuseplan.segment.moves.shape import tidy
from fuseplan.segment.moves.split import split

__all__ = [
    "NAMES",
    "Move",
    "apply",
    "evict",
    "keep",
    "merge_down",
    "merge_up",
    "moves_between",
    "peel_both",
    "peel_head",
    "peel_tail",
    "recompute",
    "reuse",
    "run",
    "split",
    "tidy",
]
