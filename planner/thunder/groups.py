"""What a Thunder trace consists of, for a fusion pass: groups of ops in their order, and what may be said of an op without measuring."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from thunder.core import prims
from thunder.core.proxies import Proxy
from thunder.core.symbol import BoundSymbol, BoundSymbolTag, has_tags

_STAYS = (prims.OpTags.IN_PLACE, prims.OpTags.RANDOM_OP, prims.OpTags.DEVICE_SYNC_OP, prims.OpTags.DONT_DCE)
"""Ops that have to run where they stand."""
_WRITES = (prims.PrimIDs.COPY_, prims.PrimIDs.UPDATE_ALIASES)


@dataclass(frozen=True)
class OpGroup:
    """Ops of a trace that stand together; fusible ones may become a region."""

    ops: tuple[BoundSymbol, ...]
    fusible: bool
    measured: bool = False
    """Whether it is a region by itself because that was measured: nobody may move its op into another."""

    @property
    def lone(self) -> bool:
        """Whether it is a single op that may become a region."""
        return self.fusible and len(self.ops) == 1

    @property
    def views(self) -> bool:
        """Whether nothing in it computes: a view of a tensor costs no kernel."""
        return all(is_view(op) for op in self.ops)


def is_view(op: BoundSymbol) -> bool:
    """Whether an op only looks at its tensor in another way, as Thunder's primitives are marked: all that it is made of, too."""
    if op.subsymbols:
        return all(is_view(each) for each in op.subsymbols)
    return bool(has_tags(op, {prims.OpTags.SHAPE_OP}))


def is_backward(op: BoundSymbol) -> bool:
    """Whether it is an op of the backward."""
    return BoundSymbolTag.BACKWARD in op.tags


def stays(op: BoundSymbol) -> bool:
    """Whether an op has to run where it stands: it writes, draws random numbers, or waits for the device."""
    return op.sym.id in _WRITES or bool(has_tags(op, set(_STAYS))) or any(stays(each) for each in op.subsymbols)


def writes(op: BoundSymbol) -> bool:
    """Whether an op changes a tensor that others may read."""
    marked = op.sym.id in _WRITES or bool(has_tags(op, {prims.OpTags.IN_PLACE}))
    return marked or any(writes(each) for each in op.subsymbols)


def made_by(ops: Iterable[BoundSymbol]) -> set[str]:
    """The names of what ops give out."""
    return {out.name for op in ops for out in op.flat_outs if isinstance(out, Proxy)}


def read_by(ops: Iterable[BoundSymbol]) -> set[str]:
    """The names of what ops are given."""
    return {arg.name for op in ops for arg in op.flat_args if isinstance(arg, Proxy)}


def region_before(groups: Sequence[OpGroup], at: int) -> int | None:
    """The region before a lone op that may take it: nothing that stands between them may change what the op is given."""
    (op,) = groups[at].ops
    for i in range(at - 1, -1, -1):
        if _takes(groups[i], op):
            return i
        if read_by([op]) & made_by(groups[i].ops) or any(map(writes, groups[i].ops)):
            return None
    return None


def region_after(groups: Sequence[OpGroup], at: int) -> int | None:
    """The region after a lone op that may take it: nothing that stands between them may read what the op gives."""
    (op,) = groups[at].ops
    for i in range(at + 1, len(groups)):
        if _takes(groups[i], op):
            return i
        if made_by([op]) & read_by(groups[i].ops) or any(map(writes, groups[i].ops)):
            return None
    return None


def _takes(group: OpGroup, op: BoundSymbol) -> bool:
    """Whether this is a region that computes, of the same pass as the op."""
    return group.fusible and not group.lone and not group.views and is_backward(group.ops[0]) == is_backward(op)
