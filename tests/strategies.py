"""Hypothesis strategies for random valid graphs: symbols, views, mutation, several outputs and devices, odd numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from hypothesis import strategies as st

from fuseplan.graph import (
    Alias,
    Arg,
    Constant,
    Dim,
    Enum,
    Graph,
    NoneType,
    Op,
    OpaqueType,
    Ref,
    ScalarType,
    Symbol,
    TensorType,
    Type,
    Value,
)

DEVICES = ("cpu", "cuda:0", "cuda:1", "cuda:7", "mps:0")
DTYPES = ("float32", "bfloat16", "int64", "bool", "complex64", "float8_e4m3fn")
DEVICE_LISTS = (
    ("cpu",),
    ("cuda:0",),
    ("mps:0",),
    ("cuda:1", "cpu"),
    ("cuda:0", "cuda:7"),
    ("cpu", "cuda:0", "cuda:1"),
    ("cuda:7", "mps:0", "cuda:0"),
)
TARGETS = (
    "aten.add.Tensor",
    "aten.view.default",
    "aten.split.Tensor",
    "aten.relu_.default",
    "operator.mul",
    "mylib.op",
)
EXPRESSIONS = ("{0}", "2*{0}", "{0}*{1}", "({0} + 1)//2", "Max(1, {0})", "Mod({0}, {1} + 3)", "-{0} + {1}**2")
ENUMS = (
    Enum("dtype", "float32"),
    Enum("dtype", "bfloat16"),
    Enum("layout", "strided"),
    Enum("memory_format", "channels_last"),
    *(Enum("device", name) for name in (*DEVICES, "cuda")),
)

floats = st.sampled_from([0.0, -0.0, 1.0, 1e-5, float("nan"), float("inf"), float("-inf")]) | st.floats()
numbers = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2) | st.integers(-(2**63), 2**64 - 1),
    floats,
    st.builds(complex, floats, floats),
)
literals = numbers | st.text(max_size=8) | st.sampled_from(ENUMS)
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True)


@st.composite
def symbol_lists(draw: st.DrawFn) -> tuple[Symbol, ...]:
    """Up to three symbols with ranges, some open, and hints within them."""
    found = []
    for index in range(draw(st.integers(0, 3))):
        low = draw(st.integers(-5, 5))
        high = draw(st.none() | st.integers(low, low + 100))
        hint = draw(st.none() | st.integers(low, low + 100 if high is None else high))
        found.append(Symbol(f"s{index * 7}", low, high, hint))
    return tuple(found)


@cache
def expressions(symbols: tuple[str, ...]) -> st.SearchStrategy[str]:
    """Expressions over the symbols of these names, spelled as torch spells them."""
    known = st.sampled_from(symbols)
    return st.builds(lambda form, a, b: form.format(a, b), st.sampled_from(EXPRESSIONS), known, known)


@cache
def tensor_types(symbols: tuple[str, ...], devices: tuple[str, ...]) -> st.SearchStrategy[TensorType]:
    """Tensors of rank 0 to 3 whose strides need not fit their shapes."""
    sizes: st.SearchStrategy[Dim] = st.integers(0, 20)
    dims = sizes | expressions(symbols) if symbols else sizes
    pairs = st.lists(st.tuples(dims, dims), max_size=3)

    def build(dtype: str, sizes: list[tuple[Dim, Dim]], device: str) -> TensorType:
        return TensorType(dtype, tuple(size for size, _ in sizes), tuple(stride for _, stride in sizes), device)

    return st.builds(build, st.sampled_from(DTYPES), pairs, st.sampled_from(devices))


@st.composite
def constants(draw: st.DrawFn, name: str, devices: Sequence[str]) -> Constant:
    """A small int64 tensor."""
    size = draw(st.integers(0, 3))
    data = draw(st.binary(min_size=8 * size, max_size=8 * size))
    return Constant(Value(name, TensorType("int64", (size,), (1,), draw(st.sampled_from(devices)))), data.hex())


class _Place(int):
    """The place of something that is defined, in a strategy that is the same whatever is: one is made once, and not at each op."""


PLACES = st.integers(0, 20)
LEAVES = literals | PLACES.map(_Place)
ARGUMENTS: st.SearchStrategy[Any] = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4
)
POSITIONAL = st.lists(ARGUMENTS, max_size=3)
NAMED = st.dictionaries(names, ARGUMENTS, max_size=2)
RESULTS = st.lists(numbers | PLACES.map(_Place), max_size=3)
PAIRS = st.lists(st.tuples(PLACES, PLACES), max_size=2)


def _referring(argument: Any, defined: Sequence[str]) -> Arg:
    """An argument with references to what is defined."""
    if isinstance(argument, tuple):
        return tuple(_referring(one, defined) for one in argument)
    if isinstance(argument, _Place):
        return Ref(defined[argument % len(defined)]) if defined else int(argument)
    return argument


class _Names:
    """Names that differ, few enough that they sometimes equal those of symbols."""

    def __init__(self) -> None:
        self._count = 0

    def fresh(self) -> str:
        self._count += 1
        return f"s{self._count}"


@st.composite
def _ops(
    draw: st.DrawFn, counted: _Names, types: st.SearchStrategy[Type], defined: dict[str, Type], opaque: bool = False
) -> Op:
    """One op that reads what is defined so far; adds its outputs to it."""
    references = list(defined)
    args = tuple(_referring(one, references) for one in draw(POSITIONAL))
    kwargs = tuple((name, _referring(one, references)) for name, one in sorted(draw(NAMED).items()))
    outputs = tuple(Value(counted.fresh(), kind) for kind in draw(st.lists(types, max_size=3)))
    reads = Op("aten.any", args, kwargs, outputs).reads
    aliases: list[Alias] = []
    mutates: list[str] = []
    if reads:
        tensors = [index for index, value in enumerate(outputs) if isinstance(value.type, TensorType)]
        if tensors:
            found = [Alias(tensors[i % len(tensors)], reads[j % len(reads)]) for i, j in draw(PAIRS)]
            aliases = list(dict.fromkeys(found))
        mutates = list(dict.fromkeys(reads[i % len(reads)] for i, _ in draw(PAIRS)))
    defined |= {value.name: value.type for value in outputs}
    why = draw(st.none() | st.just("a higher-order op")) if opaque else None
    target, random = draw(st.sampled_from(TARGETS)), draw(st.booleans())
    return Op(target, args, kwargs, outputs, tuple(aliases), tuple(mutates), random, why)


@cache
def _types(symbols: tuple[str, ...], devices: tuple[str, ...], opaque: bool) -> st.SearchStrategy[Type]:
    """Types of the values of a graph with these symbols, on these devices."""
    tensors = tensor_types(symbols, devices)
    types: st.SearchStrategy[Any] = tensors | tensors | st.just(NoneType())
    if symbols:
        types |= st.builds(ScalarType, st.sampled_from(["int", "float", "bool"]), expressions(symbols))
    if opaque:
        types |= st.just(OpaqueType("a torch.Generator"))
    return types


@st.composite
def graphs(draw: st.DrawFn, *, max_ops: int = 5, opaque: bool = False) -> Graph:
    """A valid graph; with `opaque`, some of its ops and values may be ones that cannot be written down."""
    symbols = draw(symbol_lists())
    devices = draw(st.sampled_from(DEVICE_LISTS))
    types = _types(tuple(symbol.name for symbol in symbols), devices, opaque)
    name = _Names()
    inputs = tuple(Value(name.fresh(), kind) for kind in draw(st.lists(types, max_size=3)))
    data = tuple(draw(constants(name.fresh(), devices)) for _ in range(draw(st.integers(0, 2))))
    defined = {value.name: value.type for value in (*inputs, *(constant.value for constant in data))}
    ops = tuple(draw(_ops(name, types, defined, opaque)) for _ in range(draw(st.integers(0, max_ops))))
    results = tuple(_referring(one, list(defined)) for one in draw(RESULTS))
    return Graph(inputs, ops, results, data, symbols)
