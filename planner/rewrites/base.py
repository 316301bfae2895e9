"""What a kind of rewrite is: it finds its sites in a Dynamo graph, knows their ways, and writes them so in a copy."""

from __future__ import annotations

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import torch
from torch._guards import tracing
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from fuseplan.capture.dynamo.copied import as_captured


@dataclass(frozen=True, eq=False)
class Site:
    """A place in a Dynamo graph that a kind of rewrite knows other ways to write: a call, or a few that are one thing."""

    number: int
    """Its place among the sites of its kind, in the order of the graph."""
    digest: str
    """Of what it matched: where a finder learns to see more, a plan either means the same site or does not fit."""


S = TypeVar("S", bound=Site)


class Kind(ABC, Generic[S]):
    """One kind of rewrite. Its sites are found on the original graph, whatever else is rewritten.

    What has a body here may stay as it is: then each way that is legal is tried, the first one first, and sites that are
    written in the same words over the same shapes are one decision.
    """

    noun: str
    """What people call one of its sites."""
    doubtful: bool = True
    """Whether what is preferred may turn out to be slower: then a small effort races the program without it, too."""
    has_own_gradients: bool = False
    """Whether its ways have gradients of their own, which no transformation such as vmap looks through."""
    on_fixed_weights: bool = False
    """Whether its ways are right only while weights stay what they are, which a caller promises by option `weights`."""
    functions: Mapping[str, str] = MappingProxyType({})
    """Functions that it puts into graphs, by their full name, and a word for what each does: torch's cache keeps programs
    with functions that it knows, and has to know when one comes to mean something else.
    """

    @abstractmethod
    def find(self, gm: GraphModule) -> Sequence[S]:
        """The sites in a graph, in order. Graphs that are nested in it are asked for by themselves."""

    @abstractmethod
    def nodes(self, site: S) -> Collection[Node]:
        """The nodes that a site consists of."""

    @abstractmethod
    def ways(self, site: S) -> Sequence[str]:
        """The ways to write a site beside the one in which it is, legal here or not."""

    @abstractmethod
    def refusal(self, site: S, way: str) -> str | None:
        """Why a way is not legal here; None if it is."""

    @abstractmethod
    def apply(self, draft: Draft, chosen: Mapping[S, str]) -> None:
        """Write these sites in these ways, all of which are legal."""

    @abstractmethod
    def about(self, site: S) -> str:
        """What is known of a site, in a few words for people."""

    def missed(self, gm: GraphModule) -> Mapping[str, str]:
        """Where it has looked for a site and found none: by the name of a node, why."""
        return {}

    def preferred(self, site: S) -> str | None:
        """The way to try first, which a program that is cut has; None to leave the site as it is."""
        return next((way for way in self.ways(site) if self.refusal(site, way) is None), None)

    def rivals(self, site: S) -> Mapping[str, str]:
        """The ways that are worth a race of their own beside the preferred one, the most promising first, by a word that sites
        of several groups may share: under it, all of them race together.
        """
        return {way: way for way in self.ways(site)}

    def sparing(self, site: S) -> Sequence[str]:
        """The ways that take less memory and more time, the one that takes the least first: they race where memory counts."""
        return ()

    def forbidden(self, site: S, way: str) -> str | None:
        """Why a way that may be legal is not wanted in this process as it is set now, or here in the program: it would take away
        what the caller has chosen, such as to be deterministic. A stored plan that has it falls back to what is allowed.
        """
        return None

    def group(self, site: S) -> str:
        """What equal sites share, such as those of twelve layers: they are one decision."""
        return likeness(self.nodes(site))

    def changes(self, site: S, way: str) -> Collection[Node]:
        """The nodes that this way changes or may take away. No two kinds may have one of them both."""
        return self.nodes(site)

    def describe(self, site: S, way: str | None) -> str:
        """One line on a site, for people; without a way it is left as it is."""
        return f"{self.noun} {site.number}: {self.about(site)}; " + (f"variant {way}" if way else "left as it is")


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

    def call(self, target: Callable[..., Any] | str, args: Any, kwargs: Any, like: FakeTensor) -> Node:
        """A call of a function or a method where the copy inserts nodes, with what Dynamo would know of it; gradients are taken
        where they are of `like`.
        """
        kind = "call_method" if isinstance(target, str) else "call_function"
        node = self.graph.create_node(kind, target, args, kwargs)
        values, named = map_arg((args, kwargs), lambda given: given.meta["example_value"])
        with tracing(None), like.fake_mode, (torch.enable_grad if like.requires_grad else torch.no_grad)():
            result = (
                getattr(values[0], target)(*values[1:], **named)
                if isinstance(target, str)
                else target(*values, **named)
            )
        node.meta["example_value"] = result
        return node

    def finished(self) -> GraphModule:
        """The copy as a module of its own."""
        self.graph.lint()
        return as_captured(self.gm, self.graph)


def digest_of(kind: str, nodes: Mapping[int, Node]) -> str:
    """The digest of a site that matched these nodes, by their place in the graph: the key of the program stands for the rest."""
    found = [(place, node.op, getattr(node.target, "__name__", str(node.target))) for place, node in nodes.items()]
    return hashlib.sha256(repr((kind, found)).encode()).hexdigest()[:16]


def likeness(nodes: Iterable[Node]) -> str:
    """What places share that are written in the same words over the same shapes, wherever they stand in a graph."""
    own = {node: place for place, node in enumerate(nodes)}

    def read(node: Node) -> str:
        return f"%{own[node]}" if node in own else _shape(node)

    lines = [
        (getattr(node.target, "__name__", str(node.target)), repr(map_arg((node.args, node.kwargs), read)))
        for node in own
    ]
    return hashlib.sha256(repr([*lines, *map(_shape, own)]).encode()).hexdigest()[:16]


def _shape(node: Node) -> str:
    """What is known of a value but its elements."""
    value = node.meta.get("example_value", node.meta.get("val"))
    if not isinstance(value, torch.Tensor):
        return str(value)
    strides = tuple(value.stride()) if value.layout is torch.strided and not value.is_nested else value.layout
    return f"{type(value).__name__} {value.dtype} {tuple(value.shape)} {strides} {value.device} {value.requires_grad}"
