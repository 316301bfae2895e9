"""A forward that the backward computes again block by block: what stands between two blocks is kept, and of each block what is inside
only while its own backward runs. As activation checkpointing around layers, wherever a program is narrow, whoever has written it.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node
from torch.fx.node import map_arg
from torch.utils.checkpoint import CheckpointPolicy

TRIED = 24
"""So many sizes of blocks are tried."""
WORTH = 0.8
"""What blocks leave of the memory, at most: else the forward stays as it is."""
ALIKE = 1.02
"""Choices of cuts that take so many times the least are as good: the one with the smallest blocks is taken."""
BESIDE = 1.25
"""What a block takes while it is computed again, over what is inside it: gradients stand beside that."""
_PRODUCTS = frozenset("mm addmm bmm baddbmm mv addmv dot convolution".split())
_AGAIN, _KEPT = CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.MUST_SAVE


class Blocks(CustomGraphPass):
    """The pass over forward and backward in one graph, before torch cuts it in two; after a pass of the caller's own, if there is one."""

    def __init__(self, before: Callable[[Graph], None] | None = None) -> None:
        self.before = before

    def __call__(self, graph: Graph) -> None:
        if self.before is not None:
            self.before(graph)
        self.mark(graph)

    def mark(self, graph: Graph) -> None:
        """Say what is computed again, and what is not."""
        mark_blocks(graph)

    def uuid(self) -> Any:
        """What torch's caches know it by: nothing, and so nothing is kept, where the caller's pass has no name."""
        own = get_hash_for_files((__file__,)), type(self).__name__
        if self.before is None:
            return own
        before = self.before.uuid() if isinstance(self.before, CustomGraphPass) else None
        return None if before is None else (own, before)


class KeptDraws(Blocks):
    """The pass under which nothing is drawn again, where torch's cut saves less than it would: it takes the seeds of random numbers for
    something that may be computed again, and what the backward then has for a dropout is another one.
    """

    def mark(self, graph: Graph) -> None:
        """Keep what is drawn, unless the program says itself what becomes of it. Of several results torch can't keep all as one."""
        for node in graph.nodes:
            is_drawn = (
                isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags
            )
            if is_drawn and isinstance(node.meta.get("val"), torch.Tensor):
                node.meta.setdefault("recompute", _KEPT)


def mark_blocks(graph: Graph) -> int:
    """Mark what the backward is to compute again, as torch marks what `checkpoint` is around, and what it may not; returns how many
    blocks are marked.

    The last block is not among them: its backward comes at once. Nor is one that does some of the backward's work ahead: that would be
    done again for what it was to save.
    """
    if any("recompute" in node.meta for node in graph.nodes):
        return 0  # the program says itself what is computed again
    forward = _Forward.of(graph)
    if forward is None:
        return 0
    cuts = best_cuts(forward.between, forward.inside, forward.fixed)
    marked = set[int]()
    for number, (begin, end) in enumerate(zip((0, *cuts), cuts, strict=False)):
        if not forward.ahead.isdisjoint(forward.nodes[begin:end]):
            continue
        for node in forward.nodes[begin:end]:
            if node in forward.repeatable:
                marked.add(number)
                for one in (node, *_parts(node)):  # of several results none is kept by itself, nor all of them as one
                    one.meta["recompute"], one.meta["ac_graph_id"] = _AGAIN, number
    for node in (*forward.standing_at(cuts), *(forward.before_it_is_written if marked else ())):
        _keep(node)
    return len(marked)


def _keep(node: Node) -> None:
    """See to it that the forward's value is what the backward reads: it would else begin further back than where a block does."""
    node = _maker(node)  # torch looks at what gives several results
    for one in _parts(node):
        one.meta.pop("recompute", None)
    node.meta["recompute"] = _KEPT


@dataclass(frozen=True)
class _Forward:
    """The forward of a graph of both, in its order."""

    nodes: Sequence[Node]
    read: frozenset[Node]
    """Of which the backward reads something, be it a view."""
    repeatable: frozenset[Node]
    """What may be computed again: it gives the same, and costs no more than its time."""
    ahead: frozenset[Node]
    """What it does for the backward alone and takes time, such as the products in the gradients that a loss takes as soon as it can."""
    before_it_is_written: frozenset[Node]
    """What reads an input that the program writes to: later, something else would stand there."""
    stands: Mapping[Node, tuple[int, int]]
    """From where to where each value is of use, of those that hold memory of their own."""

    @property
    def inside(self) -> Sequence[int]:
        """The bytes of each node that the backward reads, and that could be computed again."""
        return [_bytes(node) if node in self.read and _maker(node) in self.repeatable else 0 for node in self.nodes]

    @property
    def fixed(self) -> int:
        """The bytes that the backward reads, and that are kept in any case."""
        return sum(_bytes(node) for node in self.nodes if node in self.read and _maker(node) not in self.repeatable)

    @property
    def between(self) -> Sequence[int]:
        """The bytes that stand between each node and the next: made before, read after."""
        changes = [0] * (len(self.nodes) + 1)
        for node, (made, last) in self.stands.items():
            changes[made] += _bytes(node)
            changes[last] -= _bytes(node)
        return list(accumulate(changes[:-1]))

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
        needed = _reached(given, lambda node: node.all_input_nodes)
        calls = [node for node in graph.nodes if node.op == "call_function" and node not in following]
        # A backward may begin with what does not hang on its tangents, such as the slope of an activation: it comes after all of these.
        nodes = calls[: max((place for place, node in enumerate(calls, 1) if node in needed), default=0)]
        roots = {node: _root(node) for node in nodes}
        written = frozenset(map(_root, _written_to(graph)))
        readers = frozenset(
            roots[node]
            for node in nodes
            if roots[node] is node and not written.isdisjoint(map(_root, node.all_input_nodes))
        )
        effects = (node for node in calls if not node.users)
        ahead = set(nodes) - _reached([*given, *effects], lambda node: node.all_input_nodes)
        read, stands = _lives(nodes, roots)
        return _Forward(
            nodes,
            read,
            frozenset(node for node in _repeatable(nodes, given) if node not in readers),
            frozenset(node for node in ahead if _takes_time(node)),
            readers,
            stands,
        )


def _lives(nodes: Sequence[Node], roots: Mapping[Node, Node]) -> tuple[frozenset[Node], dict[Node, tuple[int, int]]]:
    """What of a forward the backward reads, and from where to where its values are of use. What gives several results has them at once."""
    places = {node: place for place, node in enumerate(nodes)}
    last, read = dict[Node, int](), set[Node]()
    for node in nodes:
        for user in node.users:
            if user in places:
                last[roots[node]] = max(last.get(roots[node], 0), places[user])
            elif user.op == "call_function":
                read.add(roots[node])
    stands = {root: (places.get(_maker(root), 0), end) for root, end in last.items() if root in places and _bytes(root)}
    return frozenset(read), stands


def _repeatable(nodes: Sequence[Node], given: frozenset[Node]) -> Iterator[Node]:
    """What may be computed again, each with its parts if it gives several results. Of such that are alike torch makes one, whichever were
    marked: they are left as they are.
    """
    alike = _alike(nodes)
    times = Counter(alike.values())
    for node in nodes:
        parts = _parts(node)
        if _may_be_repeated(node) and given.isdisjoint((node, *parts)) and (not parts or times[alike[node]] == 1):
            yield node


def _alike(nodes: Sequence[Node]) -> Mapping[Node, int]:
    """A number for each call, the same for those of one op on the same values."""
    numbers, known = dict[Node, int](), dict[str, int]()
    for node in nodes:
        given = map_arg((node.args, node.kwargs), lambda one: f"%{numbers[one]}" if one in numbers else one)
        numbers[node] = known.setdefault(f"{node.target} {given}", len(known))
    return numbers


def best_cuts(between: Sequence[int], inside: Sequence[int], fixed: int = 0) -> Sequence[int]:
    """Behind how many nodes to cut, so that what stands between the blocks and the largest of them take the least together. None where
    that saves too little, beside what is kept in any case.

    >>> best_cuts([9, 9, 1, 9, 9, 1, 9, 9], [8, 8, 1, 8, 8, 1, 8, 8])
    [3, 6]
    >>> best_cuts([9, 9, 9, 9], [1, 1, 1, 1])
    []
    """
    held = list(accumulate(inside, initial=0))
    sizes = sorted({int(held[-1] * share**2 / TRIED**2) for share in range(1, TRIED)})
    tried = [list(_cuts(between, held, size)) for size in sizes]
    costs = [_cost(between, held, cuts) for cuts in tried]
    least = min(costs, default=held[-1])
    if fixed + least > WORTH * (fixed + held[-1]):
        return []
    alike = [cuts for cuts, cost in zip(tried, costs, strict=True) if cost <= ALIKE * least]
    return min(alike, key=lambda cuts: _cost(between, held[: cuts[-1] + 1], cuts[:-1]) if cuts else held[-1])


def _cuts(between: Sequence[int], held: Sequence[int], most: int) -> Iterator[int]:
    """Cuts where it is the narrowest, such that no block takes more that can be cut; none at which more stands than that."""
    begin = end = 0
    narrowest = deque[int]()
    """Where a cut may come, the narrowest first; behind each those that are narrower than all that follow."""
    while True:
        while end < len(between) and (end == begin or held[end + 1] - held[begin] <= most):
            end += 1
            while narrowest and between[narrowest[-1] - 1] >= between[end - 1]:
                narrowest.pop()
            narrowest.append(end)
        if end == len(between):
            return
        while narrowest[0] <= begin:
            narrowest.popleft()
        begin = narrowest[0]
        if between[begin - 1] <= most:
            yield begin


def _cost(between: Sequence[int], held: Sequence[int], cuts: Sequence[int]) -> float:
    *again, last = (held[end] - held[begin] for begin, end in zip((0, *cuts), (*cuts, len(held) - 1), strict=True))
    return sum(between[cut - 1] for cut in cuts) + max(last, BESIDE * max(again, default=0))


def _may_be_repeated(node: Node) -> bool:
    """Whether an op gives the same again, and costs no more than its time: none that draws numbers, writes, or is of somebody's own."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in ("aten", "prims"):
        return False
    return not target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags


def _takes_time(node: Node) -> bool:
    """Whether it is more than a pass over memory: a product, or an op of somebody's own."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return isinstance(target, torch._ops.HigherOrderOperator)
    return target.namespace not in ("aten", "prims") or target.overloadpacket.__name__ in _PRODUCTS


def _maker(node: Node) -> Node:
    """The call that gives a value, be it with others."""
    return node.all_input_nodes[0] if node.target is operator.getitem else node


def _parts(node: Node) -> list[Node]:
    """What is taken out of a call that gives several results."""
    return [user for user in node.users if user.target is operator.getitem]


def _written_to(graph: Graph) -> Iterator[Node]:
    """The values that a graph writes to: inputs, at its end."""
    for node in graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            arguments = node.target._schema.arguments
            named = ((argument, node.kwargs.get(argument.name)) for argument in arguments)
            for argument, value in (*zip(arguments, node.args, strict=False), *named):
                if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, Node):
                    yield value


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
