"""Which outputs of a region a fusion cannot give."""

from __future__ import annotations

from fuseplan.executors.layout import concrete, dense_order, shared_outputs
from fuseplan.graph import Graph, Ref, TensorType


def refusal(region: Graph) -> str | None:
    """Why a fusion cannot give the outputs that the region declares; None if it can."""
    handed_back = {value.name for value in region.inputs} | {op.outputs[0].name for op in region.ops if op.mutates}
    shared = shared_outputs(region)
    for arg in region.outputs:
        if not isinstance(arg, Ref) or arg.name in handed_back:
            continue
        kind = region.types[arg.name]
        if not isinstance(kind, TensorType):
            return f"output {arg.name} is no tensor"
        if arg.name in shared:
            return f"output {arg.name} is a view of what others hold too"
        if dense_order(*concrete(region, kind)) is None:
            return f"output {arg.name} has gaps or overlaps in memory"
    return None
