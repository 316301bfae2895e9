"""Cutting a Graph into regions: what a region is, and which cuts are legal. Imports no torch."""

from fuseplan.segment.greedy import maximal_regions
from fuseplan.segment.islands import is_anchor, islands
from fuseplan.segment.legality import check_segmentation
from fuseplan.segment.order import order_edges
from fuseplan.segment.region import Region, Segmentation, extract

__all__ = [
    "Region",
    "Segmentation",
    "check_segmentation",
    "extract",
    "is_anchor",
    "islands",
    "maximal_regions",
    "order_edges",
]
