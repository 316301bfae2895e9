"""The calls of attention in a Dynamo graph: what is proven of their masks, and rewriting them before anything is traced.

A variant is a kernel (`auto`, `flash`, `cudnn`, `efficient`, `math`), alone or with `+causal` (no mask, is_causal=True) or
`+unmasked` (no mask). Dropping a mask is legal only where a proof says that it changes nothing, for all sizes in range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch._C import DispatchKey
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import map_arg
from torch.nn.attention import sdpa_kernel

from fuseplan.plan import ATTENTION_WAYS
from fuseplan.rewrites.attention.kernels import BACKENDS, FUNCTIONS
from fuseplan.rewrites.attention.mask_source import MaskSource, may_write
from fuseplan.rewrites.base import Draft, Site, digest_of
from fuseplan.segment.masks import MaskProof, UnprovenError

_TARGETS = frozenset(
    {
        F.scaled_dot_product_attention,
        torch.ops.aten.scaled_dot_product_attention,
        torch.ops.aten.scaled_dot_product_attention.default,
    }
)
_PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
_DEFAULTS = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}


@dataclass(frozen=True, eq=False)
class AttentionCall(Site):
    """One call of scaled_dot_product_attention, by its number in its Dynamo graph."""

    proof: MaskProof
    node: Node = field(repr=False)

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """What it is given, by parameter, defaults included."""
        return arguments_of(self.node)

    @cached_property
    def variants(self) -> tuple[str, ...]:
        """The variants that are legal here, on this machine."""
        return tuple(variant for variant in ATTENTION_WAYS if self.refusal(variant) is None)

    @property
    def proven(self) -> str:
        """The variant that drops the mask where that is proven to be the same, and else keeps the call whole."""
        endings = {"causal": "auto+causal", "all": "auto+unmasked", None: "auto"}
        return endings[self.proof.verdict]

    def refusal(self, variant: str) -> str | None:
        """Why a variant is not legal here; None if it is."""
        kernel, _, ending = variant.partition("+")
        if variant not in ATTENTION_WAYS:
            return f"there is no attention variant {variant!r}"
        wanted = {"causal": "causal", "unmasked": "all"}.get(ending)
        if wanted is not None and self.proof.verdict != wanted:
            found = f"its mask is proven {self.proof.verdict}" if self.proof.verdict else self.proof.reason
            return f"its mask is not proven {wanted}: {found}"
        if kernel == "auto":
            return None
        return _no_kernel(kernel, arguments_under(self.arguments, ending))


def attention_calls(gm: GraphModule) -> tuple[AttentionCall, ...]:
    """Return the calls of attention in a Dynamo graph, in order, with what is proven of their masks.

    Those inside nested graphs, as checkpointing makes them, are left alone.
    """
    sources: dict[Node, _Proven] = {}
    places = [(i, one) for i, one in enumerate(gm.graph.nodes) if one.op == "call_function" and one.target in _TARGETS]
    return tuple(
        AttentionCall(number, digest_of("attention", {place: node}), _proof(node, sources), node)
        for number, (place, node) in enumerate(places)
    )


def arguments_of(node: Node) -> dict[str, Any]:
    """The arguments of a call of attention, by parameter, defaults included."""
    given = {**_DEFAULTS, **dict(zip(_PARAMETERS, node.args, strict=False)), **node.kwargs}
    return {name: given[name] for name in _PARAMETERS}


def arguments_under(arguments: Mapping[str, Any], ending: str) -> dict[str, Any]:
    """The arguments of a variant: its mask dropped where the ending says so."""
    if not ending:
        return dict(arguments)
    return {**arguments, "attn_mask": None, "is_causal": ending == "causal"}


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


def _fake(argument: Any) -> Any:
    value = argument.meta.get("example_value") if isinstance(argument, Node) else None
    if not isinstance(value, FakeTensor):
        raise UnprovenError("an argument is no plain tensor")
    return value


def _check_shape(mask: Any, arguments: Mapping[str, Any]) -> None:
    """The mask must take no gradient, and must not widen the result: without it, the result would have another shape."""
    value, query = _fake(mask), _fake(arguments["query"])
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
    rows, columns = _fake(mask).shape[-2:]
    queries, keys = _fake(arguments["query"]).shape[-2], _fake(arguments["key"]).shape[-2]
    if statically_known_true(rows == queries) and statically_known_true(columns == keys):
        return proof
    return MaskProof(None, "its rows and columns are not the queries and keys")


# kernels


def _no_kernel(kernel: str, arguments: Mapping[str, Any]) -> str | None:
    """Why a kernel cannot run with these arguments, by the device's own rules; None if it can."""
    try:
        query = _fake(arguments["query"])
    except UnprovenError as unproven:
        return str(unproven)
    device = query.device.type
    choose = torch.ops.aten._fused_sdp_choice.default
    key = getattr(DispatchKey, device.upper(), None)
    if key is None or not choose.has_kernel_for_dispatch_key(key):
        return None if kernel == "math" else f"{device} has no attention kernels to choose from here"
    if not isinstance(arguments["dropout_p"], float | int) or not isinstance(arguments["is_causal"], bool):
        return "its dropout, or whether it is causal, is known at run time only"
    values = [_cast(map_arg(arguments[name], _example)) for name in _PARAMETERS[:6]]
    try:
        with query.fake_mode, sdpa_kernel(BACKENDS[kernel]):
            chosen = choose._op_dk(key, *values, enable_gqa=arguments["enable_gqa"])
    except RuntimeError as error:
        return str(error).strip().splitlines()[0]
    return None if chosen == BACKENDS[kernel].value else f"{kernel} does not take these sizes and types on {device}"


def _example(node: Node) -> Any:
    return node.meta.get("example_value")


def _cast(value: Any) -> Any:
    """An argument as autocast hands it on."""
    if (
        not isinstance(value, FakeTensor)
        or not value.is_floating_point()
        or not torch.is_autocast_enabled(value.device.type)
    ):
        return value
    with value.fake_mode:
        return value.to(torch.get_autocast_dtype(value.device.type))


# rewriting


def rewrite_calls(draft: Draft, choices: Mapping[AttentionCall, str]) -> None:
    """Let the calls of a copied Dynamo graph run as the variants chosen for them; what only built a dropped mask goes."""
    dropped: dict[Node, None] = {}
    for call, variant in choices.items():
        kernel, _, ending = variant.partition("+")
        arguments = arguments_under(call.arguments, ending)
        mask = call.arguments["attn_mask"]
        if arguments["attn_mask"] is not mask:
            dropped[mask] = None
        node = draft.copies[call.node]
        node.target = FUNCTIONS[kernel]
        node.args, node.kwargs = (), map_arg(arguments, draft.copies.__getitem__)
    _erase([MaskSource(mask) for mask in dropped], draft.copies)


def _erase(sources: Iterable[MaskSource], copies: Mapping[Node, Node]) -> None:
    """Remove what built the masks and nothing else reads. All that it writes to is its own: the proof rests on nothing else."""
    built = {node for source in sources for node in source.nodes}
    originals = {copied: original for original, copied in copies.items()}
    doomed = set(built)
    while True:
        read = {node for node in doomed if any(originals[user] not in doomed for user in copies[node].users)}
        if not read:
            break
        doomed -= read.union(*(MaskSource(node).nodes for node in read))
    for original, copied in reversed(list(copies.items())):
        if original in doomed:
            copied.graph.erase_node(copied)
