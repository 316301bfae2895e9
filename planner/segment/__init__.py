"""Cutting a Graph into regions: what a region is, and which cuts are legal. Imports no torch."""

from fuseplan.segment.flow import Flow, flow_of, wanted
from fuseplan.segment.greedy import maximal_regions, without_escaping_views
from fuseplan.segment.islands import depths, is_anchor, is_attention, islands
from fuseplan.segment.leaving import leaving
from fuseplan.segment.legality import check_segmentation
from fuseplan.segment.order import has_effect, order_edges
from fuseplan.segment.region import Choice, Region, Segmentation, extract
from fuseplan.segment.twice import only_once, recomputable

__all__ = [
    "Choice",
    "Flow",
    "Region",
    "Segmentation",
    "check_segmentation",
    "depths",
    "extract",
    "flow_of",
    "has_effect",
    "is_anchor",
    "is_attention",
    "islands",
    "leaving",
    "maximal_regions",
    "only_once",
    "order_edges",
    "recomputable",
    "wanted",
    "without_escaping_views",
]
