"""Whether an attention mask is causal, or hides nothing, for every size that its program may meet.

The ops that build the mask are followed as functions from index to element; whatever cannot be followed ends in "no
proof". What is proven of an additive mask holds for finite attention scores, as everywhere in attention.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal

from fuseplan.graph import Constant, Graph, Op, Symbol, TensorType
from fuseplan.segment.masks.call import Call
from fuseplan.segment.masks.formulas import Formula, at_most, both, either, implies, satisfiable
from fuseplan.segment.masks.functions import LOWEST, Function, Index, constant, unknown
from fuseplan.segment.masks.linear import MAX_NUMBER, UnprovenError, variable
from fuseplan.segment.masks.ops import RULES
from fuseplan.segment.masks.windows import Window, window_of

MAX_OPS = 150
"""Functions nest as deep as the ops they come from, and so does Python's stack."""

HiddenShape = Literal["all", "causal"]


@dataclass(frozen=True)
class MaskProof:
    """What is proven of a mask: it hides nothing ("all"), it is `is_causal=True` ("causal"), or nothing (None)."""

    verdict: HiddenShape | None
    reason: str
    """For whom it holds, or why nothing is proven."""
    window: Window | None = None
    """What it is where it is neither, in a program with as many keys as queries."""


def classify_mask(graph: Graph, name: str) -> MaskProof:
    """Say what is proven of the value `name` of `graph` as an attention mask.

    "causal" means the pattern of ``is_causal=True``: row i sees columns 0 to i, however many of each there are.

    >>> from fuseplan.graph import Graph, Op, Ref, Symbol, TensorType, Value
    >>> kind = TensorType("bool", ("s0", "s0"), ("s0", 1))
    >>> ones = Op("aten.ones.default", (), (), (Value("ones", kind),))
    >>> tril = Op("aten.tril.default", (Ref("ones"),), (), (Value("mask", kind),))
    >>> classify_mask(Graph((), (ones, tril), (Ref("mask"),), (), (Symbol("s0", 1),)), "mask")
    MaskProof(verdict='causal', reason='for every size', window=None)
    """
    try:
        verdict = _Prover(graph).verdict(name)
    except UnprovenError as unproven:
        return MaskProof(None, str(unproven))
    if isinstance(verdict, Window):
        return MaskProof(None, f"it is neither causal nor all true at every size, but {verdict}", verdict)
    if verdict is None:
        return MaskProof(None, "it is neither causal nor all true at every size")
    return MaskProof(verdict, "for every size" if graph.symbols else "for this size")


class _Prover:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.fresh = count()
        self.sizes = both(*_ranges(graph.symbols))
        self.known: dict[str, Function] = {each.value.name: _held(each) for each in graph.constants}
        for value in graph.inputs:
            if isinstance(value.type, TensorType):
                self.known[value.name] = unknown(value.type, f"it depends on the input {value.name}")

    def verdict(self, name: str) -> HiddenShape | Window | None:
        mask = self._evaluate(name)
        index = tuple(variable(f"%{next(self.fresh)}") for _ in mask.shape)
        if len(index) < 2:
            raise UnprovenError("it has fewer than two dimensions")
        inside = both(self.sizes, mask.inside(index))
        shown = _shown(mask, index, inside)
        if implies(inside, shown):
            return "all"
        # Each row of a causal mask shows column 0, so that what a very low number hides there is hidden for good.
        causal = at_most(index[-1], index[-2])
        same = implies(both(inside, causal), shown) and implies(both(inside, shown), causal)
        if same:
            return "causal"
        # With as many columns as rows, each row of a window shows its own column, so that the same holds of it.
        try:
            return window_of(shown, inside, index[-2], index[-1])
        except UnprovenError:
            return None

    def _evaluate(self, name: str) -> Function:
        needed = _ancestors(self.graph, name)
        if len(needed) > MAX_OPS:
            raise UnprovenError(f"it takes {len(needed)} ops to build (at most {MAX_OPS})")
        for op in needed:
            self._apply(op)
        if name not in self.known:
            raise UnprovenError("it is no tensor")
        return self.known[name]

    def _apply(self, op: Op) -> None:
        for value in op.outputs:
            if isinstance(value.type, TensorType):
                self.known[value.name] = self._function(op, value.type)

    def _function(self, op: Op, out: TensorType) -> Function:
        rule = RULES.get(op.target)
        if rule is None or op.mutates or op.random or op.opaque or len(op.outputs) != 1:
            return unknown(out, f"it depends on {op.target}")
        try:
            return rule(Call(op, out, self.known, self.graph.types, self.sizes, self.fresh))
        except UnprovenError as unproven:
            return unknown(out, str(unproven))


def _ranges(symbols: Iterable[Symbol]) -> Iterator[Formula]:
    for symbol in symbols:
        if symbol.low >= -MAX_NUMBER:
            yield at_most(symbol.low, variable(symbol.name))
        if symbol.high is not None and symbol.high <= MAX_NUMBER:
            yield at_most(variable(symbol.name), symbol.high)


def _ancestors(graph: Graph, name: str) -> list[Op]:
    """The ops that a value is computed from, in order. What shares memory with them must not be written to."""
    wanted = {name}
    found = []
    for op in reversed(graph.ops):
        if any(value.name in wanted for value in op.outputs):
            found.append(op)
            wanted.update(op.reads)
    bases = _bases(graph)
    memory = {base for each in wanted for base in bases.get(each, {each})}
    for op in graph.ops:
        if any(memory & bases.get(written, {written}) for written in op.mutates):
            raise UnprovenError(f"{op.target} writes into it")
    return found[::-1]


def _bases(graph: Graph) -> dict[str, set[str]]:
    """For each value that is a view: the values whose memory it may share, back to where that memory began."""
    bases: dict[str, set[str]] = {}
    for op in graph.ops:
        for alias in op.aliases:
            shared = bases.setdefault(op.outputs[alias.output].name, set())
            shared |= bases.get(alias.value, {alias.value})
    return bases


def _shown(mask: Function, index: Index, inside: Formula) -> Formula:
    """Where the mask lets a query see a key."""
    if mask.boolean:
        return mask.truth(index)
    hidden = {-math.inf, LOWEST.get(mask.dtype, -math.inf)}
    shown: list[Formula] = []
    for guard, number in mask.cases(index):
        if number == 0.0:
            shown.append(guard)
        elif number not in hidden and satisfiable(both(inside, guard)):
            raise UnprovenError(f"it adds {number} to scores of {mask.dtype}, neither nothing nor all that hides them")
    return either(*shown)


def _held(tensor: Constant) -> Function:
    """A constant of one element; of larger ones nothing is known."""
    kind = tensor.value.type
    assert isinstance(kind, TensorType)
    code = _CODES.get(kind.dtype)
    data = bytes.fromhex(tensor.data)
    if code is None or len(data) != struct.calcsize(code):
        return unknown(kind, f"it depends on the contents of {tensor.value.name}")
    try:
        return constant(kind, struct.unpack(f"<{code}", data)[0])
    except UnprovenError as unproven:
        return unknown(kind, str(unproven))


_CODES = {"bool": "?", "int8": "b", "uint8": "B", "int16": "h", "int32": "i", "int64": "q",
          "float16": "e", "float32": "f", "float64": "d"}  # fmt: skip
