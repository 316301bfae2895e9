"""Other ways to run one anchor under ATen: a matmul padded to aligned sizes, a convolution in channels_last, attention
by a kernel of choice. Each gives what the plain operator gives, in the strides that the graph declares.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import _disable_current_modes

from fuseplan.errors import ExecutorError
from fuseplan.executors.base import Compiled
from fuseplan.executors.flat import flatten
from fuseplan.graph import Graph, Op, TensorType
from fuseplan.judge.inputs import make_inputs

ALIGNMENT = 16
"""Bytes that a row of a matrix has to be a multiple of, or tensor cores read it element by element."""

_KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
_MATMULS = {"aten.mm.default": torch.mm, "aten.bmm.default": torch.bmm}


def anchor_variants(region: Graph) -> tuple[str, ...]:
    """The ways to run a region that is one anchor, besides the plain one; none for any other region."""
    if len(region.ops) != 1 or len(region.outputs) != 1 or not isinstance(region.ops[0].outputs[0].type, TensorType):
        return ()
    op = region.ops[0]
    if op.target in (*_MATMULS, "aten.addmm.default"):
        return ("padded",) if _misaligned(op, region) else ()
    if op.target == "aten.convolution.default":
        kind = op.outputs[0].type
        return ("channels_last",) if isinstance(kind, TensorType) and len(kind.shape) == 4 else ()
    if op.target == "fuseplan.sdpa.default":
        return tuple(_KERNELS)
    return ()


def compile_anchor(region: Graph, variant: str, gm: torch.fx.GraphModule) -> Compiled:
    """The one op of `region` run the way that `variant` says; `gm` is the region as FX."""
    node = next(node for node in gm.graph.nodes if node.op == "call_function")
    kind = region.ops[0].outputs[0].type
    assert isinstance(kind, TensorType)
    plain: Any = node.target
    run = _runner(region.ops[0], variant)
    stride = None if any(isinstance(s, str) for s in kind.stride) else kind.stride

    def with_declared_strides(*args: Any, **kwargs: Any) -> Tensor:
        return _restride(run(plain, *args, **kwargs), stride)

    node.target = with_declared_strides
    call = flatten(gm)
    if variant in _KERNELS:
        _try(region, call, variant)
    return call


def _try(region: Graph, call: Compiled, variant: str) -> None:
    """Whether a kernel takes these inputs on this device is something only the kernel knows."""
    with _disable_current_modes(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch explains each refusal at length
        try:
            call(make_inputs(region, 0))
        except RuntimeError as error:
            raise ExecutorError(
                f"the {variant} kernel of attention refuses this: {str(error).splitlines()[0]}"
            ) from error


def _runner(op: Op, variant: str) -> Callable[..., Tensor]:
    if variant == "channels_last":
        return _channels_last
    if variant == "padded":
        return _padded_addmm if op.target == "aten.addmm.default" else _padded(_MATMULS[op.target])
    return _attention(_KERNELS[variant])


def _restride(value: Tensor, stride: tuple[Any, ...] | None) -> Tensor:
    """Symbolic strides are those of a dense tensor in the order of its dimensions."""
    if stride is None:
        return value.contiguous()
    if value.stride() == stride:
        return value
    return torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device).copy_(value)


def _misaligned(op: Op, region: Graph) -> bool:
    """Whether some operand or the result has rows that are no multiple of 16 bytes; never for sizes yet unknown."""
    kinds = [region.types[name] for name in op.reads] + [value.type for value in op.outputs]
    matrices = [kind for kind in kinds if isinstance(kind, TensorType) and len(kind.shape) >= 2]
    if any(kind.dtype not in ("float16", "bfloat16", "float32") for kind in matrices):
        return False
    width = 4 if matrices[0].dtype == "float32" else 2
    sizes = {size for kind in matrices for size in kind.shape[-2:]}
    return all(isinstance(s, int) and s > 0 for s in sizes) and any(s * width % ALIGNMENT for s in sizes)


def _up(size: int, width: int) -> int:
    step = ALIGNMENT // width
    return -(-size // step) * step


def _pad(value: Tensor, rows: int, columns: int) -> Tensor:
    """Zeros below and to the right; a transposed matrix stays transposed, so that its long rows stay long."""
    if value.shape[-2:] == (rows, columns):
        return value
    if value.stride(-2) == 1 and value.stride(-1) != 1:
        return _pad(value.mT, columns, rows).mT
    return F.pad(value, (0, columns - value.shape[-1], 0, rows - value.shape[-2]))


def _aligned(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    width = a.element_size()
    rows, inner, columns = (_up(size, width) for size in (a.shape[-2], a.shape[-1], b.shape[-1]))
    return _pad(a, rows, inner), _pad(b, inner, columns)


def _padded(multiply: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(plain: object, a: Tensor, b: Tensor) -> Tensor:
        result = multiply(*_aligned(a, b))
        return result[..., : a.shape[-2], : b.shape[-1]]

    return run


def _padded_addmm(plain: object, bias: Tensor, a: Tensor, b: Tensor, **scales: Any) -> Tensor:
    wide_a, wide_b = _aligned(a, b)
    rows, columns = a.shape[0], b.shape[1]
    wide = F.pad(bias.expand(rows, columns), (0, wide_b.shape[1] - columns, 0, wide_a.shape[0] - rows))
    if bias.dim() < 2 and wide_a.shape[0] == rows:  # a bias of one row stays one
        wide = F.pad(bias.expand(columns), (0, wide_b.shape[1] - columns))
    return torch.addmm(wide, wide_a, wide_b, **scales)[:rows, :columns]


def _channels_last(plain: Callable[..., Tensor], x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    layout = torch.channels_last
    return plain(x.contiguous(memory_format=layout), weight.contiguous(memory_format=layout), *rest)


def _attention(kernel: SDPBackend) -> Callable[..., Tensor]:
    def run(
        plain: object,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        causal: bool,
        scale: float | None,
        gqa: bool,
    ) -> Tensor:
        with sdpa_kernel(kernel):
            return F.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=gqa)

    return run
