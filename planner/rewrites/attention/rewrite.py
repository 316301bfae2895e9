"""Writing sites of attention in their ways, in a draft: a call takes the place of the result, and what nobody reads any more goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Node

from fuseplan.rewrites.attention.beside_sinks import attention_beside_sinks
from fuseplan.rewrites.attention.kernels import (
    FUNCTIONS,
    attention_flex,
    attention_in_window,
    attention_packed,
    attention_split,
)
from fuseplan.rewrites.attention.laid_out import LaidOutMasks
from fuseplan.rewrites.attention.mask_source import MaskSource
from fuseplan.rewrites.attention.sinks import arguments_beside_sinks
from fuseplan.rewrites.attention.site import AttentionSite, with_mask
from fuseplan.rewrites.attention.ways import AttentionWay
from fuseplan.rewrites.base import Draft
from fuseplan.rewrites.order import in_order
from fuseplan.rewrites.reading import draws
from fuseplan.rewrites.writes import may_write

S = TypeVar("S", bound=AttentionSite)


def rewrite_sites(draft: Draft, chosen: Mapping[S, str]) -> None:
    """Let sites of attention run in the ways chosen for them, all of which are legal."""
    unread: dict[Node, None] = {}
    dropped: dict[Node, None] = {}
    matched = {draft.copies[node] for site in chosen for node in site.matched}
    masks = LaidOutMasks(draft)
    places = {node: place for place, node in enumerate(draft.copies)}
    for site in sorted(chosen, key=lambda one: places[one.result]):
        way, result = AttentionWay.parse(chosen[site]), draft.copies[site.result]
        given = site.write(draft)
        arguments = with_mask(given, way)
        if arguments["attn_mask"] is not given["attn_mask"]:
            dropped |= dict.fromkeys(site.masked_by)
        if way.lays_out:
            arguments["attn_mask"] = masks.node(site, way, given)
        if way.grouped or way.packed:
            arguments["enable_gqa"] = way.grouped
        arguments |= {name: source.write(draft, result) for name, source in site.sources(way).items()}
        unread |= dict.fromkeys((*result.all_input_nodes, *_nodes(given.values())))
        target, arguments = _call(site, way, arguments)
        result.op, result.target, result.args, result.kwargs = "call_function", target, (), arguments
        _keep_order(draft, site, way)
    _erase_unread(unread, matched)
    _erase_sources([MaskSource(mask) for mask in dropped], draft.copies)


def _keep_order(draft: Draft, site: AttentionSite, way: AttentionWay) -> None:
    """Lay out the result as the program has it, where something minds and another kernel may lay it out differently."""
    order = site.order_of_result(way)
    if order is not None:
        result = draft.copies[site.result]
        with draft.graph.inserting_after(result):
            kept = draft.graph.call_function(in_order, (result, order))
        kept.meta["example_value"] = result.meta["example_value"]
        result.replace_all_uses_with(kept, delete_user_cb=lambda user: user is not kept)


def _call(
    site: AttentionSite, way: AttentionWay, arguments: dict[str, Any]
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function that a way calls, and with what."""
    if "sinks" in arguments:
        return attention_beside_sinks, arguments_beside_sinks(site, way, arguments)
    if way.kernel == "split":
        return attention_split, {name: arguments[name] for name in ("query", "key", "value", "attn_mask", "scale")}
    if way.packed:
        return attention_packed, {"kernel": way.kernel, **arguments}
    if way.mask not in ("window", "documents"):
        return FUNCTIONS[way.kernel], arguments
    sight = site.sight(way)
    given = {name: arguments[name] for name in ("query", "key", "value", "scale")}
    ends = {"left": sight.left, "right": sight.right}
    if way.kernel == "flex":
        return attention_flex, given | ends | {"documents": sight.documents}
    return attention_in_window, given | {name: -1 if end is None else end for name, end in ends.items()}


def _nodes(values: Iterable[Any]) -> list[Node]:
    return [each for each in values if isinstance(each, Node)]


def _erase_unread(candidates: Iterable[Node], matched: set[Node]) -> None:
    """Remove those that nobody reads, and then what only they have read; what has another effect than its result stays."""
    waiting = list(candidates)
    while waiting:
        node = waiting.pop()
        if node._erased or node.users or not (node in matched or _has_no_effect(node)):
            continue
        waiting += node.all_input_nodes
        node.graph.erase_node(node)


def _has_no_effect(node: Node) -> bool:
    if node.op not in ("call_function", "call_method", "get_attr"):
        return False
    if isinstance(node.target, HigherOrderOperator):  # it may draw random numbers
        return False
    if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
        return False
    return not may_write(node) and not draws(node)


def _erase_sources(sources: Iterable[MaskSource], copies: Mapping[Node, Node]) -> None:
    """Remove what built the masks and nothing else reads. All that it writes to is its own: the proof rests on nothing else."""
    built = {node for source in sources for node in source.nodes}
    originals = {copied: original for original, copied in copies.items()}
    doomed = {node for node in built if not copies[node]._erased}
    while True:
        read = {node for node in doomed if any(originals.get(user) not in doomed for user in copies[node].users)}
        if not read:
            break
        doomed -= read.union(*(MaskSource(node).nodes for node in read))
    for original, copied in reversed(list(copies.items())):
        if original in doomed:
            copied.graph.erase_node(copied)
