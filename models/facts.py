"""What one op does by itself: the bytes it touches, what it computes, and which sums it can share a kernel with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from fuseplan.graph import Arg, Graph, Op, Ref, TensorType, Type
from fuseplan.graph.limits import ITEM_SIZES
from fuseplan.models import kinds
from fuseplan.models.flops import anchor_work
from fuseplan.models.sizes import SizeValues
from fuseplan.models.work import AnchorWork
from fuseplan.segment import is_anchor

_SECTOR = 32
"""The least that memory is read by."""
Signature = tuple[int, int, bool]
"""Elements that go into sums, sums that come out, and whether they run along memory: equal ones share a kernel."""


@dataclass(frozen=True, slots=True)
class Read:
    """One operand: which value, the bytes of it that are touched, and those among them that lie out of order."""

    value: str
    bytes: int
    scattered: int


@dataclass(frozen=True, slots=True)
class OpFacts:
    """One op, measured by its types."""

    view: bool = False
    idle: bool = False
    """It launches nothing, and nothing is read or written."""
    library: bool = False
    """It is a kernel of its own in any region."""
    reads: tuple[Read, ...] = ()
    written: int = 0
    """Bytes written to memory that existed before."""
    pointwise: int = 0
    special: int = 0
    reduced: int = 0
    signature: Signature | None = None
    split: bool = False
    """Too few sums to fill a GPU: a second kernel adds up the parts."""
    again: int = 0
    """Bytes that a second kernel of the same op reads, where one op holds sums along different axes."""
    kernels_alone: int = 0
    bytes_alone: int = 0
    scattered_alone: int = 0
    anchor: AnchorWork | None = None


def bytes_of(kind: Type, sizes: SizeValues) -> int:
    """The memory behind a value; expanded dimensions take none."""
    if not isinstance(kind, TensorType):
        return 0
    held = [size for size, stride in zip(kind.shape, kind.stride, strict=True) if stride != 0]
    return sizes.numel(held) * ITEM_SIZES.get(kind.dtype, 4)


def facts_of(op: Op, graph: Graph, sizes: SizeValues) -> OpFacts:
    """Measure one op of a graph."""
    if op.is_view:
        return OpFacts(view=True)
    name = kinds.name_of(op)
    results = [value.type for value in op.outputs if isinstance(value.type, TensorType)]
    if (not results and not op.mutates) or name in kinds.IDLE:
        return OpFacts(idle=True)
    reads = tuple(_reads(op, name, results, graph.types, sizes))
    shared = {alias.output for alias in op.aliases}
    fresh = sum(bytes_of(value.type, sizes) for i, value in enumerate(op.outputs) if i not in shared)
    written = sum(bytes_of(graph.types[value], sizes) for value in op.mutates)
    moved = sum(read.bytes for read in reads) + fresh + written
    passes = kinds.PASSES_ALONE.get(name, 1)
    alone = OpFacts(
        library=is_anchor(op),
        reads=reads,
        written=written,
        kernels_alone=kinds.KERNELS_ALONE.get(name, 1),
        bytes_alone=moved * passes,
        scattered_alone=_reordered(reads, results, graph.types, sizes),
    )
    return _with_arithmetic(alone, op, name, results, graph.types, sizes)


def _with_arithmetic(
    facts: OpFacts, op: Op, name: str, results: list[TensorType], types: Mapping[str, Type], sizes: SizeValues
) -> OpFacts:
    if facts.library:
        anchor = anchor_work(op, name, types, sizes, facts.bytes_alone)
        reads = tuple(replace(read, scattered=0) for read in facts.reads)  # libraries read matrices either way
        return replace(facts, anchor=anchor, reads=reads, scattered_alone=0)
    given = max((sizes.numel(kind.shape) for kind in results), default=0)
    if name in kinds.GATHERS:
        return replace(facts, pointwise=max(given, _picked(op, name, types, sizes)))
    largest = max((kind for kind in _operands(op, types)), key=lambda kind: sizes.numel(kind.shape), default=None)
    elements = max(given, 0 if largest is None else sizes.numel(largest.shape))
    signature, split = None, False
    if name in kinds.REDUCTIONS and largest is not None:
        signature = _signature(op, name, largest, types, sizes)
        split = _is_split(signature)
    return replace(
        facts,
        pointwise=0 if name in kinds.MOVES else elements * kinds.DEAR.get(name, 1),
        special=elements * kinds.SPECIAL.get(name, 0),
        reduced=elements * kinds.REDUCTIONS.get(name, 0),
        signature=signature,
        split=split,
        again=sum(read.bytes for read in facts.reads[:2]) if name in kinds.TWO_AXES else 0,
    )


def _reads(
    op: Op, name: str, results: list[TensorType], types: Mapping[str, Type], sizes: SizeValues
) -> Iterator[Read]:
    gathered = None
    if name in kinds.GATHERS and op.args and isinstance(op.args[0], Ref):
        gathered = op.args[0].name
    for value in op.reads:
        kind = types[value]
        if not isinstance(kind, TensorType):
            continue
        touched = bytes_of(kind, sizes)
        if value == gathered:
            picked = _picked(op, name, types, sizes) * _SECTOR
            touched = min(touched, picked or sum(bytes_of(result, sizes) for result in results))
        crossing = any(_crosses(kind, result) for result in results[:1])
        yield Read(value, touched, touched if crossing else 0)


def _picked(op: Op, name: str, types: Mapping[str, Type], sizes: SizeValues) -> int:
    """How many elements an operator picks one by one; none where it takes whole rows."""
    place = kinds.PICKS.get(name)
    index = op.args[place] if place is not None and place < len(op.args) else None
    kind = types.get(index.name) if isinstance(index, Ref) else None
    return sizes.numel(kind.shape) if isinstance(kind, TensorType) else 0


def _crosses(read: TensorType, written: TensorType) -> bool:
    """Whether neighbours in the result are far apart in the operand, and each is of the same shape."""
    if len(read.shape) != len(written.shape) or len(read.shape) < 2 or read.shape != written.shape:
        return False
    inner = next(
        (d for d in reversed(range(len(written.shape))) if written.stride[d] == 1 and written.shape[d] != 1), None
    )
    return inner is not None and read.stride[inner] not in (0, 1)


def _reordered(reads: tuple[Read, ...], results: list[TensorType], types: Mapping[str, Type], sizes: SizeValues) -> int:
    """Bytes of operands whose dimensions lie in another order than those of the result: PyTorch tiles no such copy."""
    found = 0
    for read in reads:
        kind = types[read.value]
        if results and isinstance(kind, TensorType) and kind.shape == results[0].shape:
            pairs = zip(sizes.all(kind.stride), sizes.all(results[0].stride), sizes.all(kind.shape), strict=True)
            steps = sorted((written, step) for step, written, size in pairs if size > 1 and step and written)
            found += read.bytes * any(a > b for (_, a), (_, b) in pairwise(steps))
    return found


def _operands(op: Op, types: Mapping[str, Type]) -> list[TensorType]:
    kinds_read = (types[name] for name in op.reads)
    return [kind for kind in kinds_read if isinstance(kind, TensorType)]


def _signature(op: Op, name: str, largest: TensorType, types: Mapping[str, Type], sizes: SizeValues) -> Signature:
    elements = sizes.numel(largest.shape)
    rank = len(largest.shape)
    if "batch_norm" in name:
        channels = sizes(largest.shape[1]) if rank > 1 else 1
        return elements, channels, rank < 2 or largest.stride[1] != 1
    dims = _dims(op, rank)
    if "norm" in name and "vector" not in name and name != "norm":  # layers normalise the last dimensions
        return elements, _rows(op, elements, largest, sizes), True
    sums = elements // max(1, math.prod(sizes(largest.shape[d]) for d in dims))
    inner = next((d for d in reversed(range(rank)) if largest.stride[d] == 1 and largest.shape[d] != 1), None)
    return elements, max(1, sums), inner is None or inner in dims


def _rows(op: Op, elements: int, largest: TensorType, sizes: SizeValues) -> int:
    """How many means a layer's normalisation takes: as many as it gives, or as its normalised shape leaves."""
    for value in op.outputs[1:2]:
        if isinstance(value.type, TensorType) and value.type.dtype != "bool" and value.type.shape != largest.shape:
            return max(1, min(elements, sizes.numel(value.type.shape)))
    normalised = next((arg for arg in op.args[1:] if isinstance(arg, tuple)), ())
    length = math.prod(arg if isinstance(arg, int) else 1 for arg in normalised)
    return max(1, elements // max(1, length))


def _dims(op: Op, rank: int) -> tuple[int, ...]:
    """The dimensions that a reduction names; all, if it names none."""
    named: Arg = dict(op.kwargs).get("dim", next((arg for arg in op.args[1:] if not isinstance(arg, Ref)), None))
    chosen = named if isinstance(named, tuple) else (named,)
    dims = {d % rank for d in chosen if type(d) is int and rank and -rank <= d < rank}
    return tuple(sorted(dims)) or tuple(range(rank))


def _is_split(signature: Signature) -> bool:
    """Compilers give each sum along memory a block, and sums across memory a column of one."""
    elements, sums, inner = signature
    length = elements // sums
    return (sums < 256 and length >= 8192) if inner else (sums < 8192 and length >= 1024)
