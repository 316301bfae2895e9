"""From ops to RegionTraits: what a region is like beside how much work it is."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fuseplan.graph import Graph, Op, TensorType, Type
from fuseplan.graph.limits import ITEM_SIZES
from fuseplan.models import kinds
from fuseplan.models.facts import OpFacts, bytes_of
from fuseplan.models.sizes import SizeValues
from fuseplan.models.work import CLASSES, RegionTraits

VECTOR_BYTES = 16
"""What one thread loads at once, at most."""


@dataclass(frozen=True, slots=True)
class OpTraits:
    """One op's share in the traits of the regions that it is in."""

    before: tuple[int, ...] = ()
    """The ops whose values it reads."""
    view: bool = False
    kind: int = -1
    """Its place in CLASSES; an op that computes nothing has none."""
    largest: tuple[int, int, int] = (0, 0, 0)
    """Elements, innermost size and bytes of an element of its largest tensor."""
    touched: int = 0
    broadcast: int = 0
    aligned: int = 0
    strided: int = 0
    wide: int = 0
    sum: tuple[int, int, bool] | None = None


def op_traits(op: Op, graph: Graph, facts: OpFacts, producer: Mapping[str, int], sizes: SizeValues) -> OpTraits:
    """What one op adds."""
    before = tuple(sorted({producer[name] for name in op.reads if name in producer}))
    if facts.view or facts.idle:
        return OpTraits(before, facts.view)
    operands = [kind for name in op.reads if isinstance(kind := graph.types[name], TensorType)]
    results = [value.type for value in op.outputs if isinstance(value.type, TensorType)]
    held = [(kind, bytes_of(kind, sizes)) for kind in (*operands, *results)]
    most = max((kind for kind, _ in held), key=lambda kind: sizes.numel(kind.shape), default=None)
    given = max((sizes.numel(kind.shape) for kind in results), default=0)
    return OpTraits(
        before,
        kind=CLASSES.index(_class_of(op, facts, operands, results)),
        largest=(0, 0, 0) if most is None else (sizes.numel(most.shape), _inner(most, sizes), _item(most)),
        touched=sum(count for _, count in held),
        broadcast=sum(bytes_of(kind, sizes) for kind in operands if bytes_of(kind, sizes) < given * _item(kind)),
        aligned=sum(count for kind, count in held if _is_aligned(kind, sizes)),
        strided=sum(count for kind, count in held if not _is_dense(kind, sizes)),
        wide=sum(count for kind, count in held if _item(kind) >= 4),
        sum=facts.signature,
    )


def traits_of(
    ops: Sequence[int], known: Sequence[OpTraits], wanted: Collection[int], users: Sequence[Collection[int]]
) -> RegionTraits:
    """The traits of a region of these ops, in their order; `wanted` are those whose values others need."""
    here = [known[i] for i in ops]
    working = [one for one in here if one.kind >= 0]
    classes = [0] * len(CLASSES)
    for one in working:
        classes[one.kind] += 1
    largest, inner, item = max([one.largest for one in working], default=(0, 0, 0))
    found = [one.sum for one in working if one.sum is not None]
    depth, width, heads = _levels(ops, known)
    live, tails, escaping = _lives(ops, known, wanted, users)
    return RegionTraits(
        classes=tuple(classes),
        largest=largest,
        inner=inner,
        item=item,
        touched=sum([one.touched for one in working]),
        broadcast=sum([one.broadcast for one in working]),
        aligned=sum([one.aligned for one in working]),
        strided=sum([one.strided for one in working]),
        wide=sum([one.wide for one in working]),
        sum_length=max([elements // sums for elements, sums, _ in found], default=0),
        sums=min([sums for _, sums, _ in found], default=0),
        inner_sums=sum([along for *_, along in found]),
        outer_sums=sum([not along for *_, along in found]),
        axes=len(set(found)),
        depth=depth,
        width=width,
        live=live,
        head_views=heads,
        tail_views=tails,
        escaping=escaping,
    )


def _levels(ops: Sequence[int], known: Sequence[OpTraits]) -> tuple[int, int, int]:
    """The longest chain, the most ops at one level, and how many views look at inputs."""
    level: dict[int, int] = {}
    counts: dict[int, int] = {}
    heads = 0
    for i in ops:
        one = known[i]
        at = 0
        for producer in one.before:
            if producer in level and level[producer] > at:
                at = level[producer]
        if one.kind >= 0:
            at += 1
            counts[at] = counts.get(at, 0) + 1
        elif one.view and at == 0:
            heads += 1
        level[i] = at
    return max(counts, default=0), max(counts.values(), default=0), heads


def _lives(
    ops: Sequence[int], known: Sequence[OpTraits], wanted: Collection[int], users: Sequence[Collection[int]]
) -> tuple[int, int, int]:
    """The most values alive at once, views that nothing computes with, and values needed inside and outside."""
    inside = set(ops)
    last: dict[int, int] = {}
    tails = escaping = 0
    dead_end: dict[int, bool] = {}
    for i in reversed(ops):
        ours = [user for user in users[i] if user in inside]
        last[i] = max(ours, default=i)
        dead_end[i] = known[i].kind < 0 and all(dead_end.get(user, False) for user in ours)
        tails += known[i].view and dead_end[i]
        escaping += bool(ours) and i in wanted
    live = most = 0
    ends: dict[int, int] = {}
    for i in ops:
        if known[i].kind >= 0:
            live += 1
            most = max(most, live)
            if i not in wanted:
                ends[last[i]] = ends.get(last[i], 0) + 1
        live -= ends.get(i, 0)
    return most, tails, escaping


def _class_of(op: Op, facts: OpFacts, operands: Sequence[Type], results: Sequence[Type]) -> str:
    name = kinds.name_of(op)
    if facts.library:
        return "library"
    if op.random:
        return "random"
    if "norm" in name and "vector" not in name and name != "norm":
        return "norm_backward" if "backward" in name else "norm"
    if name in kinds.GATHERS or "index" in name or "scatter" in name or name == "embedding_dense_backward":
        return "gather"
    if "softmax" in name:
        return "softmax"
    if name in kinds.REDUCTIONS:
        return "moments" if kinds.REDUCTIONS[name] > 1 else "reduction"
    if name in ("cat", "stack", "constant_pad_nd", "repeat"):
        return "join"
    if name in kinds.MOVES:
        dtypes = {kind.dtype for kind in (*operands, *results) if isinstance(kind, TensorType)}
        return "cast" if len(dtypes) > 1 else "move"
    return "special" if name in kinds.SPECIAL else "pointwise"


def _item(kind: TensorType) -> int:
    return ITEM_SIZES.get(kind.dtype, 4)


def _inner(kind: TensorType, sizes: SizeValues) -> int:
    """The size of the dimension that lies along memory."""
    along = [size for size, stride in zip(kind.shape, kind.stride, strict=True) if stride == 1 and size != 1]
    return sizes(along[-1]) if along else 1


def _is_aligned(kind: TensorType, sizes: SizeValues) -> bool:
    """Whether every row begins at a multiple of a vector."""
    vector = max(1, VECTOR_BYTES // _item(kind))
    shape, strides = sizes.all(kind.shape), sizes.all(kind.stride)
    steps = [stride for size, stride in zip(shape, strides, strict=True) if size > 1 and stride != 0]
    return 1 in steps and _inner(kind, sizes) % vector == 0 and all(step == 1 or step % vector == 0 for step in steps)


def _is_dense(kind: TensorType, sizes: SizeValues) -> bool:
    """Whether the elements lie row after row; expanded dimensions count for nothing."""
    expected = 1
    shape, strides = sizes.all(kind.shape), sizes.all(kind.stride)
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != 0:
            if stride != expected:
                return False
            expected *= size
    return True
