"""Convolutions of which each channel has a kernel of its own: there is little to compute, and libraries take several times as long as
memory would, forward and backward. They go to Triton kernels of our own, behind an operator that no compiler looks into.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

import fuseplan.capture.fx.depthwise  # noqa: F401 -- it defines the operators
from fuseplan.capture.fx.own_kernels import DTYPES, no_kernels
from fuseplan.rewrites.base import Draft, Kind, Site, digest_of
from fuseplan.rewrites.convolved import Convolved
from fuseplan.rewrites.order import channels_order, in_order
from fuseplan.rewrites.reading import argument

SIZES = range(2, 8)
"""Of kernels: of a larger one, too little stays in registers."""
STRIDES = range(1, 4)
LEAST_CHANNELS = 8
"""Of fewer, what a kernel reads at once is mostly nobody's: there a convolution is left as it is without a race."""
_MEANING = "1"
"""Another one, should the function ever do something else: torch counts it in."""


class _Given(torch.autograd.Function):
    """What is given, whose gradient lies as it does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: tuple[int, ...]) -> Tensor:
        ctx.order = order
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> tuple[Tensor, None]:
        return in_order(given[0], ctx.order), None


def convolution_by_channel(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int,
    padding: int,
    given: tuple[int, ...],
    order: tuple[int, ...],
) -> Tensor:
    """The convolution of what lies in memory in the order `given`; what it gives lies in `order`.

    What autocast would do is done here: it does not reach an operator of ours.

    >>> x, weight = torch.arange(9.0).view(1, 1, 3, 3), torch.ones(1, 1, 3, 3)
    >>> convolution_by_channel(x, weight, None, 2, 1, (0, 1, 2, 3), (0, 1, 2, 3)).tolist()
    [[[[8.0, 12.0], [20.0, 24.0]]]]
    """
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    image: Any = _Given.apply(x, given) if x.requires_grad else x  # type: ignore[no-untyped-call]
    found: Tensor = torch.ops.fuseplan.depthwise(in_order(image, (0, 2, 3, 1)), weight, bias, stride, padding)
    return in_order(found, order)


@dataclass(frozen=True, eq=False)
class DepthwiseSite(Site):
    """A convolution of which each channel has a kernel of its own."""

    of: Convolved = field(repr=False)


class Depthwise(Kind[DepthwiseSite]):
    """Convolutions channel by channel."""

    noun = "depthwise convolution"
    doubtful = False
    has_own_gradients = True
    functions: Mapping[str, str] = {f"{convolution_by_channel.__module__}.convolution_by_channel": _MEANING}

    def find(self, gm: GraphModule) -> Sequence[DepthwiseSite]:
        """Those of images whose channels do not meet."""
        found = list[DepthwiseSite]()
        for place, node in enumerate(gm.graph.nodes):
            convolved = Convolved.of(node)
            if convolved is not None and _is_by_channel(convolved):
                found.append(DepthwiseSite(len(found), digest_of("depthwise", {place: node}), convolved))
        return found

    def nodes(self, site: DepthwiseSite) -> Collection[Node]:
        """Its call."""
        return (site.of.call,)

    def ways(self, site: DepthwiseSite) -> Sequence[str]:
        """By kernels of our own."""
        return ("triton",)

    def refusal(self, site: DepthwiseSite, way: str) -> str | None:
        """What the kernels do not do, or what would be laid out otherwise."""
        if way not in self.ways(site):
            return f"there is no depthwise variant {way!r}"
        return _no_kernel(site.of) or _no_layout(site.of)

    def preferred(self, site: DepthwiseSite) -> str | None:
        """On a GPU, where there are enough channels; elsewhere it is the same."""
        return super().preferred(site) if _is_worth_it(site.of) else None

    def rivals(self, site: DepthwiseSite) -> Mapping[str, str]:
        """Where nothing else would run, or there are too few channels, there is nothing to try."""
        return super().rivals(site) if _is_worth_it(site.of) else {}

    def apply(self, draft: Draft, chosen: Mapping[DepthwiseSite, str]) -> None:
        """Call the function that has kernels of our own."""
        for site in chosen:
            call, of = draft.copies[site.of.call], site.of
            given = [argument(call, place, name) for place, name in enumerate(("input", "weight", "bias"))]
            call.target, call.kwargs = convolution_by_channel, {}
            call.args = (*given, of.stride[0], of.padding[0], channels_order(of.given), channels_order(of.result))

    def about(self, site: DepthwiseSite) -> str:
        """Of what."""
        of = site.of
        return f"{' × '.join(map(str, of.kernel))} over {of.given.shape[1]} channels, in steps of {of.stride[0]}"


def _is_worth_it(of: Convolved) -> bool:
    return bool(of.given.device.type == "cuda" and of.given.shape[1] >= LEAST_CHANNELS)


def _is_by_channel(of: Convolved) -> bool:
    """Whether it is of images, and each channel becomes one."""
    channels = of.given.shape[1]
    return len(of.kernel) == 2 and channels == of.groups == of.weight.shape[0] and of.weight.shape[1] == 1


def _no_kernel(of: Convolved) -> str | None:
    """What no kernel of ours does."""
    if any(type(size) is not int for size in of.given.shape[1:]):
        return "its sizes are known at run time only"
    if of.padding == ("same", "same"):
        return "there is more padding on one side than on the other"
    if any(type(one) is not int for one in (*of.stride, *of.padding, *of.dilation)):
        return "how it goes over the image is known at run time only"
    if any(len(set(each)) > 1 for each in (of.kernel, of.stride, of.padding)):
        return "it is not the same in both directions"
    size, stride, padding = of.kernel[0], of.stride[0], of.padding[0]
    if set(of.dilation) != {1} or size not in SIZES or stride not in STRIDES or padding >= size:
        return "there is no kernel for its sizes"
    if not all(one.dtype.is_floating_point for one in (of.given, of.weight)):
        return "the kernels compute in none of its dtypes"
    if of.given.device.type == "cuda":
        if not {of.given.dtype, of.weight.dtype} <= set(DTYPES):
            return "the kernels compute in none of its dtypes"
        return no_kernels(of.given.device)
    return None


def _no_layout(of: Convolved) -> str | None:
    """What would not lie in memory as it does, so that a program or a caller would see it."""
    if channels_order(of.given) is None or channels_order(of.result) is None:
        return "it does not lie in one piece"
    # With such weights all of it is computed with channels last, and the gradient of the image lies so.
    last = of.weight.stride(1) == 1
    otherwise = last and of.given.requires_grad and channels_order(of.given) != (0, 2, 3, 1)
    return "gradients would be laid out otherwise" if otherwise or not of.weight.is_contiguous() else None
