"""A forward that the backward computes again block by block: what stands between two blocks is kept, and of each block what is inside
only while its own backward runs. As activation checkpointing around layers, wherever a program is narrow, whoever has written it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node
from torch.utils.checkpoint import CheckpointPolicy

TRIED = 24
"""So many sizes of blocks are tried."""
WORTH = 0.8
"""What blocks leave of the memory, at most: else the forward stays as it is."""
_AGAIN = CheckpointPolicy.MUST_RECOMPUTE


class Blocks(CustomGraphPass):
    """The pass over forward and backward in one graph, before torch cuts it in two; after a pass of the caller's own, if there is one."""

    def __init__(self, before: Callable[[Graph], None] | None = None) -> None:
        self.before = before

    def __call__(self, graph: Graph) -> None:
        if self.before is not None:
            self.before(graph)
        mark_blocks(graph)

    def uuid(self) -> Any:
        """What torch's caches know it by: nothing, and so nothing is kept, where the caller's pass has no name."""
        own = get_hash_for_files((__file__,))
        if self.before is None:
            return own
        before = self.before.uuid() if isinstance(self.before, CustomGraphPass) else None
        return None if before is None else (own, before)


def mark_blocks(graph: Graph) -> int:
    """Mark what the backward is to compute again, as torch marks what `checkpoint` is around; returns how many blocks there are.

    The last block is not among them: its backward comes at once.
    """
    if any("recompute" in node.meta for node in graph.nodes):
        return 0  # the program says itself what is computed again
    forward = _Forward.of(graph)
    if forward is None:
        return 0
    cuts = best_cuts(forward.between, forward.inside)
    for number, (begin, end) in enumerate(zip((0, *cuts), cuts, strict=False)):
        for node in forward.nodes[begin:end]:
            if node.target is operator.getitem:
                continue
            parts = [user for user in node.users if user.target is operator.getitem]
            if _may_be_repeated(node) and forward.given.isdisjoint((node, *parts)):
                for one in (node, *parts):  # of several results none is kept by itself, nor all of them as one
                    one.meta["recompute"], one.meta["ac_graph_id"] = _AGAIN, number
    return len(cuts)


@dataclass(frozen=True)
class _Forward:
    """The forward of a graph of both, in its order."""

    nodes: Sequence[Node]
    between: Sequence[int]
    """The bytes that stand between each node and the next: made before, read after."""
    inside: Sequence[int]
    """The bytes of each node that the backward reads."""
    given: frozenset[Node]
    """What the caller gets."""

    @staticmethod
    def of(graph: Graph) -> _Forward | None:
        """Of a graph for training; None of any other."""
        following = _reached((node for node in graph.nodes if _is_tangent(node)), lambda node: node.users)
        given = frozenset(graph.output_node().all_input_nodes) - following
        if not following:
            return None
        # A backward may begin with what does not hang on its tangents, such as the slope of an activation.
        before = _reached(given, lambda node: node.all_input_nodes)
        nodes = [node for node in graph.nodes if node.op == "call_function" and node in before]
        places = {node: place for place, node in enumerate(nodes)}
        roots = {node: _root(node) for node in nodes}
        last, read = dict[Node, int](), set[Node]()
        for node in nodes:
            for user in node.users:
                if user in places:
                    last[roots[node]] = max(last.get(roots[node], 0), places[user])
                elif user.op == "call_function":
                    read.add(roots[node])
        changes = [0] * (len(nodes) + 1)
        for root, end in last.items():
            if root in places and (size := _bytes(root)):
                changes[places[root]] += size
                changes[end] -= size
        inside = [_bytes(node) if node in read else 0 for node in nodes]
        return _Forward(nodes, list(accumulate(changes[:-1])), inside, given)


def best_cuts(between: Sequence[int], inside: Sequence[int]) -> Sequence[int]:
    """Behind how many nodes to cut, so that what stands between the blocks and the largest of them take the least together. None where
    that saves too little.

    >>> best_cuts([9, 9, 1, 9, 9, 1, 9, 9], [8, 8, 1, 8, 8, 1, 8, 8])
    [3, 6]
    >>> best_cuts([9, 9, 9, 9], [1, 1, 1, 1])
    []
    """
    whole = sum(inside)
    sizes = sorted({int(whole * share**2 / TRIED**2) for share in range(1, TRIED)})
    tried = [list(_cuts(between, inside, size)) for size in sizes]
    cost, cuts = min(((_cost(between, inside, cuts), cuts) for cuts in tried), default=(whole, []))
    return cuts if cost <= WORTH * whole else []


def _cuts(between: Sequence[int], inside: Sequence[int], most: int) -> Iterator[int]:
    """Cuts where it is the narrowest, such that no block takes more that can be cut."""
    begin, narrowest, held = 0, 0, 0
    place = 0
    while place < len(inside):
        held += inside[place]
        if held > most and narrowest > begin:
            yield narrowest
            begin = place = narrowest
            held = 0
            continue
        place += 1
        if narrowest <= begin or between[place - 1] <= between[narrowest - 1]:
            narrowest = place


def _cost(between: Sequence[int], inside: Sequence[int], cuts: Sequence[int]) -> int:
    blocks = zip((0, *cuts), (*cuts, len(inside)), strict=True)
    return sum(between[cut - 1] for cut in cuts) + max(sum(inside[begin:end]) for begin, end in blocks)


def _may_be_repeated(node: Node) -> bool:
    """Whether an op gives the same again, and costs no more than its time: none that draws numbers, writes, or is of somebody's own."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in ("aten", "prims"):
        return False
    return not target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags


def _root(node: Node) -> Node:
    """What holds the memory of a value: of a view, what it is one of."""
    while isinstance(node.target, torch._ops.OpOverload) and _gives_view(node.target) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _gives_view(target: torch._ops.OpOverload) -> bool:
    returns = target._schema.returns
    return len(returns) == 1 and returns[0].alias_info is not None and not returns[0].alias_info.is_write


def _bytes(node: Node) -> int:
    """What its tensor takes; of several, each is one by itself."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or _root(node) is not node:
        return 0
    sizes = [size if isinstance(size, int) else size.node.hint or 1 for size in value.shape]
    return math.prod(sizes) * value.element_size()


def _is_tangent(node: Node) -> bool:
    return node.op == "placeholder" and "tangents" in str(node.target)


def _reached(first: Iterable[Node], others: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """These, and all that is reached from them."""
    found, waiting = set[Node](), list(first)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(others(node))
    return found
