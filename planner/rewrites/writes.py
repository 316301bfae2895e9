"""What is written where in a Dynamo graph: calls between which something is written to what they read cannot be made one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch.fx import Graph, Node

from fuseplan.rewrites.attention.mask_source import written_by
from fuseplan.rewrites.special import example, memory_of


@dataclass(frozen=True)
class Writes:
    """The places of a graph's nodes, and what is written at some of them."""

    places: Mapping[Node, int]
    written: Sequence[tuple[int, set[int]]]
    """By place, what memory."""

    @staticmethod
    def of(graph: Graph) -> Writes:
        """Those of a graph."""
        written = list[tuple[int, set[int]]]()
        for place, node in enumerate(graph.nodes):
            if into := written_by(node):
                written.append((place, set[int]().union(*(memory_of(example(each)) for each in into))))
        return Writes({node: place for place, node in enumerate(graph.nodes)}, written)

    def apart(self, calls: Sequence[Node], read: Iterable[Node]) -> Iterator[list[Node]]:
        """The calls, in their order, apart where something is written between them to what is read."""
        own = set[int]().union(*(memory_of(example(node)) for node in read))
        cuts = [place for place, memory in self.written if own & memory]
        stretch: list[Node] = []
        for call in sorted(calls, key=lambda call: self.places[call]):
            if stretch and any(self.places[stretch[-1]] < cut <= self.places[call] for cut in cuts):
                yield stretch
                stretch = []
            stretch.append(call)
        if stretch:
            yield stretch
