"""What the solver sees of a graph: who waits for whom, and which ops are cheap enough to be computed again.

A Frame is a few dozen ops of one island, numbered in the order of the graph, so that a set of them is an int.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fuseplan.graph import Graph, Op, Ref, TensorType
from fuseplan.segment import order_edges, recomputable

_ELEMENTWISE = frozenset(
    "_to_copy abs add bitwise_not ceil clamp clamp_max clamp_min clone convert_element_type cos div eq erf exp exp2 "
    "floor ge gt hardswish hardtanh le leaky_relu log logical_not lt masked_fill mul ne neg pow reciprocal relu round "
    "rsqrt rsub sigmoid sign silu sin sqrt square sub tanh trunc where".split()
)
_FACTORIES = frozenset("arange full ones scalar_tensor zeros".split())


def is_cheap(graph: Graph, op: Op) -> bool:
    """Whether computing `op` again costs next to nothing inside a kernel: a view, a cast, one operand, or none.

    >>> is_cheap(Graph((), (), ()), Op("aten.full.default", ((8,), 0.0), (), ()))
    True
    """
    name = op.target.partition(".")[2].partition(".")[0]
    if op.is_view or name in _FACTORIES:
        return True
    return name in _ELEMENTWISE and sum(isinstance(graph.types[read], TensorType) for read in op.reads) == 1


@dataclass(frozen=True)
class Links:
    """One graph, op by op: from whom it reads, whom it waits for, who reads it, and whether it may run again."""

    reads: tuple[tuple[int, ...], ...]
    before: tuple[tuple[int, ...], ...]
    users: tuple[tuple[int, ...], ...]
    kept: frozenset[int]
    """The ops that make outputs of the graph."""
    again: tuple[bool, ...]

    @staticmethod
    def of(graph: Graph) -> Links:
        """Read them off the graph."""
        producer = graph.producer
        reads = [{producer[name] for name in op.reads if name in producer} for op in graph.ops]
        before = [set(found) for found in reads]
        users: list[list[int]] = [[] for _ in graph.ops]
        for i, found in enumerate(reads):
            for read in found:
                users[read].append(i)
        ordered = set[int]()
        for first, later in order_edges(graph):
            before[later].add(first)
            ordered.update((first, later))
        kept = {producer[arg.name] for arg in graph.outputs if isinstance(arg, Ref) and arg.name in producer}
        allowed = recomputable(graph)
        # What is tied to the order of writes could run again as a view, but where to is not for the solver to work out.
        again = [allowed[i] and i not in ordered and is_cheap(graph, op) for i, op in enumerate(graph.ops)]
        return Links(
            tuple(tuple(sorted(found)) for found in reads),
            tuple(tuple(sorted(found)) for found in before),
            tuple(tuple(found) for found in users),
            frozenset(kept),
            tuple(again),
        )


@dataclass(frozen=True)
class Frame:
    """Some ops of an island as sets: op i is bit i, and everything that the ops wait for outside is done already."""

    ops: tuple[int, ...]
    reads: tuple[int, ...]
    before: tuple[int, ...]
    users: tuple[int, ...]
    above: tuple[int, ...]
    """All ops that op i waits for, however indirectly."""
    below: tuple[int, ...]
    """All ops that wait for op i."""
    again: int
    """The ops that may be computed again in the regions that read them."""
    needed: int
    """The ops that somebody outside the island reads, or the graph gives out."""
    later: int
    """The ops that others of the island read, who are not in the frame."""
    done: int = 0
    """The ops that need not run any more: others have computed them again, and so must whoever reads them here."""
    whole: bool = True
    """Whether the frame is all of its island."""

    @staticmethod
    def of(links: Links, ops: Sequence[int], island: frozenset[int], done: frozenset[int] = frozenset()) -> Frame:
        """The frame of `ops`, which are sorted and of `island`."""
        bit = {op: 1 << i for i, op in enumerate(ops)}

        def mask(found: Iterable[int]) -> int:
            return sum(bit[op] for op in found if op in bit)

        def some(test: Iterable[bool]) -> int:
            return sum(1 << i for i, true in enumerate(test) if true)

        before = tuple(mask(links.before[op]) for op in ops)
        above = [0] * len(ops)
        for i, direct in enumerate(before):
            for j in bits(direct):
                above[i] |= above[j] | 1 << j
        below = [0] * len(ops)
        for i in range(len(ops)):
            for j in bits(above[i]):
                below[j] |= 1 << i
        return Frame(
            tuple(ops),
            tuple(mask(links.reads[op]) for op in ops),
            before,
            tuple(mask(links.users[op]) for op in ops),
            tuple(above),
            tuple(below),
            again=some(_worth_it(links, op, island) for op in ops),
            needed=some(op in links.kept or not island.issuperset(links.users[op]) for op in ops),
            later=some(any(u in island and u not in bit and u > ops[-1] for u in links.users[op]) for op in ops),
            done=some(op in done for op in ops),
            whole=len(ops) == len(island),
        )

    def names(self, mask: int) -> tuple[int, ...]:
        """The positions in the graph of a set of ops."""
        ops = self.ops
        return tuple([ops[i] for i in bits(mask)])


def _worth_it(links: Links, op: int, island: frozenset[int]) -> bool:
    """Whether an op is one to compute again: cheap, and read more than once."""
    users = links.users[op]
    elsewhere = op in links.kept or not island.issuperset(users)
    return links.again[op] and not island.isdisjoint(users) and (elsewhere or len(users) > 1)


def bits(mask: int) -> list[int]:
    """The members of a set, in order.

    >>> bits(0b1010)
    [1, 3]
    """
    found: list[int] = []
    if mask & mask + (mask & -mask) == 0:  # without gaps, as most regions are
        return [*range((mask & -mask).bit_length() - 1, mask.bit_length())] if mask else found
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found
