"""Norms in low precision. The dtype of their statistics is for the kernel to choose, and tracing does not always know it:
on a CPU those of an input in bfloat16 under weights in float32 are float32 and said to be bfloat16, and running ones in
bfloat16 are said to be float32 on any device.
"""

from __future__ import annotations

from fuseplan.graph import Graph, Op, Ref, TensorType, Value

_NORMS = (
    "aten.native_batch_norm", "aten._native_batch_norm_legit", "aten._batch_norm_with_update", "aten.batch_norm_backward",
    "aten.native_layer_norm", "aten.native_group_norm",
)  # fmt: skip
_LOW = ("bfloat16", "float16")


def given(op: Op, graph: Graph) -> tuple[Value, ...]:
    """The statistics that a norm gives whose dtype may be another than declared."""
    return op.outputs[1:] if _is_norm(op, graph) and "_backward" not in op.target else ()


def saved(op: Op, graph: Graph) -> tuple[str, ...]:
    """What the backward of a norm on a CPU reads of what its forward saved, by name: such statistics are among it."""
    if "_backward" not in op.target or not _is_norm(op, graph):
        return ()
    return tuple(v.name for v in graph.inputs if v.name in op.reads and getattr(v.type, "device", "") == "cpu")


def rounded(op: Op, graph: Graph) -> bool:
    """Whether a norm has statistics that are read, and that are lower as declared than as ATen gives them. ATen's own
    backward takes no others than it gives."""
    if "float32" not in _dtypes(op.reads, graph):
        return False
    read = [v.name for v in given(op, graph)[:2] if graph.users.get(v.name) or Ref(v.name) in graph.outputs]
    return not _dtypes(read, graph).isdisjoint(_LOW)


def _is_norm(op: Op, graph: Graph) -> bool:
    names = (*op.reads, *(value.name for value in op.outputs))
    return op.target.startswith(_NORMS) and not _dtypes(names, graph).isdisjoint(_LOW)


def _dtypes(names: tuple[str, ...] | list[str], graph: Graph) -> set[str]:
    return {kind.dtype for name in names if isinstance(kind := graph.types[name], TensorType)}
