"""Which numbers an integer or float input of a region may hold, read off the ops that consume it.

`make_inputs` asks here, so that an embedding meets rows that exist and a variance is not negative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fuseplan.capture.fx.to_fx import SizeSpace
from fuseplan.graph import Arg, Graph, Op, Ref, TensorType


@dataclass(frozen=True, slots=True)
class Bound:
    """The numbers from `low` to `high`, both included; no number twice where they are `distinct`."""

    low: float
    high: float
    distinct: bool = False

    def meet(self, other: Bound) -> Bound:
        """What both allow; the nearest single number where that is nothing."""
        low = max(self.low, other.low)
        return Bound(low, max(low, min(self.high, other.high)), self.distinct or other.distinct)


POSITIVE = Bound(0.1, 2.0)
PROBABILITY = Bound(0.0, 1.0)

# What an argument of that name means in every operator that has one.
_BY_ARGUMENT = {
    "running_var": POSITIVE,
    "save_invstd": POSITIVE,
    "save_var": POSITIVE,
    "invstd": POSITIVE,
    "rstd": POSITIVE,
    "total_weight": POSITIVE,
}


class _Sizes:
    """Sizes of the values of one graph, for given values of its symbols."""

    def __init__(self, graph: Graph, sizes: Mapping[str, int]) -> None:
        self.types = graph.types
        self.space = SizeSpace(dict(sizes))

    def shape(self, arg: Arg) -> tuple[int, ...]:
        kind = self.types[arg.name] if isinstance(arg, Ref) else None
        return tuple(int(self.space(d)) for d in kind.shape) if isinstance(kind, TensorType) else ()

    def along(self, arg: Arg, dim: Arg) -> int:
        shape = self.shape(arg)
        return shape[dim] if shape and isinstance(dim, int) and -len(shape) <= dim < len(shape) else 1

    def bits(self, arg: Arg) -> int:
        kind = self.types[arg.name] if isinstance(arg, Ref) else None
        return {"int8": 8, "uint8": 8, "int16": 16, "int32": 32}.get(getattr(kind, "dtype", ""), 64)

    def is_integer(self, arg: Arg) -> bool:
        kind = self.types[arg.name] if isinstance(arg, Ref) else None
        return isinstance(kind, TensorType) and "int" in kind.dtype


def bounds_of(graph: Graph, sizes: Mapping[str, int]) -> dict[str, Bound]:
    """Return the bound of each value that has one; `sizes` gives the symbols of the graph."""
    known: dict[str, Bound] = {}
    space = _Sizes(graph, sizes)

    def demand(arg: Arg, bound: Bound) -> None:
        if isinstance(arg, Ref):
            known[arg.name] = known[arg.name].meet(bound) if arg.name in known else bound

    for op in reversed(graph.ops):
        for arg, bound in _demands(op, space):
            demand(arg, bound)
        out = next((known[v.name] for v in op.outputs if v.name in known), None)
        if out is not None:
            for arg, bound in _backwards(op, out, space):
                demand(arg, bound)
    return known


def _packet(op: Op) -> str:
    return op.target.rsplit(".", 1)[0]


def _demands(op: Op, sizes: _Sizes) -> list[tuple[Arg, Bound]]:
    """What an op asks of its own arguments."""
    rule = _RULES.get(_packet(op))
    found = rule(op, sizes) if rule is not None else []
    return found + [(arg, _BY_ARGUMENT[name]) for name, arg in _named(op) if name in _BY_ARGUMENT]


def _named(op: Op) -> list[tuple[str, Arg]]:
    positions = _POSITIONS.get(_packet(op), {})
    return [(name, op.args[i]) for name, i in positions.items() if i < len(op.args)] + list(op.kwargs)


# Where the arguments of _BY_ARGUMENT stand in the operators that take them by position.
_POSITIONS = {
    "aten.native_batch_norm": {"running_var": 4},
    "aten._native_batch_norm_legit": {"running_var": 4},
    "aten._native_batch_norm_legit_no_training": {"running_var": 4},
    "aten._native_batch_norm_legit_functional": {"running_var": 4},
    "aten._batch_norm_with_update_functional": {"running_var": 4},
    "aten._batch_norm_with_update": {"running_var": 4},
    "aten._batch_norm_no_update": {"running_var": 4},
    "aten.cudnn_batch_norm": {"running_var": 4},
    "aten.native_batch_norm_backward": {"running_var": 4, "save_invstd": 6},
    "aten.batch_norm_backward": {"running_var": 4, "save_var": 6},
    "aten.cudnn_batch_norm_backward": {"running_var": 4, "save_var": 6},
    "aten.native_layer_norm_backward": {"rstd": 4},
    "aten.native_group_norm_backward": {"rstd": 3},
    "aten._fused_rms_norm_backward": {"rstd": 3},
    "aten.nll_loss_backward": {"total_weight": 6},
    "aten.nll_loss2d_backward": {"total_weight": 6},
}


def _rows(table: int, index: int) -> Callable[[Op, _Sizes], list[tuple[Arg, Bound]]]:
    """The argument at `index` picks rows of the tensor at `table`."""
    return lambda op, sizes: [(op.args[index], Bound(0, sizes.along(op.args[table], 0) - 1))]


def _below(index: int, limit: int) -> Callable[[Op, _Sizes], list[tuple[Arg, Bound]]]:
    """The argument at `index` stays below the number at `limit`."""

    def rule(op: Op, sizes: _Sizes) -> list[tuple[Arg, Bound]]:
        top = op.args[limit]
        return [(op.args[index], Bound(0, top - 1))] if isinstance(top, int) else []

    return rule


def _along_dim(op: Op, sizes: _Sizes) -> list[tuple[Arg, Bound]]:
    """gather, scatter, index_select and their kin: (tensor, dim, index, …)."""
    return [(op.args[2], Bound(0, sizes.along(op.args[0], op.args[1]) - 1))]


def _index(op: Op, sizes: _Sizes) -> list[tuple[Arg, Bound]]:
    """aten.index and index_put count from the end, too."""
    indices = op.args[1] if isinstance(op.args[1], tuple) else ()
    found: list[tuple[Arg, Bound]] = []
    for dim, index in enumerate(indices):
        if sizes.is_integer(index):
            size = sizes.along(op.args[0], dim)
            found.append((index, Bound(-size, size - 1)))
    return found


def _index_put(op: Op, sizes: _Sizes) -> list[tuple[Arg, Bound]]:
    """One index writes: who wins where two writes meet is nobody's promise, and what none reaches may be garbage."""
    found = _index(op, sizes)
    return [(arg, Bound(0, bound.high, distinct=True)) for arg, bound in found] if len(found) == 1 else found


def _index_copy(op: Op, sizes: _Sizes) -> list[tuple[Arg, Bound]]:
    return [(arg, Bound(bound.low, bound.high, distinct=True)) for arg, bound in _along_dim(op, sizes)]


def _nll(target: int, scores: int) -> Callable[[Op, _Sizes], list[tuple[Arg, Bound]]]:
    def rule(op: Op, sizes: _Sizes) -> list[tuple[Arg, Bound]]:
        shape = sizes.shape(op.args[scores])
        return [(op.args[target], Bound(0, (shape[1] if len(shape) > 1 else shape[0]) - 1))]

    return rule


def _pooled(op: Op, sizes: _Sizes) -> list[tuple[Arg, Bound]]:
    """max_pool2d_with_indices_backward: indices count through one image."""
    height, width = sizes.shape(op.args[1])[-2:]
    return [(op.args[7], Bound(0, height * width - 1))]


def _divisor(op: Op, sizes: _Sizes) -> list[tuple[Arg, Bound]]:
    return [(op.args[1], Bound(1, 8))] if sizes.is_integer(op.args[1]) else []


def _shift(op: Op, sizes: _Sizes) -> list[tuple[Arg, Bound]]:
    return [(op.args[1], Bound(0, sizes.bits(op.args[0]) - 2))]


def _exponent(op: Op, sizes: _Sizes) -> list[tuple[Arg, Bound]]:
    return [(op.args[1], Bound(0, 3))] if sizes.is_integer(op.args[1]) else []


def _bernoulli(op: Op, sizes: _Sizes) -> list[tuple[Arg, Bound]]:
    return [(op.args[0], PROBABILITY)]


def _inside(op: Op, sizes: _Sizes) -> list[tuple[Arg, Bound]]:
    """Off the ends, where a nudge of one rounding would leave the domain: the CUDA kernel asserts."""
    return [(arg, Bound(0.05, 0.95)) for arg in op.args[:2]]


_RULES: dict[str, Callable[[Op, _Sizes], list[tuple[Arg, Bound]]]] = {
    "aten.embedding": _rows(0, 1),
    "aten.embedding_dense_backward": _below(1, 2),
    "aten.gather": _along_dim,
    "aten.scatter": _along_dim,
    "aten.scatter_add": _along_dim,
    "aten.scatter_reduce": _along_dim,
    "aten.index_select": _along_dim,
    "aten.index_add": _along_dim,
    "aten.index_copy": _index_copy,
    "aten.index_fill": _along_dim,
    "aten.index": _index,
    "aten._unsafe_index": _index,
    "aten.index_put": _index_put,
    "aten._unsafe_index_put": _index_put,
    "aten.nll_loss_forward": _nll(1, 0),
    "aten.nll_loss2d_forward": _nll(1, 0),
    "aten.nll_loss_backward": _nll(2, 1),
    "aten.nll_loss2d_backward": _nll(2, 1),
    "aten.max_pool2d_with_indices_backward": _pooled,
    "aten.remainder": _divisor,
    "aten.fmod": _divisor,
    "aten.floor_divide": _divisor,
    "aten.div": _divisor,
    "aten.bitwise_left_shift": _shift,
    "aten.bitwise_right_shift": _shift,
    "aten.__lshift__": _shift,
    "aten.__rshift__": _shift,
    "aten.pow": _exponent,
    "aten.bernoulli": _bernoulli,
    "aten.binary_cross_entropy": _inside,
}

_SAME_NUMBERS = {
    "aten.clone",
    "aten.constant_pad_nd",
    "aten._to_copy",
    "prims.convert_element_type",
    "aten.copy",
    "aten.flip",
    "aten.repeat",
}


def _backwards(op: Op, out: Bound, sizes: _Sizes) -> list[tuple[Arg, Bound]]:
    """What a bound on the output of an op asks of its inputs, for the ops that programs compute indices with."""
    name = _packet(op)
    if op.is_view or name in _SAME_NUMBERS:
        return [(op.args[0], out)]
    if name in ("aten.cat", "aten.stack"):
        return [(part, out) for part in op.args[0]] if isinstance(op.args[0], tuple) else []
    if name == "aten.where":
        return [(arg, out) for arg in op.args[1:3]]
    if name in ("aten.gather", "aten.index_select", "aten.index", "aten.masked_fill", "aten.embedding"):
        return [(op.args[0], out)]
    if name in ("aten.add", "aten.sub", "aten.mul"):
        return _arithmetic(name, op, out)
    if name == "aten.cumsum":
        length = max(1, sizes.along(op.args[0], op.args[1]))
        return [(op.args[0], Bound(-(-out.low // length), out.high // length))]
    return []


def _arithmetic(name: str, op: Op, out: Bound) -> list[tuple[Arg, Bound]]:
    left, right = op.args[:2]
    if isinstance(right, (int, float)) and not isinstance(right, bool):
        if name == "aten.mul":
            ends = sorted((out.low / right, out.high / right)) if right else [out.low, out.high]
            return [(left, Bound(-(-ends[0] // 1), ends[1] // 1))]
        shift = right if name == "aten.sub" else -right
        return [(left, Bound(out.low + shift, out.high + shift))]
    if name == "aten.add":  # half for each: their sum stays within
        return [(arg, Bound(-(-out.low // 2), out.high // 2)) for arg in (left, right)]
    return [(arg, Bound(max(0, out.low), max(0, out.high**0.5 // 1))) for arg in (left, right)]
