"""How the outputs of a region must lie in memory, and which of them a fusion cannot give."""

from __future__ import annotations

from collections.abc import Sequence

from fuseplan.capture.to_fx import SizeSpace
from fuseplan.graph import Graph, Ref, TensorType

_SIZES_OF_SYMBOLS = (1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049, 1051, 1061)
"""Primes that stand in for symbols, so that strides that hold for them hold for (nearly) all sizes."""


def concrete(region: Graph, kind: TensorType) -> tuple[list[int], list[int]]:
    """Shape and stride with primes in place of symbols."""
    names = [symbol.name for symbol in region.symbols]
    space = SizeSpace({name: _SIZES_OF_SYMBOLS[i % len(_SIZES_OF_SYMBOLS)] for i, name in enumerate(names)})
    return [int(space(d)) for d in kind.shape], [int(space(d)) for d in kind.stride]


def dense_order(shape: Sequence[int], stride: Sequence[int]) -> list[int] | None:
    """The dimensions from outermost to innermost, if the tensor fills its memory without gap or overlap.

    >>> dense_order([2, 3, 4], [12, 1, 3])
    [0, 2, 1]
    >>> dense_order([2, 3], [0, 1]) is None
    True
    """
    order = sorted(range(len(shape)), key=lambda d: (-stride[d], shape[d] != 1))
    expected = 1
    for dim in reversed(order):
        if shape[dim] != 1 and stride[dim] != expected:
            return None
        expected *= shape[dim]
    return order


def refusal(region: Graph) -> str | None:
    """Why a fusion cannot give the outputs that the region declares; None if it can."""
    handed_back = {value.name for value in region.inputs} | {op.outputs[0].name for op in region.ops if op.mutates}
    views = {op.outputs[alias.output].name for op in region.ops if not op.mutates for alias in op.aliases}
    for arg in region.outputs:
        if not isinstance(arg, Ref) or arg.name in handed_back:
            continue
        kind = region.types[arg.name]
        if not isinstance(kind, TensorType):
            return f"output {arg.name} is no tensor"
        if arg.name in views:
            return f"output {arg.name} is a view"
        if dense_order(*concrete(region, kind)) is None:
            return f"output {arg.name} has gaps or overlaps in memory"
    return None
