"""The regions of a small program: such that Inductor fuses, and anchors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fuseplan.backend import programs_of
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.load import load_trace
from fuseplan.executors import executors
from fuseplan.explain import compiled_by
from fuseplan.graph import Graph
from fuseplan.segment import extract, is_anchor, maximal_regions

MOST = 2
"""Of regions that fuse, from each graph those of the most ops."""
MOST_ANCHORS = 2
"""Of anchors, from each graph the first."""


def graphs_of(trace: Trace) -> Iterator[tuple[str, Graph]]:
    """The ATen graphs that a program becomes, by role."""
    loaded = load_trace(trace, "cpu")
    compiled: Any = torch.compile(loaded.module, backend="fuseplan", options={"plan": "aten"})
    loaded.run(compiled)
    programs = programs_of(compiled_by(compiled))
    torch._dynamo.reset()
    for program in programs:
        for record in program.graphs:
            yield record.role, record.graph


def regions_of(graph: Graph) -> tuple[list[Graph], list[Graph]]:
    """Different regions of a graph: such that Inductor fuses, and anchors."""
    inductor = executors()["inductor"]
    takes = [op.opaque is None and inductor.supports(op, graph) is None for op in graph.ops]
    cut = sorted(maximal_regions(graph, takes, "inductor").regions, key=lambda one: -len(one.ops))
    fused = [extract(graph, one.ops, one.recompute) for one in cut]
    anchors = [extract(graph, (i,)) for i, op in enumerate(graph.ops) if is_anchor(op) and op.opaque is None]
    return _different(fused)[:MOST], _different(anchors)[:MOST_ANCHORS]


def _different(regions: Sequence[Graph]) -> list[Graph]:
    return list({region.key: region for region in regions if region.outputs}.values())
