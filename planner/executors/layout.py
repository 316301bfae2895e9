"""How the outputs of a region lie in memory, and which of them share it with something else."""

from __future__ import annotations

from collections.abc import Sequence

from fuseplan.capture.fx.to_fx import SizeSpace
from fuseplan.graph import Graph, Ref, TensorType
from fuseplan.segment.order import storages

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


def shared_outputs(region: Graph) -> frozenset[str]:
    """The outputs that are views of an input, of a constant or of what stands behind another output.

    A view of what the region makes and keeps to itself is none of these: nobody can tell it from a tensor of its own.
    """
    storage = storages(region)
    made = set(region.producer)
    names = list(dict.fromkeys(arg.name for arg in region.outputs if isinstance(arg, Ref)))
    behind = [storage[name] for name in names]
    return frozenset(
        name
        for name, root in zip(names, behind, strict=True)
        if name in made and name != root and (root not in made or behind.count(root) > 1)
    )
