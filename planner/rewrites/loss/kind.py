"""The kind of rewrite: a head's logits are often the largest tensor of a step, and only the loss reads them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fuseplan.rewrites.base import Draft, Kind
from fuseplan.rewrites.loss.chunked import loss_in_chunks
from fuseplan.rewrites.loss.room import linear_with_room
from fuseplan.rewrites.loss.site import LossSite, find_losses, sizes_of
from fuseplan.rewrites.matmul import ALIGNED_BYTES, given_to, operands_of
from fuseplan.rewrites.reading import name_of
from fuseplan.rewrites.special import example

LEAST_COLUMNS = 512
"""Of fewer, logits are not what takes memory or time …"""
LEAST_ELEMENTS = 2**20
"""… and of fewer than that in all, neither."""
CHUNKS: Mapping[str, int] = {"chunked-4": 4, "chunked-8": 8}
"""The ways in which logits never stand in memory whole, and in how many parts they are computed."""
_MEANING = "2"
"""Another one, should the function ever do something else: torch counts it in."""


class Loss(Kind[LossSite]):
    """Cross-entropies of what a matmul gives."""

    noun = "loss"
    has_own_gradients = True
    functions: Mapping[str, str] = {
        f"{one.__module__}.{one.__name__}": _MEANING for one in (linear_with_room, loss_in_chunks)
    }

    def find(self, gm: GraphModule) -> Sequence[LossSite]:
        """Those whose logits nothing else reads."""
        return [found for found in find_losses(gm) if isinstance(found, LossSite)]

    def missed(self, gm: GraphModule) -> Mapping[str, str]:
        """The cross-entropies that are not of one matmul, or whose logits are read elsewhere."""
        return {found[0].name: found[1] for found in find_losses(gm) if not isinstance(found, LossSite)}

    def nodes(self, site: LossSite) -> Collection[Node]:
        """From the matmul to the loss."""
        return (site.logits, *site.steps, *reversed(site.inside))

    def ways(self, site: LossSite) -> Sequence[str]:
        """With room behind the rows of the logits, or in chunks of rows."""
        return ("padded", *CHUNKS)

    def refusal(self, site: LossSite, way: str) -> str | None:
        """What a way does not compute, or where it would save nothing."""
        if way not in self.ways(site):
            return f"there is no loss variant {way!r}"
        return _too_small(site) or _laid_out_otherwise(site) or (_whole(site) if way == "padded" else _uncut(site))

    def preferred(self, site: LossSite) -> str | None:
        """None: nobody has seen one pay by time on every machine, so that each has to win a race."""
        return None

    def rivals(self, site: LossSite) -> Mapping[str, str]:
        """Room may save time."""
        return {"padded": "padded"}

    def sparing(self, site: LossSite) -> Sequence[str]:
        """Chunks: less memory the more there are, and more time."""
        return tuple(sorted(CHUNKS, key=lambda way: -CHUNKS[way]))

    def changes(self, site: LossSite, way: str) -> Collection[Node]:
        """With room, the matmul alone."""
        return (site.logits,) if way == "padded" else self.nodes(site)

    def apply(self, draft: Draft, chosen: Mapping[LossSite, str]) -> None:
        """Call the functions that have other gradients."""
        for site, way in chosen.items():
            if way == "padded":
                _write_room(draft, site)
            else:
                _write_chunks(draft, site, CHUNKS[way])

    def about(self, site: LossSite) -> str:
        """Of how much."""
        return f"{site.rows} rows of {site.columns} logits"


def _too_small(site: LossSite) -> str | None:
    """Why there is not much to save."""
    if site.columns < LEAST_COLUMNS:
        return f"there are {site.columns} classes: it pays from {LEAST_COLUMNS} on"
    elements = example(site.logits).numel()
    if type(elements) is int and elements < LEAST_ELEMENTS:
        return f"there are {elements:,} logits: it pays from {LEAST_ELEMENTS:,} on"
    return None


def _laid_out_otherwise(site: LossSite) -> str | None:
    """Why gradients would not lie as they do."""
    operands = operands_of(site.logits)
    assert operands is not None
    rows, matrix, _, turned = operands
    strides = example(rows).stride(-1), example(matrix).stride(0 if turned else 1)
    alike = all(statically_known_true(each == 1) for each in strides)
    return None if alike or not example(site.logits).requires_grad else "its gradients would be laid out otherwise"


def _whole(site: LossSite) -> str | None:
    """Why its logits get no room."""
    if site.columns * example(site.logits).dtype.itemsize % ALIGNED_BYTES == 0:
        return "its rows begin at aligned addresses"
    return None


def _uncut(site: LossSite) -> str | None:
    """Why it is not computed in chunks."""
    trained = example(site.logits).requires_grad and example(site.result).requires_grad
    if site.reduction == "none":
        return "the gradient of each row's own loss is known in the backward alone"
    if type(site.rows) is not int:
        return "how many rows there are is known at run time only"
    if trained and example(site.logits).dtype == torch.float16:
        return "in float16, gradients have to be scaled before they are computed"
    if site.class_weights is not None and example(site.class_weights).requires_grad:
        return "its class weights take a gradient"
    return None


def _write_room(draft: Draft, site: LossSite) -> None:
    call, like = draft.copies[site.logits], example(site.logits)
    with draft.graph.inserting_before(call):
        roomy = draft.call(linear_with_room, tuple(given_to(draft, call, like)), {}, like)
    call.replace_all_uses_with(roomy)
    draft.graph.erase_node(call)


def _write_chunks(draft: Draft, site: LossSite, chunks: int) -> None:
    """Do to the rows what is done to the logits, and compute the loss of these; what is not read any more goes."""
    logits, result = draft.copies[site.logits], draft.copies[site.result]
    like, of_loss = example(site.logits), example(site.result)
    with draft.graph.inserting_before(result):
        rows, *matrix = given_to(draft, logits, like)
        width = example(rows).shape[-1]
        for step in site.steps:
            rows = _of_rows(draft, draft.copies[step], rows, like)
        rows = draft.call("reshape", (rows, -1, width), {}, like)
        targets = draft.call("reshape", (draft.copies[site.targets], -1), {}, example(site.targets))
        weights = None if site.class_weights is None else draft.copies[site.class_weights]
        given = (rows, matrix[0], matrix[1] if len(matrix) > 1 else None, targets, weights, chunks)
        asked = (site.reduction, site.ignored, site.smoothing, (of_loss.dtype, site.of_logits), of_loss.requires_grad)
        loss = draft.call(loss_in_chunks, (*given, *asked), {}, of_loss)
    result.replace_all_uses_with(loss)
    for node in (*site.inside, *reversed(site.steps), site.logits):
        draft.graph.erase_node(draft.copies[node])


def _of_rows(draft: Draft, step: Node, rows: Node, like: FakeTensor) -> Node:
    """What a step does to logits, done to the rows that they are of: casts and copies are not needed."""
    name = name_of(step)
    if name in ("getitem", "flatten"):
        return draft.call(step.target, (rows, *step.args[1:]), step.kwargs, like)
    sizes = sizes_of(step)
    if not sizes:
        return rows
    return draft.call("reshape", (rows, *sizes[:-1], example(rows).shape[-1]), {}, like)
