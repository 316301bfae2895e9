"""Proofs about attention masks that are built from sizes alone. Imports no torch."""

from fuseplan.segment.masks.classify import MaskProof, classify_mask
from fuseplan.segment.masks.linear import UnprovenError
from fuseplan.segment.masks.windows import Window

__all__ = ["MaskProof", "UnprovenError", "Window", "classify_mask"]
