"""Sums in another order than eager's: on both sides of a product what is summed over is turned round, and sums of many terms are added up as a
loop does.

A loop's error is no other order's: where all terms are alike, as the gradients of a mean are, each step rounds the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
LANES = 8
"""So many sums a processor adds up beside each other, where terms lie beside each other in memory."""
IN_ONE = 2**14
"""So many terms one loop adds up at most: Inductor begins another one after 4,096, each by so many threads."""


def _product(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    left, right = args[0].flip(-1), args[1].flip(-2)
    return func(left, right, *args[2:], **kwargs)


def _sum_of_product(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    left, right = args[1].flip(-1), args[2].flip(-2)
    return func(args[0], left, right, *args[3:], **kwargs)


def _total(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = args[0]
    every = list(range(given.dim()))
    dims = args[1] if len(args) > 1 and args[1] else every
    dims = [dim % max(1, given.dim()) for dim in (dims if isinstance(dims, (list, tuple)) else [dims])]
    if not every:
        return func(*args, **kwargs)
    if not _loops(given) or kwargs.get("dtype") is not None:
        return func(given.flip(dims), *args[1:], **kwargs)
    found = as_in_a_loop(given, dims)
    if "mean" in func.name():
        found /= given.numel() // max(1, found.numel())
    return found.view(func(torch.empty_like(given, device="meta"), *args[1:], **kwargs).shape)


def _loops(given: Tensor) -> bool:
    """Whether compilers add up such numbers one after the other: on a GPU many threads do so, each with a few."""
    return given.device.type == "cpu" and given.dtype is torch.float32 and given.numel() > 0


def as_in_a_loop(given: Tensor, dims: Sequence[int]) -> Tensor:
    """The sum over `dims`, one term after the other; where terms lie beside each other in memory, or are many, in several loops.

    >>> terms = torch.full((4096, 2), 0.1)
    >>> looped = torch.zeros(2)
    >>> for row in terms:
    ...     looped += row
    >>> torch.equal(as_in_a_loop(terms, [0]), looped)
    True
    """
    kept = [dim for dim in range(given.dim()) if dim not in dims]
    nearest = min(range(given.dim()), key=lambda dim: (given.stride(dim), -dim))
    terms = given.permute(*dims, *kept).flatten(0, len(dims) - 1).flatten(1) if kept else given.reshape(-1, 1)
    loops = LANES if nearest in dims else 1
    loops *= -(-len(terms) // (loops * IN_ONE))
    steps = -(-len(terms) // loops)
    if loops * steps > len(terms):
        terms = torch.cat([terms, terms.new_zeros(loops * steps - len(terms), terms.shape[1])])
    sums = terms.new_zeros(loops, terms.shape[1])
    for row in terms.reshape(loops, steps, -1).unbind(1):
        sums += row
    return sums.sum(0).view([given.shape[dim] for dim in kept])


def _convolution(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value, weight, groups = args[0], args[1], args[8]
    if groups == 1 and not args[6]:
        value, weight = value.flip(1), weight.flip(1)
    return func(value, weight, *args[2:], **kwargs)


def _convolution_backward(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The gradients of weight and bias add up over the batch, that of the bias over all places, too."""
    found = func(args[0].flip(0), args[1].flip(0), *args[2:], **kwargs)
    bias = found[2]
    if bias is not None and _loops(args[0]):
        bias = as_in_a_loop(args[0], [dim for dim in range(args[0].dim()) if dim != 1])
    return None if found[0] is None else found[0].flip(0), found[1], bias


def _layer_norm_backward(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    grad, given, shape, mean, scale = args[:5]
    found = func(*args, **kwargs)
    if not _loops(grad):
        return found
    return _affine(found, grad, (given - mean) * scale, list(range(given.dim() - len(shape))))


def _batch_norm_backward(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    grad, given, running, saved, (trains, eps) = args[0], args[1], args[3:5], args[5:7], args[7:9]
    found = func(*args, **kwargs)
    if not _loops(grad):
        return found
    mean, scale = saved if trains else (running[0], (running[1] + eps).rsqrt())
    dims = [dim for dim in range(given.dim()) if dim != 1]
    by_channel = [-1 if dim == 1 else 1 for dim in range(given.dim())]
    return _affine(found, grad, (given - mean.view(by_channel)) * scale.view(by_channel), dims)


def _group_norm_backward(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    grad, given, mean, scale, count, channels, groups = (*args[:4], args[5], args[6], args[8])
    found = func(*args, **kwargs)
    if not _loops(grad):
        return found
    mean, scale = (one.view(count, groups, 1, 1) for one in (mean, scale))
    normed = (given.reshape(count, groups, channels // groups, -1) - mean) * scale
    return _affine(found, grad.reshape(count, channels, -1), normed.view(count, channels, -1), [0, 2])


def _affine(found: Any, grad: Tensor, normed: Tensor, dims: Sequence[int]) -> Any:
    """The gradients of a norm, those of its weight and bias added up in a loop."""
    if not dims:
        return found
    weight = None if found[1] is None else as_in_a_loop(grad * normed, dims)
    bias = None if found[2] is None else as_in_a_loop(grad, dims)
    return found[0], weight, bias


REORDERED: Mapping[Any, Callable[..., Any]] = {
    aten.mm.default: _product,
    aten.bmm.default: _product,
    aten.addmm.default: _sum_of_product,
    aten.baddbmm.default: _sum_of_product,
    aten.sum.default: _total,
    aten.sum.dim_IntList: _total,
    aten.mean.default: _total,
    aten.mean.dim: _total,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.native_group_norm_backward.default: _group_norm_backward,
}
"""What takes the place of an operator, called with it and with its arguments."""
