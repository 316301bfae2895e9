"""The calls of attention in a Dynamo graph, and what is proven of their masks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import map_arg

from fuseplan.capture.fx.flex import Sight
from fuseplan.rewrites.attention.documents import MOST, documents_in
from fuseplan.rewrites.attention.inputs import fake
from fuseplan.rewrites.attention.mask_source import MaskSource
from fuseplan.rewrites.attention.result import order_that_matters
from fuseplan.rewrites.attention.site import PARAMETERS, AttentionSite
from fuseplan.rewrites.attention.ways import AttentionWay
from fuseplan.rewrites.base import Draft, digest_of
from fuseplan.rewrites.writes import may_write
from fuseplan.segment.masks import MaskProof, UnprovenError

_TARGETS = frozenset(
    {
        F.scaled_dot_product_attention,
        torch.ops.aten.scaled_dot_product_attention,
        torch.ops.aten.scaled_dot_product_attention.default,
    }
)
_DEFAULTS = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}


def has_attention(gm: GraphModule) -> bool:
    """Whether a program calls attention, in any part of it.

    >>> def backend(gm, example_inputs):
    ...     print(has_attention(gm))
    ...     return gm.forward
    >>> _ = torch.compile(lambda x: F.scaled_dot_product_attention(x, x, x), backend=backend)(torch.ones(2, 3, 4))
    True
    """
    graphs = [part.graph for part in gm.modules() if isinstance(part, GraphModule)]
    return any(node.op == "call_function" and node.target in _TARGETS for graph in graphs for node in graph.nodes)


@dataclass(frozen=True, eq=False)
class AttentionCall(AttentionSite):
    """One call of scaled_dot_product_attention, by its number in its Dynamo graph."""

    seen: dict[Node, Sight] = field(default_factory=dict, repr=False)
    """By masks of the graph what they show, as far as somebody has asked."""

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """What it is given, by parameter, defaults included."""
        return arguments_of(self.result)

    @cached_property
    def fakes(self) -> Mapping[str, Any]:
        """The same, with what is known of nodes in their place."""
        return {name: map_arg(value, _example) for name, value in self.arguments.items()}

    @property
    def given(self) -> Mapping[str, Node]:
        """Its arguments that are nodes."""
        return {name: value for name, value in self.arguments.items() if isinstance(value, Node)}

    def write(self, draft: Draft) -> dict[str, Any]:
        """Its own arguments."""
        return {name: map_arg(value, draft.copies.__getitem__) for name, value in self.arguments.items()}

    def order_of_result(self, way: AttentionWay) -> tuple[int, ...] | None:
        """As the program has it, where something minds and another kernel may lay it out differently."""
        return order_that_matters(self.result) if self.runs_otherwise(way) else None

    def documents(self) -> Sight:
        """What each query sees by its mask, which is made once for all calls that share it."""
        mask = self.arguments["attn_mask"]
        if not isinstance(mask, Node):
            raise UnprovenError("it has no mask")
        _check_shape(mask, self.arguments)
        places = [*fake(mask).shape[-2:], self.fakes["query"].shape[-2], self.fakes["key"].shape[-2]]
        if not all(type(each) is int for each in (*fake(mask).shape, *places)):
            raise UnprovenError("its sizes are known at run time only")
        if len(set(places)) != 1:
            raise UnprovenError("it has not as many keys as queries")
        if fake(mask).numel() > MOST:
            raise UnprovenError(f"it has more than {MOST} elements")
        source = MaskSource(mask)
        if source.writes_after(self.result):
            raise UnprovenError("it is written to after the call has read it")
        if mask not in self.seen:
            self.seen[mask] = documents_in(source.elements())
        return self.seen[mask]

    @property
    def masked_by(self) -> Collection[Node]:
        """Its mask."""
        mask = self.arguments["attn_mask"]
        return (mask,) if isinstance(mask, Node) else ()


def attention_calls(gm: GraphModule) -> tuple[AttentionCall, ...]:
    """Return the calls of attention in a Dynamo graph, in order, with what is proven of their masks.

    Those in graphs that are nested in it are found when these are looked at by themselves.
    """
    sources: dict[Node, _Proven] = {}
    seen: dict[Node, Sight] = {}
    places = [(i, one) for i, one in enumerate(gm.graph.nodes) if one.op == "call_function" and one.target in _TARGETS]
    return tuple(
        AttentionCall(number, digest_of("attention", {place: node}), _proof(node, sources), node, seen)
        for number, (place, node) in enumerate(places)
    )


def arguments_of(node: Node) -> dict[str, Any]:
    """The arguments of a call of attention, by parameter, defaults included."""
    given = {**_DEFAULTS, **dict(zip(PARAMETERS, node.args, strict=False)), **node.kwargs}
    return {name: given[name] for name in PARAMETERS}


def _example(node: Node) -> Any:
    return node.meta.get("example_value")


# proofs


_Proven = Callable[[Node], MaskProof]


def _proof(node: Node, sources: dict[Node, _Proven]) -> MaskProof:
    """What is proven of the mask of one call; masks that several calls share are looked at once."""
    arguments = arguments_of(node)
    mask, causal = arguments["attn_mask"], arguments["is_causal"]
    if type(causal) is not bool:
        return MaskProof(None, "whether it is causal is known at run time only")
    if mask is None:
        return MaskProof("causal", "is_causal is given") if causal else MaskProof("all", "no mask is given")
    if causal:
        return MaskProof(None, "it has a mask and is causal, which PyTorch refuses")
    try:
        _check_shape(mask, arguments)
        if mask not in sources:
            sources[mask] = _prover(mask)
        return _for_shape(sources[mask](node), mask, arguments)
    except UnprovenError as unproven:
        return MaskProof(None, str(unproven))


def _prover(mask: Node) -> _Proven:
    """The proof of a mask, once; whether it is still being written to depends on the call."""
    try:
        source = MaskSource(mask)
        proof = source.proof()
    except UnprovenError as unproven:
        nothing = MaskProof(None, str(unproven))
        return lambda call: nothing
    changing = MaskProof(None, "it is written to after the call has read it")
    written = any(may_write(node) for node in source.nodes)
    return lambda call: changing if written and source.writes_after(call) else proof


def _check_shape(mask: Any, arguments: Mapping[str, Any]) -> None:
    """The mask must take no gradient, and must not widen the result: without it, the result would have another shape."""
    value, query = fake(mask), fake(arguments["query"])
    if value.requires_grad:
        raise UnprovenError("it takes a gradient")
    if not 2 <= value.dim() <= query.dim():
        raise UnprovenError(f"it has {value.dim()} dimensions, the query {query.dim()}")
    leading = zip(value.shape[:-2][::-1], query.shape[:-2][::-1], strict=False)
    if not all(_is_one(size) or statically_known_true(size == other) for size, other in leading):
        raise UnprovenError("it may have more batches than the query")


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def _for_shape(proof: MaskProof, mask: Any, arguments: Mapping[str, Any]) -> MaskProof:
    """A causal mask must have a row for each query and a column for each key: broadcast, it is another mask."""
    if proof.verdict != "causal":
        return proof
    rows, columns = fake(mask).shape[-2:]
    queries, keys = fake(arguments["query"]).shape[-2], fake(arguments["key"]).shape[-2]
    if statically_known_true(rows == queries) and statically_known_true(columns == keys):
        return proof
    return MaskProof(None, "its rows and columns are not the queries and keys")
