"""From a Graph to an FX graph of ATen operators whose nodes carry fake values, as a compiler expects them."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._sympy.value_ranges import ValueRanges

from fuseplan.capture.fx.from_fx import Captured
from fuseplan.capture.fx.targets import find_target
from fuseplan.errors import GraphError
from fuseplan.graph import Arg, Constant, Dim, Enum, Graph, NoneType, Op, Ref, ScalarType, Symbol, TensorType, Type
from fuseplan.graph.limits import MAX_SIZE, short

_MAX_EXPONENT = 63
DEFAULT_HINT = 8
"""The size that a symbol takes where no size was recorded; no edge case (0, 1), and even."""


def to_fx(graph: Graph, device: str | None = None) -> GraphModule:
    """Return `graph` as FX: placeholders in the order of its inputs, one call per op, fake values in ``meta["val"]``.

    `device`, where given, replaces every device of the graph. The fakes live in a FakeTensorMode of their own.
    """
    if graph.opaque:
        raise GraphError(f"the graph cannot be run from its written form: {graph.opaque[0]}")
    return _Builder(graph, device).build()


def recalled(graph: Graph) -> Captured:
    """Return `graph` as FX without values: for whoever captured it before, and knows that its operators take what it gives.

    Nothing runs, not even on fakes, so it is much quicker than `to_fx`. Sizes have to be numbers.
    """
    if graph.opaque or graph.symbols:
        raise GraphError(f"the graph cannot be recalled: {next(iter(graph.opaque), 'it has symbolic sizes')}")
    return _Recaller(graph, None).captured()


def fake_inputs(gm: GraphModule) -> list[Any]:
    """Return the fake values of the placeholders of `gm`, in order."""
    return [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]


def torch_value(constant: Enum, device: str | None = None) -> Any:
    """Return torch's own object for an Enum of the Graph.

    >>> torch_value(Enum("dtype", "float32"))
    torch.float32
    """
    if constant.kind == "device":
        return torch.device(device or constant.name)
    found = getattr(torch, constant.name, None)
    if found is None:
        raise GraphError(f"torch {torch.__version__} has no {constant.kind} {constant.name}")
    return found


def constant_tensor(constant: Constant, device: str | None = None) -> torch.Tensor:
    """Return the real tensor of a Constant."""
    kind = constant.value.type
    if not isinstance(kind, TensorType):
        raise GraphError(f"constant {constant.value.name} is no tensor")
    dtype, data = getattr(torch, kind.dtype), bytes.fromhex(constant.data)
    shape = [int(s) for s in kind.shape]
    dense = torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape) if data else torch.empty(shape, dtype=dtype)
    result = torch.empty_strided(shape, [int(s) for s in kind.stride], dtype=dtype)
    return result.copy_(dense).to(device or kind.device)


class SizeSpace:
    """Evaluates written sizes, such as ``2*s0 + 1``, over given values of the symbols."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def __call__(self, dim: Dim) -> Any:
        if not isinstance(dim, str):
            return dim
        if dim in self.values:
            return self.values[dim]
        try:
            return self._eval(ast.parse(dim, mode="eval").body)
        except (
            ArithmeticError,
            MemoryError,
            RecursionError,
            SyntaxError,
        ) as error:  # what others wrote need not be a size
            raise GraphError(f"a size that cannot be evaluated: {short(dim)}: {type(error).__name__}") from None

    def _eval(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self.values[node.id]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._eval(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return _BINARY[type(node.op)](self._eval(node.left), self._eval(node.right))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS:
            return _CALLS[node.func.id](*[self._eval(a) for a in node.args])
        raise GraphError(f"a size that cannot be evaluated: {ast.unparse(node)}")


def likely_size(symbol: Symbol) -> int:
    """The size that was seen for a symbol, or one within its bounds."""
    if symbol.hint is not None:
        return symbol.hint
    least = max(DEFAULT_HINT, symbol.low)
    return least if symbol.high is None else min(least, symbol.high)


def _power(base: Any, exponent: Any) -> Any:
    """A power whose number can be written down; ``9**9**9`` would take hours and all memory there is."""
    written = [n for n in (base, exponent) if isinstance(n, int)]
    if any(abs(n) > MAX_SIZE for n in written) or (isinstance(exponent, int) and abs(exponent) > _MAX_EXPONENT):
        raise GraphError(f"a size with too large a power, of exponent {short(str(exponent))}")
    return base**exponent


def _ceil_div(a: Any, b: Any) -> Any:
    return -(-a // b)


def _modular_indexing(base: Any, divisor: Any, modulus: Any) -> Any:
    return (base // divisor) % modulus


_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_CALLS: dict[str, Callable[..., Any]] = {
    "Max": torch.sym_max,
    "Min": torch.sym_min,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "IntTrueDiv": operator.truediv,
    "FloatTrueDiv": operator.truediv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "CeilDiv": _ceil_div,
    "CeilToInt": torch.sym_int,
    "FloorToInt": torch.sym_int,
    "TruncToInt": torch.sym_int,
    "ToFloat": torch.sym_float,
    "PowByNatural": _power,
    "Pow": _power,
    "ModularIndexing": _modular_indexing,
    "Abs": abs,
}


class _Builder:
    def __init__(self, graph: Graph, device: str | None) -> None:
        self.graph = graph
        self.device = device
        self.shape_env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.shape_env, allow_non_fake_inputs=True)
        self.sizes = SizeSpace({})
        self.nodes: dict[str, Node] = {}
        self.fx = FxGraph()
        self.root = torch.nn.Module()

    def build(self) -> GraphModule:
        self._symbols()
        with self.mode:
            for value in self.graph.inputs:
                self._placeholder(value.name, self._fake(value.type))
            for constant in self.graph.constants:
                self._constant(constant)
            for op in self.graph.ops:
                self._op(op)
        self.fx.output(tuple(self._arg(a) for a in self.graph.outputs))
        return GraphModule(self.root, self.fx)

    def _symbols(self) -> None:
        for symbol in self.graph.symbols:
            hint = likely_size(symbol)
            source = ConstantSource(symbol.name)
            created = self.shape_env.create_symbol(
                hint, source, DimDynamic.DYNAMIC, None, symbol.low >= 0 or None, do_not_specialize_zero_one=True
            )
            self.sizes.values[symbol.name] = self.shape_env.create_symintnode(created, hint=hint, source=source)
            if isinstance(created, sympy.Symbol):
                self._narrow(created, symbol.low, symbol.high)

    def _narrow(self, symbol: sympy.Symbol, low: int, high: int | None) -> None:
        known = self.shape_env.var_to_range[symbol]
        bounds = ValueRanges(low, known.upper if high is None else high)
        self.shape_env.var_to_range[symbol] = known & bounds

    def _fake(self, kind: Type) -> Any:
        if isinstance(kind, TensorType):
            shape, stride = [[self.sizes(d) for d in dims] for dims in (kind.shape, kind.stride)]
            device = self.device or kind.device
            return torch.empty_strided(shape, stride, dtype=getattr(torch, kind.dtype), device=device)
        if isinstance(kind, ScalarType):
            return self.sizes(kind.expr)
        raise GraphError("an input that is neither a tensor nor a number")

    def _placeholder(self, name: str, value: Any) -> None:
        node = self.fx.placeholder(name)
        node.meta["val"] = value
        self.nodes[name] = node

    def _constant(self, constant: Constant) -> None:
        name = f"_constant_{len(self.nodes)}"
        with _disable_current_modes():
            self.root.register_buffer(name, constant_tensor(constant, self.device))
        node = self.fx.get_attr(name)
        node.meta["val"] = self._fake(constant.value.type)
        self.nodes[constant.value.name] = node

    def _op(self, op: Op) -> None:
        args = tuple(self._arg(a) for a in op.args)
        kwargs = {key: self._arg(value) for key, value in op.kwargs}
        node = self.fx.call_function(find_target(op.target), args, kwargs)
        value = node.meta["val"] = self._run(node)
        if not isinstance(value, (list, tuple)):
            self.nodes[op.outputs[0].name] = node
            return
        if len(value) != len(op.outputs):
            raise GraphError(f"{op.target} gives {len(value)} values here, but the graph says {len(op.outputs)}")
        for i, output in enumerate(op.outputs):
            if isinstance(output.type, NoneType) and value[i] is None:
                continue
            element = self.fx.call_function(operator.getitem, (node, i))
            element.meta["val"] = value[i]
            self.nodes[output.name] = element

    def _run(self, node: Node) -> Any:
        fake = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        try:
            return node.target(*fake[0], **fake[1])  # type: ignore[operator]
        except Exception as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise GraphError(f"{node.target} does not accept what the graph gives it: {first}") from error

    def _arg(self, arg: Arg) -> Any:
        if isinstance(arg, Ref):
            return self.nodes[arg.name]
        if isinstance(arg, Enum):
            return torch_value(arg, self.device)
        if isinstance(arg, tuple):
            return [self._arg(a) for a in arg]
        return arg


class _Recaller(_Builder):
    """The same nodes, but none of their values."""

    def captured(self) -> Captured:
        for value in self.graph.inputs:
            self.nodes[value.name] = self.fx.placeholder(value.name)
        for constant in self.graph.constants:
            self._constant(constant)
        read = {name for op in self.graph.ops for name in op.reads}
        read.update(arg.name for arg in self.graph.outputs if isinstance(arg, Ref))
        nodes = tuple(self._recall(op, read) for op in self.graph.ops)
        self.fx.output(tuple(self._arg(a) for a in self.graph.outputs))
        names = {node: name for name, node in self.nodes.items()}
        # lazy: its code, which is written when it is called for, takes as long as all of this
        return Captured(_LazyGraphModule(self.root, self.fx), self.graph, nodes, self.nodes, names)

    def _fake(self, kind: Type) -> None:
        return None

    def _recall(self, op: Op, read: set[str]) -> Node:
        kwargs = {key: self._arg(value) for key, value in op.kwargs}
        node = self.fx.call_function(find_target(op.target), tuple(self._arg(a) for a in op.args), kwargs)
        if not _gives_several(node.target):
            self.nodes[op.outputs[0].name] = node
            return node
        for i, output in enumerate(op.outputs):
            if output.name in read:
                self.nodes[output.name] = self.fx.call_function(operator.getitem, (node, i))
        return node


def _gives_several(target: Any) -> bool:
    """Whether a call gives a tuple or a list, be it of one."""
    if not isinstance(target, OpOverload):
        return False
    returns = target._schema.returns
    return len(returns) > 1 or (len(returns) == 1 and returns[0].type.kind() == "ListType")
