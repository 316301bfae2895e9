"""What queries, keys and values of a site are made of: those that a program repeats by hand, and copies that only lay them out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fuseplan.rewrites.attention.device import plain
from fuseplan.rewrites.attention.layouts import without_repeats
from fuseplan.rewrites.base import Draft
from fuseplan.rewrites.reading import between, changes_rules
from fuseplan.rewrites.writes import written_after
from fuseplan.segment.masks import UnprovenError

_SAME_ORDER = frozenset(
    {"reshape", "view", "flatten", "unflatten", "contiguous", "clone", torch.reshape, torch.flatten}
)
"""What leaves the elements in the order of their indices."""
_EXPANDING = frozenset({"expand", "expand_as", "broadcast_to", torch.broadcast_to})
_REPEATING = frozenset({"repeat_interleave", torch.repeat_interleave})
_COPYING = frozenset({"contiguous", "clone", torch.clone})


@dataclass(frozen=True)
class Source:
    """What is given to attention instead of what the program gives it."""

    node: Node
    fake: FakeTensor
    instead_of: tuple[Node, ...]
    """What the program makes of it for attention."""
    expanded: bool = False
    """Whether it still has a dimension of size one, along which the program expands it."""

    def write(self, draft: Draft, before: Node) -> Node:
        """It as a node of a draft."""
        copied = draft.copies[self.node]
        if not self.expanded:
            return copied
        with draft.graph.inserting_before(before):
            found = draft.graph.call_function(without_repeats, (copied,))
        found.meta["example_value"] = self.fake
        return found


def before_repeats(given: Node, result: Node) -> Source:
    """The keys or values that a program repeats for each head of a group: expanded and made one dimension with the heads, or
    by repeat_interleave. UnprovenError if it does not, or if `result`, which is of them, could not do without.
    """
    node, whole, passed = given, fake(given), [given]
    while node.target in _SAME_ORDER and isinstance(node.args[0], Node):
        node = node.args[0]
        passed.append(node)
    source = node.args[0] if node.args and isinstance(node.args[0], Node) else None
    if source is None or whole.dim() != 4:
        raise UnprovenError("its keys and values are not repeated for each head of a group")
    if node.target in _EXPANDING:
        _check_expanded(fake(source), fake(node), whole)
        with whole.fake_mode:
            found = Source(source, plain(without_repeats(fake(source))), tuple(passed), expanded=True)
    elif node.target in _REPEATING and node is given:
        _check_interleaved(node)
        found = Source(source, fake(source), (given,))
    else:
        raise UnprovenError("its keys and values are not repeated for each head of a group")
    if found.fake.dtype != whole.dtype:
        raise UnprovenError("its keys and values have another dtype before they are repeated")
    if written_after((source, *passed)):
        raise UnprovenError("what it repeats, or has repeated, may be written to")
    if any(map(changes_rules, between(found.instead_of[-1], result))):
        raise UnprovenError("its keys and values are repeated under other rules of computing")
    return found


def _check_expanded(source: FakeTensor, expanded: FakeTensor, whole: FakeTensor) -> None:
    """Dimension 2, behind that of the groups, from one to as many as a group has heads; then these two as one."""
    same = (
        source.dim() == expanded.dim() == 5
        and statically_known_true(source.shape[2] == 1)
        and _equal(source.shape[:2], expanded.shape[:2])
        and _equal(source.shape[3:], expanded.shape[3:])
        and _equal((whole.shape[0], *whole.shape[2:]), (expanded.shape[0], *expanded.shape[3:]))
    )
    if not same:
        raise UnprovenError("it is expanded in another way than heads of a group are")


def _check_interleaved(node: Node) -> None:
    given = dict(zip(("input", "repeats", "dim"), node.args, strict=False)) | node.kwargs
    if fake(node.args[0]).dim() != 4 or given.get("dim") not in (1, -3) or type(given.get("repeats")) is not int:
        raise UnprovenError("it is repeated in another way than heads of a group are")


def _equal(left: Collection[Any], right: Collection[Any]) -> bool:
    return all(statically_known_true(one == other) for one, other in zip(left, right, strict=True))


def is_narrower(mask: Sequence[Any], scores: Sequence[Any]) -> bool:
    """Whether a mask of such sizes is broadcast to scores of others, and not the other way round."""
    pairs = zip(mask[::-1], scores[::-1], strict=False)
    return len(mask) <= len(scores) and all(
        (isinstance(size, int) and size == 1) or statically_known_true(size == other) for size, other in pairs
    )


def before_copy(given: Node, readers: Collection[Node], result: Node) -> Source | None:
    """What a query, key or value is a copy of that only lays it out, for these readers, under the rules of `result`; None if it is none."""
    if given.target not in _COPYING or not set(given.users) <= set(readers) or not isinstance(given.args[0], Node):
        return None
    source = given.args[0]
    if fake(source).stride() == fake(given).stride() or written_after((source,), given):
        return None
    if any(map(changes_rules, between(given, result))):
        return None
    return Source(source, fake(source), (given,))


def fake(node: Any) -> FakeTensor:
    """What is known of a node of a Dynamo graph."""
    return plain(node.meta.get("example_value") if isinstance(node, Node) else None)
