"""Convolutions of which each channel has a kernel of its own, as operators of fuseplan's own: Triton kernels where there is a GPU for
them, and otherwise what PyTorch has. Images lie with their channels last, before and behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fuseplan.capture.fx.composites import LIBRARY
from fuseplan.capture.fx.own_kernels import compiles_ahead, head_start, run_here

if TYPE_CHECKING:
    from fuseplan.kernels.depthwise import ImageSizes

_LAST = torch.channels_last

LIBRARY.define("depthwise(Tensor input, Tensor weight, Tensor? bias, int stride, int padding) -> Tensor")
LIBRARY.define(
    "depthwise_input(Tensor grad, Tensor weight, SymInt height, SymInt width, int stride, int padding) -> Tensor"
)
LIBRARY.define("depthwise_weight(Tensor grad, Tensor input, int size, int stride, int padding) -> Tensor")


def _sizes(image: Tensor, result: Tensor, size: int, stride: int, padding: int) -> ImageSizes:
    from fuseplan.kernels.depthwise import ImageSizes  # it brings Triton

    return ImageSizes(*image.shape[:4], *result.shape[2:4], size, stride, padding)  # type: ignore[call-arg]


def _depthwise(input: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    result = _depthwise_fake(input, weight, bias, stride, padding)
    if not run_here(result):
        return result.copy_(torch.conv2d(input, weight, bias, stride, padding, 1, input.shape[1]))
    from fuseplan.kernels import depthwise

    image = input.contiguous(memory_format=_LAST)
    sizes = _sizes(image, result, weight.shape[-1], stride, padding)
    depthwise.forward(image, weight, None if bias is None else bias.contiguous(), result, sizes)
    return result


def _depthwise_fake(input: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    rows, columns = ((length + 2 * padding - weight.shape[-1]) // stride + 1 for length in input.shape[2:])
    return _laid_out(input, (input.shape[0], input.shape[1], rows, columns))


def _depthwise_traced(input: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    result = _depthwise_fake(input, weight, bias, stride, padding)
    if compiles_ahead(input, result):
        with head_start():
            from fuseplan.kernels import depthwise, launch

            sizes = _sizes(input, result, weight.shape[-1], stride, padding)
            depthwise.forward(input, weight, bias, result, sizes, launch.compile_ahead)
    return result


def _of_input(grad: Tensor, weight: Tensor, height: int, width: int, stride: int, padding: int) -> Tensor:
    result = _of_input_fake(grad, weight, height, width, stride, padding)
    if not run_here(result) or not grad.numel():
        return result.copy_(_by_torch(grad, result, weight, stride, padding, (True, False))[0])
    from fuseplan.kernels import depthwise

    given = grad.contiguous(memory_format=_LAST)
    depthwise.of_input(given, weight, result, _sizes(result, grad, weight.shape[-1], stride, padding))
    return result


def _of_input_fake(grad: Tensor, weight: Tensor, height: int, width: int, stride: int, padding: int) -> Tensor:
    return _laid_out(grad, (grad.shape[0], grad.shape[1], height, width))


def _of_input_traced(grad: Tensor, weight: Tensor, height: int, width: int, stride: int, padding: int) -> Tensor:
    result = _of_input_fake(grad, weight, height, width, stride, padding)
    if compiles_ahead(grad, result):
        with head_start():
            from fuseplan.kernels import depthwise, launch

            sizes = _sizes(result, grad, weight.shape[-1], stride, padding)
            depthwise.of_input(grad, weight, result, sizes, launch.compile_ahead)
    return result


def _of_weight(grad: Tensor, input: Tensor, size: int, stride: int, padding: int) -> Tensor:
    result = _of_weight_fake(grad, input, size, stride, padding)
    if not run_here(grad):
        return result.copy_(_by_torch(grad, input, result, stride, padding, (False, True))[1])
    from fuseplan.kernels import depthwise

    given, image = (one.contiguous(memory_format=_LAST) for one in (grad, input))
    depthwise.of_weight(given, image, result, _sizes(image, grad, size, stride, padding))
    return result


def _of_weight_fake(grad: Tensor, input: Tensor, size: int, stride: int, padding: int) -> Tensor:
    return grad.new_empty((grad.shape[1], 1, size, size))


def _of_weight_traced(grad: Tensor, input: Tensor, size: int, stride: int, padding: int) -> Tensor:
    result = _of_weight_fake(grad, input, size, stride, padding)
    if compiles_ahead(grad, input):
        with head_start():
            from fuseplan.kernels import depthwise, launch

            depthwise.of_weight(grad, input, result, _sizes(input, grad, size, stride, padding), launch.compile_ahead)
    return result


def _by_torch(grad: Tensor, image: Tensor, weight: Tensor, stride: int, padding: int, wanted: tuple[bool, bool]) -> Any:
    return torch.ops.aten.convolution_backward(
        grad, image, weight, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], grad.shape[1], [*wanted, False]
    )


def _laid_out(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """With channels last, whatever is given; no view, which could not be written to behind an operator with a gradient."""
    _, channels, rows, columns = shape
    return like.new_empty_strided(shape, (rows * columns * channels, 1, columns * channels, channels))


for _name, _body, _fake in (
    ("depthwise", _depthwise, _depthwise_traced),
    ("depthwise_input", _of_input, _of_input_traced),
    ("depthwise_weight", _of_weight, _of_weight_traced),
):
    LIBRARY.impl(_name, _body, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fuseplan::{_name}", _fake, lib=LIBRARY)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.rest = inputs[3:]


def _gradients(ctx: Any, grad: Tensor) -> Any:
    input, weight = ctx.saved_tensors
    grad = grad.contiguous(memory_format=_LAST)  # where a compiler sees it, whose kernel before it may write it so
    ops, wanted = torch.ops.fuseplan, ctx.needs_input_grad
    of_input = ops.depthwise_input(grad, weight, *input.shape[2:], *ctx.rest) if wanted[0] else None
    of_weight = ops.depthwise_weight(grad, input, weight.shape[-1], *ctx.rest) if wanted[1] else None
    return of_input, of_weight, grad.sum((0, 2, 3)) if wanted[2] else None, None, None


def _save_of_input(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.rest = inputs[4:]


def _gradients_of_input(ctx: Any, given: Tensor) -> Any:
    """It is linear in each of what it is given, and so the gradient of one is an operator of these of the other."""
    grad, weight = ctx.saved_tensors
    ops, wanted = torch.ops.fuseplan, ctx.needs_input_grad
    of_grad = ops.depthwise(given, weight, None, *ctx.rest) if wanted[0] else None
    of_weight = ops.depthwise_weight(grad, given, weight.shape[-1], *ctx.rest) if wanted[1] else None
    return of_grad, of_weight, None, None, None, None


def _gradients_of_weight(ctx: Any, given: Tensor) -> Any:
    grad, input = ctx.saved_tensors
    ops, wanted = torch.ops.fuseplan, ctx.needs_input_grad
    of_grad = ops.depthwise(input, given, None, *ctx.rest) if wanted[0] else None
    of_input = ops.depthwise_input(grad, given, *input.shape[2:], *ctx.rest) if wanted[1] else None
    return of_grad, of_input, None, None, None


for _name, _formula, _saves in (
    ("depthwise", _gradients, _save),
    ("depthwise_input", _gradients_of_input, _save_of_input),
    ("depthwise_weight", _gradients_of_weight, _save),
):
    torch.library.register_autograd(f"fuseplan::{_name}", _formula, setup_context=_saves, lib=LIBRARY)
