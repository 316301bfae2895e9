"""Writes into a tensor that the region was given, as the epilogues of a training step make."""

from __future__ import annotations

from typing import Any

from fuseplan.executors.nvfuser import pointwise
from fuseplan.executors.nvfuser.rules import Conditions, Table
from fuseplan.executors.nvfuser.site import OpContext, Tensor
from fuseplan.graph import Graph, Op, Ref, TensorType

COPY = "aten.copy_.default"
_BATCH_NORM = "aten._native_batch_norm_legit_functional.default"


def copy_into(at: OpContext, x: Tensor, source: Tensor, non_blocking: bool = False) -> Any:
    """The new contents; that they land in `x` is declared where the outputs are."""
    return pointwise.copy(at, x, source)


LOWERINGS: Table = {COPY: copy_into}


def _safe_to_write(op: Op, graph: Graph) -> str | None:
    """nvFuser keeps no order between a kernel's reads of a tensor and its writes to it.

    So nothing may read the tensor later, nor a view of it; and what reads it before must do so at the very element that
    it then writes: a batch norm that updates its statistics, or an op whose result is all that is written.
    """
    target, source = op.args[0], op.args[1]
    if not isinstance(target, Ref) or target.name not in {value.name for value in graph.inputs}:
        return "it writes into what is no input"
    if graph.users.get(op.outputs[0].name):
        return "what it wrote is read again"
    place = graph.ops.index(op)
    for i in graph.users[target.name]:
        reader = graph.ops[i]
        if i > place:
            return "the tensor that it writes is read later"
        if i < place and not _reads_in_place(reader, target.name, source, graph):
            return f"{reader.target} reads the tensor that it writes"
    return None


def _reads_in_place(reader: Op, name: str, source: object, graph: Graph) -> bool:
    if reader.target == _BATCH_NORM:
        return Ref(name) in reader.args[3:5] and name not in [a.name for a in reader.args[:3] if isinstance(a, Ref)]
    result = reader.outputs[0]
    read, given = graph.types[name], result.type
    same = isinstance(read, TensorType) and isinstance(given, TensorType) and read.shape == given.shape
    return same and source == Ref(result.name) and reader.target in pointwise.LOWERINGS


CONDITIONS: Conditions = {COPY: _safe_to_write}
