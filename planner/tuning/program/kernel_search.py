"""Inductor's own search among kernels, which compiles some twenty of them for each product: how long that takes."""

from __future__ import annotations

from collections.abc import Iterable

from fuseplan.graph import Graph, Op
from fuseplan.measure.pool import COMPILING, cores
from fuseplan.segment import extract
from fuseplan.tuning.effort import KERNEL_SEARCH_S

_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "convolution"})
"""What it has templates for, by the names of ATen."""


def searching_s(graphs: Iterable[Graph]) -> float:
    """About how long a worker takes for a program of these graphs."""
    products = {
        extract(graph, [number]).key
        for graph in graphs
        for number, op in enumerate(graph.ops)
        if op.opaque is None and _is_product(op)
    }
    return len(products) * KERNEL_SEARCH_S / max(1, cores() // COMPILING)


def _is_product(op: Op) -> bool:
    namespace, _, rest = op.target.partition(".")
    return namespace == "aten" and rest.partition(".")[0] in _PRODUCTS
