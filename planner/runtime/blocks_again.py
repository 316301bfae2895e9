"""A forward that the backward computes again block by block: what stands between two blocks is kept, and of each block what is inside
only while its own backward runs. As activation checkpointing around layers, wherever a program is narrow, whoever has written it.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
ALIKE = 1.02
"""Choices of cuts that take so many times the least are as good: the one with the smallest blocks is taken."""
BESIDE = 1.25
"""What a block takes while it is computed again, over what is inside it: gradients stand beside that."""
_AGAIN, _KEPT = CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.MUST_SAVE


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
    """Mark what the backward is to compute again, as torch marks what `checkpoint` is around, and what it may not; returns how many
    blocks there are.

    The last block is not among them: its backward comes at once. Nor is one that does some of the backward's work ahead: that would be
    done again for what it was to save.
    """
    if any("recompute" in node.meta for node in graph.nodes):
        return 0  # the program says itself what is computed again
    forward = _Forward.of(graph)
    if forward is None:
        return 0
    cuts = best_cuts(forward.between, forward.inside)
    for number, (begin, end) in enumerate(zip((0, *cuts), cuts, strict=False)):
        if not forward.ahead.isdisjoint(forward.nodes[begin:end]):
            continue
        for node in forward.nodes[begin:end]:
            if node.target is operator.getitem:
                continue
            parts = [user for user in node.users if user.target is operator.getitem]
            if _may_be_repeated(node) and forward.given.isdisjoint((node, *parts)):
                for one in (node, *parts):  # of several results none is kept by itself, nor all of them as one
                    one.meta["recompute"], one.meta["ac_graph_id"] = _AGAIN, number
    for node in forward.standing_at(cuts):
        _keep(node)
    return len(cuts)


def _keep(node: Node) -> None:
    """See to it that the forward's value is what the backward reads: it would else begin further back than where a block does."""
    if node.target is operator.getitem:  # torch looks at what gives several results
        node = node.all_input_nodes[0]
        for one in node.users:
            one.meta.pop("recompute", None)
    node.meta["recompute"] = _KEPT


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
    ahead: frozenset[Node]
    """What it makes for the backward alone, such as gradients that a loss takes as soon as it can."""
    stands: Mapping[Node, tuple[int, int]]
    """From where to where each value is of use, of those that hold memory of their own."""

    def standing_at(self, cuts: Sequence[int]) -> frozenset[Node]:
        """What is made before one of the cuts, and read after it."""
        following = ((node, last, bisect_right(cuts, made)) for node, (made, last) in self.stands.items())
        return frozenset(node for node, last, number in following if number < len(cuts) and cuts[number] <= last)

    @staticmethod
    def of(graph: Graph) -> _Forward | None:
        """Of a graph for training; None of any other."""
        following = _reached((node for node in graph.nodes if _is_tangent(node)), lambda node: node.users)
        given = frozenset(graph.output_node().all_input_nodes) - following
        if not following:
            return None
        before = _reached(given, lambda node: node.all_input_nodes)
        calls = [node for node in graph.nodes if node.op == "call_function" and node not in following]
        # A backward may begin with what does not hang on its tangents, such as the slope of an activation: it comes after all of these.
        nodes = calls[: max((place for place, node in enumerate(calls, 1) if node in before), default=0)]
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
        stands = {root: (places[root], end) for root, end in last.items() if root in places and _bytes(root)}
        for root, (made, end) in stands.items():
            changes[made] += _bytes(root)
            changes[end] -= _bytes(root)
        inside = [_bytes(node) if node in read else 0 for node in nodes]
        ahead = (one for one in nodes if one not in before and one.target is not operator.getitem and roots[one] is one)
        return _Forward(nodes, list(accumulate(changes[:-1])), inside, given, frozenset(ahead), stands)


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
    costs = [_cost(between, inside, cuts) for cuts in tried]
    least = min(costs, default=whole)
    if least > WORTH * whole:
        return []
    alike = [cuts for cuts, cost in zip(tried, costs, strict=True) if cost <= ALIKE * least]
    return min(alike, key=lambda cuts: _cost(between, inside[: cuts[-1]], cuts[:-1]) if cuts else whole)


def _cuts(between: Sequence[int], inside: Sequence[int], most: int) -> Iterator[int]:
    """Cuts where it is the narrowest, such that no block takes more that can be cut; none at which more stands than that."""
    begin, narrowest, held = 0, 0, 0
    place = 0
    while place < len(inside):
        held += inside[place]
        if held > most and narrowest > begin:
            if between[narrowest - 1] <= most:
                yield narrowest
            begin = place = narrowest
            held = 0
            continue
        place += 1
        if narrowest <= begin or between[place - 1] <= between[narrowest - 1]:
            narrowest = place


def _cost(between: Sequence[int], inside: Sequence[int], cuts: Sequence[int]) -> float:
    *again, last = (sum(inside[begin:end]) for begin, end in zip((0, *cuts), (*cuts, len(inside)), strict=True))
    return sum(between[cut - 1] for cut in cuts) + max(last, BESIDE * max(again, default=0))


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
