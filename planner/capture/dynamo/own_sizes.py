"""A program with sizes of its own: what a compiler asks of them narrows nothing of what Dynamo has captured.

Each question that a compiler asks of a size becomes a guard of Dynamo's, which compiles anew where it fails. Here the same graph gets other
symbols, with the same ranges, which are nobody else's: several plans of one program stand beside each other. Whoever calls what was
compiled sees to it that the sizes are such as were asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch._guards import TracingContext, tracing
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._pytree import tree_leaves

from fuseplan.capture.dynamo.copied import as_captured
from fuseplan.capture.dynamo.counts import Counts
from fuseplan.capture.dynamo.modes import run_without_values
from fuseplan.capture.dynamo.program import sharing
from fuseplan.capture.dynamo.symbols import Symbols
from fuseplan.errors import GraphError

_NONE: Mapping[Node, int] = {}
LEAST = 2
"""Of sizes that vary: Dynamo compiles anew for 0 and for 1."""


@dataclass(frozen=True)
class SizeReading:
    """Where a call shows the sizes of a program: as arguments of their own."""

    names: tuple[str, ...]
    read: Callable[[Sequence[Any]], Any]
    """One number of a call's arguments, or a tuple of them, in the order of the names. Called once a call, and so one call of C."""

    def by_name(self, found: Any) -> dict[str, int]:
        """What was read, by the names of the sizes."""
        return dict(zip(self.names, found if len(self.names) > 1 else (found,), strict=True))


def size_reading(gm: GraphModule, symbols: Symbols) -> SizeReading | None:
    """Where the settled program `gm` is told its sizes, without what only counts; None where some size is no argument by itself, or none
    varies.
    """
    places: dict[str, int] = {}
    for i, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        name = symbols.name_of(node.meta.get("example_value"))
        if name is not None:
            places.setdefault(name, i)
    counting = Counts.of(gm).names(symbols)
    seen = [one for one in symbols.seen() if one.name not in counting]
    if not seen or any(one.name not in places or one.hint is None for one in seen):
        return None
    names = tuple(one.name for one in seen)
    return SizeReading(names, itemgetter(*(places[name] for name in names)))


def why_not_own_sizes(gm: GraphModule, example_inputs: Sequence[Any]) -> str | None:
    """Why a program cannot get sizes of its own; None where it can. Programs that are trained, or hold graphs, stay Dynamo's."""
    inputs = gm.graph.find_nodes(op="placeholder")
    values = [node.meta.get("example_value") for node in gm.graph.nodes if node.op != "output"]
    if sharing(example_inputs):
        return "some of its inputs share memory"
    if any(getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False) for node in inputs):
        return "one of its inputs is a float that varies"
    if any(not isinstance(node.meta.get("example_value"), (torch.SymInt, torch.Tensor)) for node in inputs):
        return "one of its inputs is neither a tensor nor a size"
    if not all(map(_is_ordinary, tree_leaves(values))):
        return "it has tensors that are not ordinary ones"
    owned = [value for value in (*values, *gm.parameters()) if isinstance(value, torch.Tensor)]
    if torch.is_grad_enabled() and any(value.requires_grad for value in owned):
        return "it is trained"
    if any(isinstance(node.target, HigherOrderOperator) or node.op == "call_module" for node in gm.graph.nodes):
        return "there are graphs within it"
    if any(isinstance(_attribute(gm, node), GraphModule) for node in gm.graph.find_nodes(op="get_attr")):
        return "there are graphs within it"
    return None


def _attribute(gm: GraphModule, node: Node) -> Any:
    found: Any = gm
    for part in str(node.target).split("."):
        found = getattr(found, part, None)
    return found


def _is_ordinary(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return True
    plain = type(value) in (torch.Tensor, torch.nn.Parameter, FakeTensor) and value.layout is torch.strided
    return plain and not (value.is_nested or value.is_conj() or value.is_neg())


@dataclass(eq=False)
class OwnSizes:
    """The program with sizes of its own, and what its inputs are."""

    gm: GraphModule
    inputs: list[Any]
    _env: ShapeEnv
    _mode: FakeTensorMode
    _symbols: Mapping[str, sympy.Expr]
    _seen: Mapping[str, int]
    """What each was when it was made: a call may tell of some alone, and what it does not tell of matters to nobody."""

    @contextmanager
    def traced(self) -> Iterator[None]:
        """While it lasts, what is compiled belongs to this program, and not to the one that Dynamo may be compiling."""
        with tracing(TracingContext(self._mode)):
            yield

    def why_not(self, sizes: Mapping[str, int]) -> str | None:
        """Why what was compiled of it is not for these sizes, by what compilers have asked of its own; None where it is."""
        given = {self._symbols[name]: sympy.Integer(size) for name, size in {**self._seen, **sizes}.items()}
        for guard in self._env.guards:
            if guard.expr.xreplace(given) != sympy.true:
                return f"it was compiled for sizes of which {guard.expr} is true"
        return None

    def at(self, sizes: Mapping[str, int], dims: Sequence[int | torch.SymInt]) -> list[int]:
        """What some of its sizes are where its own are these."""
        given = {self._symbols[name]: sympy.Integer(size) for name, size in sizes.items()}
        return [int(one.node.expr.xreplace(given)) if isinstance(one, torch.SymInt) else int(one) for one in dims]

    def names_in(self, dims: Sequence[int | torch.SymInt]) -> set[str] | None:
        """The sizes of the program on which some others hang; None where they hang on data besides."""
        found = {one for dim in dims if isinstance(dim, torch.SymInt) for one in dim.node.expr.free_symbols}
        names = {symbol: name for name, symbol in self._symbols.items()}
        return {names[one] for one in found} if found <= names.keys() else None


def copied_program(gm: GraphModule, fixed: Mapping[Node, int] = _NONE) -> GraphModule:
    """The program as Dynamo captured it, with nothing of what it was called with: for later, when others have changed `gm`.

    What stands in a node's meta goes along. Inputs that are `fixed` are numbers in it.
    """
    graph, copies = Graph(), dict[Node, Any](fixed)
    for node in gm.graph.nodes:
        if node in fixed:
            continue
        copy = copies[node] = graph.node_copy(node, copies.__getitem__)
        copy.meta.pop("grapharg", None)
        if hasattr(node, "_dynamo_source"):  # by which AOTAutograd knows what is a parameter
            copy._dynamo_source = node._dynamo_source
    return as_captured(gm, graph)


def with_own_sizes(
    gm: GraphModule, symbols: Symbols, sizes: Mapping[str, int], within: AbstractContextManager[object] | None = None
) -> OwnSizes:
    """Give a program sizes of its own, which are seen as `sizes`, or as they were; `gm` stays as it is. Fake tensors run through it `within` what
    is given. GraphError where it does not run so.
    """
    sizes = {**{one.name: one.hint for one in symbols.seen() if one.hint is not None}, **sizes}
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    own: dict[str, sympy.Symbol] = {}
    for old, one in symbols.renaming().items():
        # by its short name: the same in each process, so that Inductor's cache knows the code of another
        source, positive = ConstantSource(f"fuseplan_{one.name}"), old.is_positive or None
        made: Any = env.create_symbol(
            sizes[one.name],
            source,
            DimDynamic.DYNAMIC,
            positive=positive,
            do_not_specialize_zero_one=one.low < LEAST,
        )
        free = env.var_to_range[made]
        low = free.lower if one.low == -(2**63) else one.low
        env.constrain_symbol_range(made, low, free.upper if one.high is None else one.high)
        own[one.name] = made
    return _propagated(copied_program(gm), env, mode, own, symbols, sizes, within)


def with_fixed_sizes(gm: GraphModule, symbols: Symbols, sizes: Mapping[str, int]) -> OwnSizes:
    """Write the sizes of a program as these numbers: it is not given them any more, and gives none of its own. GraphError where it does not
    run so.
    """
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    own: dict[str, sympy.Expr] = {name: sympy.Integer(size) for name, size in sizes.items()}
    renaming = {old: own[one.name] for old, one in symbols.renaming().items()}
    numbers = {
        node: int(value.node.expr.xreplace(renaming))
        for node in gm.graph.find_nodes(op="placeholder")
        if isinstance(value := node.meta["example_value"], torch.SymInt)
    }
    copy = copied_program(gm, numbers)
    return _propagated(copy, env, mode, own, symbols, sizes)


def _propagated(
    copy: GraphModule,
    env: ShapeEnv,
    mode: FakeTensorMode,
    own: Mapping[str, sympy.Expr],
    symbols: Symbols,
    sizes: Mapping[str, int],
    within: AbstractContextManager[object] | None = None,
) -> OwnSizes:
    """A copy of a program, once fake tensors of its own sizes have run through it."""
    seen = {own[name]: sympy.Integer(size) for name, size in sizes.items()}
    renaming = _Renaming(env, {old: own[one.name] for old, one in symbols.renaming().items()}, seen)
    nodes = copy.graph.find_nodes(op="placeholder")
    try:
        with mode:
            inputs = [renaming.input(node.meta["example_value"]) for node in nodes]
        with tracing(TracingContext(mode)), run_without_values(mode), within or nullcontext():
            _Propagating(copy, mode).run(*inputs)
    except Exception as error:  # whatever an operator says to sizes that it was not captured with
        raise GraphError(f"it does not run with sizes of its own: {type(error).__name__}: {error}") from error
    return OwnSizes(copy, inputs, env, mode, own, sizes)


class _Renaming:
    """Sizes and inputs of a program, in other symbols."""

    def __init__(
        self, env: ShapeEnv, own: Mapping[sympy.Symbol, sympy.Expr], seen: Mapping[sympy.Expr, sympy.Integer]
    ) -> None:
        self.env, self.own, self.seen = env, own, seen

    def size(self, size: Any) -> Any:
        if not isinstance(size, torch.SymInt):
            return size
        found = size.node.expr.xreplace(self.own)
        if found.is_Integer:
            return int(found)
        return self.env.create_symintnode(found, hint=int(found.xreplace(self.seen)))

    def input(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return self.size(value)
        shape, stride = [list(map(self.size, sizes)) for sizes in (value.shape, value.stride())]
        offset = self.size(value.storage_offset())
        with torch.inference_mode(value.is_inference()), torch.no_grad():
            if isinstance(offset, int) and offset == 0:
                made = torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device)
            else:
                span = offset + 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
                made = torch.empty((span,), dtype=value.dtype, device=value.device).as_strided(shape, stride, offset)
        return made.requires_grad_() if value.requires_grad else made


class _Propagating(Interpreter):
    """Runs a program on what stands for its inputs, and notes what each node gives."""

    def __init__(self, gm: GraphModule, mode: FakeTensorMode) -> None:
        super().__init__(gm)
        self.mode = mode

    def run_node(self, n: Node) -> Any:
        found = super().run_node(n)
        real = isinstance(found, torch.Tensor) and not isinstance(found, FakeTensor)  # a constant that the program owns
        n.meta["example_value"] = self.mode.from_tensor(found, static_shapes=True) if real else found
        return found
