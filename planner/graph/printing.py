"""How a graph prints: as a Python expression that evals back, and as a readable listing that `read_text` parses back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields

from fuseplan.errors import GraphError
from fuseplan.graph.ir import Arg, Dim, Enum, GraphFields, Op, OpaqueType, Ref, ScalarType, Symbol, TensorType, Type
from fuseplan.graph.limits import MAX_NESTING
from fuseplan.graph.literals import expression

_CONSTANTS = frozenset({"None", "True", "False"})


def graph_expression(graph: GraphFields) -> str:
    """The graph as a Python expression over the names of `fuseplan.graph`, one op a line."""
    lines = ["Graph("]
    for field in fields(graph):
        items = getattr(graph, field.name)
        if not isinstance(items, tuple):
            lines.append(f"    {field.name}={expression(items)},")
        elif items:
            lines.append(f"    {field.name}=(")
            lines.extend(f"        {expression(item)}," for item in items)
            lines.append("    ),")
        elif field.default is MISSING:
            lines.append(f"    {field.name}=(),")
    lines.append(")")
    return "\n".join(lines)


def listing(graph: GraphFields) -> str:
    """The graph as Python-looking text, with the types as comments: `read_text` reads all of it back."""
    lines = [f"# {_symbol(symbol)}" for symbol in graph.symbols]
    lines.append("def graph(")
    lines.extend(f"    {value.name},  # {type_text(value.type)}" for value in graph.inputs)
    lines.append("):")
    lines.extend(f'    {c.value.name} = constant("{c.data}")  # {type_text(c.value.type)}' for c in graph.constants)
    lines.extend(f"    {op_line(op)}" for op in graph.ops)
    lines.append(f"    return {', '.join(map(_arg, graph.outputs))}".rstrip())
    return "\n".join(lines)


def _symbol(symbol: Symbol) -> str:
    high = "" if symbol.high is None else f" <= {symbol.high}"
    hint = "" if symbol.hint is None else f", such as {symbol.hint}"
    return f"{symbol.low} <= {symbol.name}{high}{hint}"


def op_line(op: Op) -> str:
    """One op as it stands in the listing of its graph."""
    arguments = [_arg(arg) for arg in op.args] + [f"{name}={_arg(arg)}" for name, arg in op.kwargs]
    call = f"{op.target}({', '.join(arguments)})"
    names = ", ".join(value.name for value in op.outputs)
    notes = [", ".join(type_text(value.type) for value in op.outputs)] if op.outputs else []
    notes.extend(_effects(op))
    comment = f"  # {'; '.join(notes)}" if notes else ""
    return f"{names} = {call}{comment}" if names else f"{call}{comment}"


def _effects(op: Op) -> Iterator[str]:
    for alias in op.aliases:
        owner = op.outputs[alias.output].name if 0 <= alias.output < len(op.outputs) else f"output {alias.output}"
        yield f"{owner} shares {alias.value}"
    if op.mutates:
        yield f"mutates {', '.join(op.mutates)}"
    if op.random:
        yield "random"
    if op.opaque is not None:
        yield f"opaque: {op.opaque!a}"


def _arg(arg: Arg, depth: int = 0) -> str:
    if depth > MAX_NESTING:
        raise GraphError(f"nested deeper than {MAX_NESTING}")
    if isinstance(arg, Ref):
        return f'value("{arg.name}")' if arg.name in _CONSTANTS else arg.name
    if isinstance(arg, Enum):
        return f'device("{arg.name}")' if arg.kind == "device" else f"torch.{arg.name}"
    if isinstance(arg, tuple):
        return f"[{', '.join(_arg(item, depth + 1) for item in arg)}]"
    return expression(arg)


def type_text(kind: Type) -> str:
    """What is known of a value, in a few words, as the listing has it."""
    if isinstance(kind, TensorType):
        strides = "" if kind.stride == dense_strides(kind.shape) else f" strides [{_dims(kind.stride)}]"
        return f"{kind.device} {kind.dtype}[{_dims(kind.shape)}]{strides}"
    if isinstance(kind, ScalarType):
        return f"{kind.kind} {_dim(kind.expr)}"
    if isinstance(kind, OpaqueType):
        return f"opaque: {kind.why!a}"
    return "None"


def dense_strides(shape: Sequence[Dim]) -> tuple[Dim, ...] | None:
    """The strides of a contiguous tensor in C order; None where they would be products of symbols.

    >>> dense_strides((2, 3, 4)), dense_strides(("s0", 3)), dense_strides((3, "s0"))
    ((12, 4, 1), (3, 1), None)
    """
    strides = [1] if shape else []
    for size in reversed(shape[1:]):
        if isinstance(size, str):
            return None
        strides.append(strides[-1] * max(size, 1))
    return tuple(reversed(strides))


def _dims(dims: Sequence[Dim]) -> str:
    return ", ".join(map(_dim, dims))


def _dim(dim: Dim) -> str:
    """A size; quoted where its spaces at the ends, or its line breaks, would get lost."""
    text = str(dim)
    return text if text == text.strip() and text.isprintable() else repr(text)
