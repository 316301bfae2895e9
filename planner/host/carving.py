"""Which regions may be carved out of a program that its host compiles as one."""

from __future__ import annotations

from fuseplan.errors import PlanError
from fuseplan.graph import Graph, Ref, TensorType
from fuseplan.segment import Segmentation, check_segmentation, extract, flow_of, has_effect
from fuseplan.segment.order import storages

TANGENTS = "tangents"
"""How AOTAutograd calls the gradients that a backward is given."""


def check_carving(graph: Graph, cut: Segmentation) -> None:
    """Raise PlanError, saying where, unless the regions may be carved out."""
    check_segmentation(graph, cut)
    wanted, later = flow_of(graph, cut).wanted, of_the_backward(graph)
    constants = {one.value.name for one in graph.constants}
    for region in cut.regions:
        if len({op in later for op in region.ops}) > 1:
            raise PlanError(f"the region at op {region.ops[0]} holds ops of the forward and of the backward")
        if any(not constants.isdisjoint(graph.ops[i].reads) for i in (*region.ops, *region.recompute)):
            raise PlanError(
                f"the region at op {region.ops[0]} cannot be carved out: it reads a constant of the program"
            )
        why = kept_from(extract(graph, region.ops, region.recompute, wanted))
        if why is not None:
            raise PlanError(f"the region at op {region.ops[0]} cannot be carved out: {why}")


def of_the_backward(graph: Graph) -> set[int]:
    """The ops that need a gradient: no forward waits for one."""
    told = {value.name for value in graph.inputs if value.name.startswith(TANGENTS)}
    found = set()
    for i, op in enumerate(graph.ops):
        if not told.isdisjoint(op.reads):
            found.add(i)
            told.update(value.name for value in op.outputs)
    return found


def kept_from(part: Graph) -> str | None:
    """Why a region stays the host's, or None."""
    if part.opaque:
        return next(iter(part.opaque))
    for op in part.ops:
        if op.mutates or has_effect(op):
            return f"{op.target} {'writes to what it is given' if op.mutates else 'draws random numbers, or has another effect'}"
    if part.constants:
        return "it holds a constant"
    first, seen = storages(part), {value.name for value in part.inputs}
    for ref in given_by(part):
        if first.get(ref.name, ref.name) in seen:
            return f"{ref.name} shares memory with what it is given, or with what else it gives"
        seen.add(first.get(ref.name, ref.name))
        if not isinstance(part.types[ref.name], TensorType):
            return f"{ref.name} is no tensor"
    return None


def given_by(part: Graph) -> list[Ref]:
    """What others need of a region."""
    return [arg for arg in part.outputs if isinstance(arg, Ref)]
