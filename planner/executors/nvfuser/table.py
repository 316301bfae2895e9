"""The whole lowering table, and the answer to whether an op may stand in an nvFuser region."""

from __future__ import annotations

from fuseplan.executors.nvfuser import (
    activations,
    factories,
    losses,
    norms,
    pointwise,
    reductions,
    softmax,
    special,
    views,
    writes,
)
from fuseplan.executors.nvfuser.dtypes import NVFUSER_NAME
from fuseplan.executors.nvfuser.rules import Conditions, Table
from fuseplan.graph import Arg, Graph, NoneType, Op, OpaqueType, ScalarType, TensorType

_SUBJECTS = (pointwise, special, activations, reductions, softmax, norms, losses, views, factories, writes)

LOWERINGS: Table = {name: rule for subject in _SUBJECTS for name, rule in subject.LOWERINGS.items()}
CONDITIONS: Conditions = {name: rule for subject in _SUBJECTS for name, rule in subject.CONDITIONS.items()}

_SEGMENT_OF_ITS_OWN = "nvFuser runs it as a slow segment of its own"
_LIBRARY = "a library kernel does it better than a fusion"

REFUSED = {
    **dict.fromkeys(("embedding", "gather", "index_select", "index", "take", "_unsafe_index"), _SEGMENT_OF_ITS_OWN),
    **dict.fromkeys(
        ("scatter", "scatter_add", "index_put", "embedding_dense_backward", "index_add"), _SEGMENT_OF_ITS_OWN
    ),
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward", "dot", "mv"), _LIBRARY),
    **dict.fromkeys(("sort", "topk", "argsort", "argmax", "argmin"), "it needs an index along with each value"),
    **dict.fromkeys(("empty", "empty_like", "new_empty", "empty_permuted"), "it computes nothing"),
    **dict.fromkeys(("flip", "as_strided", "diagonal", "unfold"), "nvFuser has no such view"),
}
"""Why an operator, under whatever overload, is in no table: only where there is more to say than that."""


def supports(op: Op, graph: Graph) -> str | None:
    """None if `op` can be lowered as it stands in `graph`, else the reason why not."""
    if op.opaque is not None:
        return op.opaque
    if computes_sizes(op):
        return None
    if op.target not in LOWERINGS:
        return REFUSED.get(_packet(op.target), "it is in no lowering table")
    condition = CONDITIONS.get(op.target)
    return _types(op, graph) or (None if condition is None else condition(op, graph))


def computes_sizes(op: Op) -> bool:
    """Whether the op gives nothing but sizes: they are known to a fusion by what the graph says of them."""
    sizes = all(isinstance(value.type, ScalarType) and value.type.kind == "int" for value in op.outputs)
    return sizes and op.target.startswith(("operator.", "aten.sym_size", "aten.sym_stride", "aten.sym_numel", "sym_"))


def _packet(target: str) -> str:
    parts = target.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "aten" else target


def _types(op: Op, graph: Graph) -> str | None:
    for name in op.reads:
        kind = graph.types[name]
        why = _operand(kind) if isinstance(kind, TensorType) else None
        if why is not None or isinstance(kind, OpaqueType):
            return why or f"its input {name} cannot be written down"
    for value in op.outputs:
        why = _result(value.type)
        if why is not None:
            return why
    return "a complex number" if _has_complex((*op.args, *(v for _, v in op.kwargs))) else None


def _operand(kind: TensorType) -> str | None:
    if kind.dtype not in NVFUSER_NAME:
        return f"nvFuser has no {kind.dtype}"
    if not kind.device.startswith("cuda") and not (kind.device == "cpu" and not kind.shape):
        return f"nvFuser runs on CUDA and this is a tensor on {kind.device}"
    return None


def _result(kind: object) -> str | None:
    if isinstance(kind, NoneType):
        return None
    if isinstance(kind, (ScalarType, OpaqueType)):
        return "it gives no tensor"
    assert isinstance(kind, TensorType)
    if not kind.device.startswith("cuda"):
        return f"nvFuser runs on CUDA and this gives a tensor on {kind.device}"
    return _operand(kind)


def _has_complex(args: tuple[Arg, ...]) -> bool:
    return any(isinstance(a, complex) or (isinstance(a, tuple) and _has_complex(a)) for a in args)
