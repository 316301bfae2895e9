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
_PERHAPS_VIEWS = frozenset({"reshape", "contiguous", "flatten"})
"""What gives a view where the layout allows it, and else a copy."""
ORDERS = ((0, 1, 2, 3), (0, 2, 1, 3))
"""Of the dimensions in memory, the outermost first: as matmuls give it, and as fused kernels do."""


def order_that_matters(result: Node) -> tuple[int, ...] | None:
    """The order in memory in which a result lies as the program is written, where something may hang on it; None where nothing
    does, or where it is in no order that attention gives.
    """
    if not _matters(result) and not is_written_through(result):
        return None
    value = fake(result)
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


def is_written_through(result: Node) -> bool:
    """Whether something is written to a result, or to what is a view of it or a copy by how it lies, or both leave the program: then
    it has to lie as the program has it.
    """
    waiting, seen = [result], {result}
    perhaps, written, left = False, False, set[Node]()
    while waiting:
        node = waiting.pop()
        for user in node.users:
            views = name_of(user) in _PERHAPS_VIEWS
            perhaps, written = perhaps or views, written or node in written_by(user)
            if user.op == "output":
                left.add(node)
            elif user not in seen and (views or memory(user) & memory(node)):
                seen.add(user)
                waiting.append(user)
    return perhaps and (written or len(left) > 1)
