"""Masks laid out in a draft: once for all sites that read the same one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fuseplan.rewrites.attention.inputs import fake
from fuseplan.rewrites.attention.layouts import LAYOUTS, layout_arguments
from fuseplan.rewrites.attention.site import AttentionSite
from fuseplan.rewrites.attention.ways import AttentionWay
from fuseplan.rewrites.base import Draft
from fuseplan.rewrites.writes import memory, written_after


class LaidOutMasks:
    """The masks that sites of a draft, met in the order in which they run, have had laid out."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self._made: list[tuple[str, Node, Node]] = []
        """Of each: its layout; the mask, in the original if it is there; and what was made of it."""

    def node(self, site: AttentionSite, way: AttentionWay, given: Mapping[str, Any]) -> Node:
        """The mask of a site, laid out in a way."""
        mask, wanted = site.given.get("attn_mask", given["attn_mask"]), site.laid_out(way)
        for layout, other, made in self._made:
            if layout == way.mask and same_value(mask, other) and _same_size(fake(made), wanted):
                return made
        lasting = not written_after((mask,))
        rank = site.fakes["query"].dim()
        arguments = layout_arguments(way.mask, given["attn_mask"], given["query"], given["key"], rank)
        made = self._insert(
            LAYOUTS[way.mask], arguments, self.draft.copies[site.result], lasting and way.mask != "heads"
        )
        made.meta["example_value"] = wanted
        if lasting:
            self._made.append((way.mask, mask, made))
        return made

    def _insert(self, layout: Callable[..., Any], arguments: tuple[Any, ...], result: Node, early: bool) -> Node:
        """Right after the mask is made, where what makes it can lay it out, too; or else before the result."""
        graph, mask = self.draft.graph, arguments[0]
        if not early:
            with graph.inserting_before(result):
                return graph.call_function(layout, arguments)
        inputs = graph.find_nodes(op="placeholder")
        with graph.inserting_after(inputs[-1] if mask.op == "placeholder" else mask):
            return graph.call_function(layout, arguments)


def same_value(left: Node, right: Node) -> bool:
    """Whether two nodes are one value: the same, or the same view of it, of which nobody writes."""
    if left is right:
        return True
    if left.graph is not right.graph or _base(left) is not _base(right) or written_after((left,), _base(left)):
        return False
    a, b = fake(left), fake(right)
    same = (a.dtype, a.requires_grad, a.dim()) == (b.dtype, b.requires_grad, b.dim())
    pairs = zip((*a.shape, *a.stride(), a.storage_offset()), (*b.shape, *b.stride(), b.storage_offset()), strict=False)
    return same and all(statically_known_true(one == other) for one, other in pairs)


def _base(node: Node) -> Node:
    """The value that a view is one of: as far back as inputs share its memory."""
    while node.args and isinstance(node.args[0], Node) and memory(node) and memory(node) == memory(node.args[0]):
        node = node.args[0]
    return node


def _same_size(left: FakeTensor, right: FakeTensor) -> bool:
    pairs = zip(left.shape, right.shape, strict=False)
    return left.dim() == right.dim() and all(statically_known_true(one == other) for one, other in pairs)
