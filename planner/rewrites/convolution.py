"""Convolutions whose patches lie beside each other, as where an image becomes tokens: each patch meets the weights once, which is a
matmul. Libraries of convolutions are slow where there are few channels, and there a GPU's matrix units stand still.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Node

from fuseplan.rewrites.base import Draft, Kind, Site, digest_of
from fuseplan.rewrites.convolved import Convolved
from fuseplan.rewrites.order import channels_order, in_order
from fuseplan.rewrites.reading import argument
from fuseplan.rewrites.special import example, rounds_float32

FEW_CHANNELS = 8
"""With fewer, a convolution is left without a race; with more, libraries have good kernels, and a race tells."""
_MEANING = "1"
"""Another one, should the function ever do something else: torch counts it in."""


def linear_of_patches(x: Tensor, weight: Tensor, bias: Tensor | None, order: tuple[int, ...]) -> Tensor:
    """What a convolution gives that goes on by as much as its kernel is large, with dimensions in this order in memory.

    >>> x, weight = torch.arange(16.0).view(1, 1, 4, 4), torch.ones(1, 1, 2, 2)
    >>> linear_of_patches(x, weight, None, (0, 1, 2, 3)).tolist()
    [[[[10.0, 18.0], [42.0, 50.0]]]]
    """
    dims = x.dim() - 2
    split: list[Any] = [*x.shape[:2]]
    for dim, each in enumerate(weight.shape[2:], 2):
        count = x.shape[dim] // each
        x = x.narrow(dim, 0, count * each)  # what is left at the end, no patch has
        split += [count, each]
    places, inside = [2 * i + 2 for i in range(dims)], [2 * i + 3 for i in range(dims)]
    if channels_order(weight) == tuple(range(dims + 2)):
        of_patch = [1, *inside]
    else:  # where channels lie last, so do those of a patch: then nothing is turned, nor its gradient
        of_patch, weight = [*inside, 1], weight.movedim(1, -1)
    patches = x.reshape(split).permute(0, *places, *of_patch).flatten(1 + dims)
    return in_order(F.linear(patches, weight.flatten(1), bias).movedim(-1, 1), order)


@dataclass(frozen=True, eq=False)
class ConvolutionSite(Site):
    """A convolution that goes on by as much as its kernel is large."""

    call: Node = field(repr=False)
    kernel: tuple[int, ...] = ()

    @property
    def given(self) -> Any:
        """What it is of."""
        return example(argument(self.call, 0, "input"))


class Convolution(Kind[ConvolutionSite]):
    """Convolutions of patches."""

    noun = "convolution"
    functions: Mapping[str, str] = {f"{linear_of_patches.__module__}.linear_of_patches": _MEANING}

    def find(self, gm: GraphModule) -> Sequence[ConvolutionSite]:
        """Those whose kernel is as large as their stride."""
        found = list[ConvolutionSite]()
        for place, node in enumerate(gm.graph.nodes):
            kernel = _kernel(node)
            if kernel is not None:
                found.append(ConvolutionSite(len(found), digest_of("convolution", {place: node}), node, kernel))
        return found

    def nodes(self, site: ConvolutionSite) -> Collection[Node]:
        """Its call."""
        return (site.call,)

    def ways(self, site: ConvolutionSite) -> Sequence[str]:
        """As a matmul."""
        return ("patches",)

    def refusal(self, site: ConvolutionSite, way: str) -> str | None:
        """Where sizes are not known, or the result lies as no matmul is laid out."""
        if way not in self.ways(site):
            return f"there is no convolution variant {way!r}"
        if not all(type(size) is int for size in site.given.shape[2:]):
            return "its sizes are known at run time only"
        if any(size < each for size, each in zip(site.given.shape[2:], site.kernel, strict=True)):
            return "it has no patch"
        if channels_order(example(site.call)) is None:
            return "its result does not lie in one piece"
        x, weight = (example(argument(site.call, place, name)) for place, name in enumerate(("input", "weight")))
        if x.dtype == torch.float32 and rounds_float32():
            return "matmuls in float32 may be rounded"
        orders = channels_order(x), channels_order(weight)
        plain = tuple(range(x.dim()))
        if example(site.call).requires_grad and (orders[0] != orders[1] or (orders[0] != plain and x.requires_grad)):
            return "gradients would be laid out otherwise"
        return None

    def preferred(self, site: ConvolutionSite) -> str | None:
        """On a GPU, where there are few channels."""
        few = site.given.device.type == "cuda" and site.given.shape[1] < FEW_CHANNELS
        return super().preferred(site) if few else None

    def apply(self, draft: Draft, chosen: Mapping[ConvolutionSite, str]) -> None:
        """Call the function that multiplies patches."""
        for site in chosen:
            call = draft.copies[site.call]
            given = [argument(call, place, name) for place, name in enumerate(("input", "weight", "bias"))]
            call.target, call.kwargs = linear_of_patches, {}
            call.args = (*given, channels_order(example(site.call)))

    def about(self, site: ConvolutionSite) -> str:
        """Of what."""
        channels = site.given.shape[1]
        return f"patches of {' × '.join(map(str, site.kernel))}, {channels} channels"


def _kernel(node: Node) -> tuple[int, ...] | None:
    """The size of the kernel, where patches lie beside each other; None for any other op."""
    of = Convolved.of(node)
    if of is None or of.groups != 1 or of.stride != of.kernel:
        return None
    dims = len(of.kernel)
    plain = of.padding == (0,) * dims and of.dilation == (1,) * dims
    return of.kernel if plain and math.prod(of.kernel) > 1 else None
