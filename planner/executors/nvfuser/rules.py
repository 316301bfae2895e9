"""The form of the lowering tables: how an op is lowered, and on what condition it is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fuseplan.graph import Arg, Graph, Op, Ref, TensorType

Lower = Callable[..., Any]
"""Called with the OpContext and the op's arguments, Refs resolved; gives the view of its result, or one for each output."""

Table = Mapping[str, Lower]
"""The lowering for each ATen operator."""

Condition = Callable[[Op, Graph], str | None]
"""None if the op can be lowered as it stands, else why not."""

Conditions = Mapping[str, Condition]


def argument(op: Op, position: int, name: str, default: Arg = None) -> Arg:
    """An argument of the op, wherever it stands."""
    if position < len(op.args):
        return op.args[position]
    return dict(op.kwargs).get(name, default)


def tensor_type(op: Op, position: int, graph: Graph) -> TensorType | None:
    """The type of the tensor that stands at `position` among the arguments, if one does."""
    ref = op.args[position] if position < len(op.args) else None
    kind = graph.types[ref.name] if isinstance(ref, Ref) else None
    return kind if isinstance(kind, TensorType) else None


def static_number(position: int) -> Condition:
    """The argument must be a number that is known now."""

    def condition(op: Op, graph: Graph) -> str | None:
        given = op.args[position] if position < len(op.args) else None
        return f"argument {position} is known at run time only" if isinstance(given, Ref) else None

    return condition


def static_shape(op: Op, graph: Graph) -> str | None:
    """Every size of what the op reads and gives must be known now."""
    kinds = [graph.types[name] for name in op.reads] + [value.type for value in op.outputs]
    dims = [d for kind in kinds if isinstance(kind, TensorType) for d in kind.shape]
    return "it needs sizes that are known ahead" if any(isinstance(d, str) for d in dims) else None


def every(*conditions: Condition) -> Condition:
    """All of them must hold; the reason is that of the first that does not."""

    def condition(op: Op, graph: Graph) -> str | None:
        return next((why for why in (c(op, graph) for c in conditions) if why is not None), None)

    return condition
