"""How the words of `ir` print: as Python expressions that eval back, and a whole graph as a readable listing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from fuseplan.errors import GraphError
from fuseplan.graph.limits import MAX_NESTING, integer, short

if TYPE_CHECKING:
    from fuseplan.graph.graph import Graph
    from fuseplan.graph.ir import Arg, Dim, Op, Symbol, TensorType, Type


class Printed:
    """A base for dataclasses: `repr` is a short expression that evals back, non-finite numbers included."""

    __slots__ = ()

    def __repr__(self) -> str:
        return expression(self)


def expression(thing: object, depth: int = 0) -> str:
    """One line of Python for a dataclass, tuple or number; fields that have their default are left out."""
    if depth > MAX_NESTING + 4:  # an op's arguments begin some levels down
        raise GraphError(f"nested deeper than {MAX_NESTING}")
    kind: type[Any] = type(thing)
    if kind is str:
        return repr(thing)
    if kind is int:
        return integer(thing)  # type: ignore[arg-type]
    if kind is float:
        return _float(thing)  # type: ignore[arg-type]
    if isinstance(thing, tuple):
        inner = [expression(item, depth + 1) for item in thing]
        return f"({inner[0]},)" if len(inner) == 1 else f"({', '.join(inner)})"
    if kind is complex:
        return f"complex({_float(thing.real)}, {_float(thing.imag)})"  # type: ignore[attr-defined]
    if is_dataclass(thing):
        return f"{kind.__name__}({', '.join(_arguments(thing, depth))})"
    return repr(thing)


def _float(number: float) -> str:
    text = repr(number)
    return f'float("{text}")' if text[-1] in "nf" else text  # nan, inf, -inf


def _arguments(thing: Any, depth: int) -> Iterator[str]:
    """By position up to the first default that is left out, by keyword from there."""
    by_keyword = False
    for field in fields(thing):
        value, default = getattr(thing, field.name), field.default
        if default is not MISSING and type(value) is type(default) and value == default:
            by_keyword = True
            continue
        text = expression(value, depth + 1)
        yield f"{field.name}={text}" if by_keyword else text


def graph_expression(graph: Graph) -> str:
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


def listing(graph: Graph) -> str:
    """The graph as Python-looking text, with the types as comments."""
    lines = [f"# {_symbol(symbol)}" for symbol in graph.symbols]
    lines.append("def graph(")
    lines.extend(f"    {value.name},  # {type_text(value.type)}" for value in graph.inputs)
    lines.append("):")
    for constant in graph.constants:
        data = constant.data if len(constant.data) <= 32 else f"{constant.data[:32]}…"
        lines.append(f'    {constant.value.name} = constant("{data}")  # {type_text(constant.value.type)}')
    lines.extend(f"    {op_line(op)}" for op in graph.ops)
    lines.append(f"    return {', '.join(map(_arg, graph.outputs)) or 'None'}")
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
        yield f"opaque: {short(op.opaque)}"


def _arg(arg: Arg, depth: int = 0) -> str:
    from fuseplan.graph.ir import Enum, Ref  # ir's classes inherit from this module

    if depth > MAX_NESTING:
        raise GraphError(f"nested deeper than {MAX_NESTING}")
    if isinstance(arg, Ref):
        return arg.name
    if isinstance(arg, Enum):
        return f'device("{arg.name}")' if arg.kind == "device" else arg.name
    if isinstance(arg, tuple):
        return f"[{', '.join(_arg(item, depth + 1) for item in arg)}]"
    return expression(arg)


def type_text(kind: Type) -> str:
    """What is known of a value, in a few words, as the listing has it."""
    from fuseplan.graph.ir import OpaqueType, ScalarType, TensorType

    if isinstance(kind, TensorType):
        strides = "" if _is_dense(kind) else f" strides [{', '.join(map(str, kind.stride))}]"
        return f"{kind.device} {kind.dtype}[{', '.join(map(str, kind.shape))}]{strides}"
    if isinstance(kind, ScalarType):
        return f"{kind.kind} {kind.expr}"
    if isinstance(kind, OpaqueType):
        return f"opaque: {short(kind.why)}"
    return "None"


def _is_dense(kind: TensorType) -> bool:
    """Whether the tensor is surely contiguous in C order: strides over symbols are not worked out."""
    expected: Dim = 1
    for size, stride in zip(reversed(kind.shape), reversed(kind.stride), strict=False):
        if size != 1 and stride != expected:
            return False
        expected = expected * max(size, 1) if isinstance(size, int) and isinstance(expected, int) else "?"
    return True
