"""The result of attention as the program reads it: kernels lay it out differently, and not everything can read it so."""

from __future__ import annotations

from torch.fx import Node

from fuseplan.rewrites.attention.inputs import fake
from fuseplan.rewrites.order import is_dense
from fuseplan.rewrites.reading import name_of
from fuseplan.rewrites.writes import memory, written_by

_MIND_LAYOUT = frozenset({"view", "view_as", "as_strided", "is_contiguous", "stride", "data_ptr"})
_LAY_OUT_ANEW = frozenset({"reshape", "contiguous", "flatten", "matmul", "bmm", "mm", "einsum", "linear"})
"""What takes any layout, and gives one of its own."""
_PERHAPS_VIEWS = frozenset({"reshape", "reshape_as", "contiguous", "flatten", "ravel"})
"""What gives a view where the layout allows it, and else a copy."""
ORDERS = ((0, 1, 2, 3), (0, 2, 1, 3))
"""Of the dimensions in memory, the outermost first: as matmuls give it, and as fused kernels do."""


def order_that_matters(result: Node) -> tuple[int, ...] | None:
    """The order in memory in which a result lies as the program is written, where something may hang on it; None where nothing
    does, or where it is in no order that attention gives.
    """
    value = fake(result)
    if not _matters(result) and not is_written_through(result, value.requires_grad):
        return None
    if value.dim() != 4:
        return None
    return next((order for order in ORDERS if is_dense(value.permute(order))), None)


def _matters(result: Node) -> bool:
    """Whether what reads the result, or what has been made of it and may lie as it does, minds how it lies."""
    waiting, seen = [result], {result}
    while waiting:
        node = waiting.pop()
        for user in node.users:
            if name_of(user) in _MIND_LAYOUT or (user.op == "output" and node is result):
                return True
            if name_of(user) not in _LAY_OUT_ANEW and user not in seen and user.op in ("call_function", "call_method"):
                seen.add(user)
                waiting.append(user)
    return False


def is_written_through(result: Node, is_kept: bool) -> bool:
    """Whether how a result lies says what it shares memory with, and that shows: something is written to it, or to what is a view or a
    copy of it by how it lies, or both leave the program. What one alone reads nobody else sees; but what `is_kept` for a backward
    must not be written to.
    """
    seen = result
    while len(seen.users) == 1 and _shares(seen, user := next(iter(seen.users))):
        seen = user
    perhaps, written, left = _around(seen)
    if is_kept:
        perhaps_kept, written_to, _ = _around(result)
        return (perhaps and left > 1) or (perhaps_kept and written_to)
    return perhaps and (written or left > 1)


def _around(start: Node) -> tuple[bool, bool, int]:
    """Of all that shares memory with a value, or may: whether it may, whether it is written to, and how many leave the program."""
    waiting, seen = [start], {start}
    perhaps, written, left = False, False, 0
    while waiting:
        node = waiting.pop()
        for user in node.users:
            perhaps, written = perhaps or name_of(user) in _PERHAPS_VIEWS, written or node in written_by(user)
            left += user.op == "output"
            if user.op != "output" and user not in seen and _shares(node, user):
                seen.add(user)
                waiting.append(user)
    return perhaps, written, left


def _shares(node: Node, user: Node) -> bool:
    """Whether what is made of a value shares its memory, or may by how that lies."""
    return name_of(user) in _PERHAPS_VIEWS or bool(memory(user) & memory(node))
