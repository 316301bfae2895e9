"""What a kind of rewrite is: it finds its sites in a Dynamo graph, knows their ways, and writes them so in a copy."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch.fx import Graph, GraphModule, Node

from fuseplan.capture.dynamo.settled import as_captured


@dataclass(frozen=True, eq=False)
class Site:
    """A place in a Dynamo graph that a kind of rewrite knows other ways to write: a call, or a few that are one thing."""

    number: int
    """Its place among the sites of its kind, in the order of the graph."""
    digest: str
    """Of what it matched: where a finder learns to see more, a plan either means the same site or does not fit."""


S = TypeVar("S", bound=Site)


class Kind(Protocol[S]):
    """One kind of rewrite. Its sites are found on the original graph, whatever else is rewritten."""

    @property
    def noun(self) -> str:
        """What people call one of its sites."""
        ...

    @property
    def functions(self) -> Mapping[str, str]:
        """Functions that it puts into graphs, by their full name, and a word for what each does: torch's cache keeps programs
        with functions that it knows, and has to know when one comes to mean something else.
        """
        ...

    def find(self, gm: GraphModule) -> Sequence[S]:
        """The sites in a graph, in order."""
        ...

    def ways(self, site: S) -> Sequence[str]:
        """The ways to write a site beside the one in which it is, legal here or not."""
        ...

    def refusal(self, site: S, way: str) -> str | None:
        """Why a way is not legal here; None if it is."""
        ...

    def apply(self, draft: Draft, chosen: Mapping[S, str]) -> None:
        """Write these sites in these ways, all of which are legal."""
        ...

    def describe(self, site: S, way: str | None) -> str:
        """One line on a site, for people; without a way it is left as it is."""
        ...


class Draft:
    """A copy of a Dynamo graph in which sites are rewritten, while the original stays as it is."""

    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm
        self.graph: Graph = copy.deepcopy(gm.graph)
        self.copies: Mapping[Node, Node] = dict(zip(gm.graph.nodes, self.graph.nodes, strict=True))
        """What each node of the original is in the copy."""
        for original, copied in self.copies.items():
            if hasattr(original, "_dynamo_source"):  # AOTAutograd asks inputs for it; copying a node leaves it behind
                copied._dynamo_source = original._dynamo_source

    def finished(self) -> GraphModule:
        """The copy as a module of its own."""
        self.graph.lint()
        return as_captured(self.gm, self.graph)


def digest_of(kind: str, nodes: Mapping[int, Node]) -> str:
    """The digest of a site that matched these nodes, by their place in the graph: the key of the program stands for the rest."""
    found = [(place, node.op, getattr(node.target, "__name__", str(node.target))) for place, node in nodes.items()]
    return hashlib.sha256(repr((kind, found)).encode()).hexdigest()[:16]
