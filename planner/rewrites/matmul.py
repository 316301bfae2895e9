"""Matmuls into columns whose rows begin at addresses that no kernel reads well, such as the logits of 50,257 tokens.

Going forward that costs little. Going back, two matmuls read the gradient of the result: it is laid out once with room behind each
row, for both. Elements stay what they are; what stands in the room is zero, and adds nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fuseplan.rewrites.base import Draft, Kind, Site, digest_of
from fuseplan.rewrites.reading import argument, first, name_of
from fuseplan.rewrites.special import example

ALIGNED_BYTES = 16
"""Rows that begin at multiples of so many bytes are read by the fast kernels of NVIDIA GPUs."""
ROOM = 64
"""With room, a row has a multiple of so many columns."""
LEAST_COLUMNS = 512
"""Of fewer, the room behind a row would cost as much as it saves …"""
LEAST_ELEMENTS = 2**20
"""… and where the result has fewer elements than that, there is not much to save."""
_MEANING = "2"
"""Another one, should the function ever do something else: torch counts it in."""


class _Padded(torch.autograd.Function):
    """Of rows of two dimensions: of more, `linear` gives a view."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        of_x, of_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(
            x if of_weight else None, weight if of_x else None
        )  # what else is there may be written to
        ctx.columns = weight.shape[0]
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> tuple[Tensor | None, ...]:
        (gradient,) = given
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        room = -ctx.columns % ROOM
        rows = F.pad(gradient, (0, room))
        with torch.autocast(gradient.device.type, enabled=False):  # it may be on around a backward that is compiled
            return (
                rows @ F.pad(weight, (0, 0, 0, room)) if of_x else None,
                (rows.t() @ x)[: ctx.columns] if of_weight else None,
                gradient.sum(0) if of_bias else None,
            )


def linear_of_padded_gradient(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same as `linear`; in its backward, the gradient of the result has room behind each row.

    >>> x, weight = torch.ones(2, 3, requires_grad=True), torch.ones(5, 3, requires_grad=True)
    >>> linear_of_padded_gradient(x, weight).sum().backward()
    >>> x.grad.tolist(), tuple(weight.grad.shape)
    ([[5.0, 5.0, 5.0], [5.0, 5.0, 5.0]], (5, 3))
    """
    if x.dim() == 2:
        found: Tensor = _Padded.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return found
    # A view that is made within the function could not be written to.
    return linear_of_padded_gradient(x.flatten(0, -2), weight, bias).view(*x.shape[:-1], weight.shape[0])


@dataclass(frozen=True, eq=False)
class MatmulSite(Site):
    """A matmul of rows with one matrix, which has a row of weights for each column of the result."""

    result: Node = field(repr=False)
    rows: Node = field(repr=False)
    matrix: Node = field(repr=False)
    bias: Node | None = field(repr=False)
    turned: bool = False
    """Whether the matrix has a column for each column of the result."""

    @property
    def columns(self) -> Any:
        """How many the result has."""
        return example(self.matrix).shape[1 if self.turned else 0]

    @property
    def dtype(self) -> torch.dtype:
        """That of the result: under autocast, it is also that in which the operands are multiplied."""
        found: torch.dtype = example(self.result).dtype
        return found


class Matmul(Kind[MatmulSite]):
    """Matmuls whose backward pays for where the rows of their result begin."""

    noun = "matmul"
    doubtful = False
    has_own_gradients = True
    functions: Mapping[str, str] = {f"{linear_of_padded_gradient.__module__}.linear_of_padded_gradient": _MEANING}

    def find(self, gm: GraphModule) -> Sequence[MatmulSite]:
        """Those with rows that begin at odd addresses."""
        found: list[MatmulSite] = []
        for place, node in enumerate(gm.graph.nodes):
            operands = operands_of(node)
            if operands is not None:
                site = MatmulSite(len(found), digest_of("matmul", {place: node}), node, *operands)
                found += [site] if _unaligned(site) else []
        return found

    def nodes(self, site: MatmulSite) -> Collection[Node]:
        """Its call."""
        return (site.result,)

    def ways(self, site: MatmulSite) -> Sequence[str]:
        """With room behind the rows of its gradient."""
        return ("padded",)

    def refusal(self, site: MatmulSite, way: str) -> str | None:
        """Where there is no backward, or not much in it."""
        result = example(site.result)
        if way not in self.ways(site):
            return f"there is no matmul variant {way!r}"
        if not result.requires_grad:
            return "it takes no gradient"
        strides = example(site.rows).stride(-1), example(site.matrix).stride(0 if site.turned else 1)
        if not all(statically_known_true(each == 1) for each in strides):
            return "its gradients would be laid out otherwise"
        if site.columns < LEAST_COLUMNS:
            return f"it has {site.columns} columns: room behind each row pays from {LEAST_COLUMNS} on"
        elements = result.numel()
        if type(elements) is int and elements < LEAST_ELEMENTS:
            return f"its result has {elements:,} elements: it pays from {LEAST_ELEMENTS:,} on"
        return None

    def preferred(self, site: MatmulSite) -> str | None:
        """On a GPU, in dtypes that its matrix units multiply; elsewhere nobody has seen it pay."""
        pays = example(site.result).device.type == "cuda" and site.dtype.itemsize == 2
        return super().preferred(site) if pays else None

    def rivals(self, site: MatmulSite) -> Mapping[str, str]:
        """None: there is one way."""
        return {}

    def apply(self, draft: Draft, chosen: Mapping[MatmulSite, str]) -> None:
        """Call the function that has other gradients."""
        for site in chosen:
            _write(draft, site)

    def about(self, site: MatmulSite) -> str:
        """How many columns it has."""
        return f"{site.columns} columns, whose rows begin at unaligned addresses"


def operands_of(node: Node) -> tuple[Node, Node, Node | None, bool] | None:
    """The rows, the matrix and the bias of a matmul, and whether the matrix has to be turned; None for another op."""
    name = name_of(node)
    if name == "linear":
        rows, matrix, bias, turned = first(node), argument(node, 1, "weight"), argument(node, 2, "bias"), False
    elif name in ("matmul", "mm"):
        rows, matrix, bias, turned = first(node), argument(node, 1, "other", "mat2"), None, True
    elif name == "addmm":
        rows, matrix, bias, turned = argument(node, 1, "mat1"), argument(node, 2, "mat2"), first(node), True
        if any(argument(node, place, factor, default=1) != 1 for place, factor in ((3, "beta"), (4, "alpha"))):
            return None
    else:
        return None
    if "out" in node.kwargs or not are_tensors(node, rows, matrix) or not (bias is None or are_tensors(bias)):
        return None
    if example(matrix).dim() != 2 or example(rows).dim() < 2 or (bias is not None and example(bias).dim() != 1):
        return None
    return rows, matrix, bias, turned


def are_tensors(*nodes: Any) -> bool:
    """Whether these are nodes of a graph, each of which gives a tensor."""
    return all(isinstance(node, Node) and isinstance(example(node), Tensor) for node in nodes)


def _unaligned(site: MatmulSite) -> bool:
    """Whether rows begin at odd addresses, as far as that is known."""
    if type(site.columns) is not int or not site.dtype.is_floating_point:
        return False
    biased = site.bias is None or example(site.bias).shape[0] == site.columns
    return biased and example(site.matrix).numel() > 0 and site.columns * site.dtype.itemsize % ALIGNED_BYTES != 0


def given_to(draft: Draft, call: Node, like: Any) -> list[Node]:
    """What a linear layer would be given for the same product, where the copy inserts nodes; `like` is the result: autocast would cast
    to its dtype.
    """
    operands = operands_of(call)  # of another kind's, what it reads may be another node by now
    assert operands is not None
    rows, matrix, bias, turned = operands

    def cast(node: Node) -> Node:
        return node if example(node).dtype == like.dtype else draft.call("to", (node, like.dtype), {}, like)

    weight = draft.call("t", (cast(matrix),), {}, like) if turned else cast(matrix)
    return [cast(rows), weight, *([] if bias is None else [cast(bias)])]


def _write(draft: Draft, site: MatmulSite) -> None:
    call = draft.copies[site.result]
    with draft.graph.inserting_before(call):
        given = given_to(draft, call, example(site.result))
    call.op, call.target, call.args, call.kwargs = "call_function", linear_of_padded_gradient, tuple(given), {}
