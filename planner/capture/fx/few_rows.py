"""Matmuls of few rows, as in a step of decoding, with matrices that read the same rows, as one operator of fuseplan's own: a Triton kernel
that reads each matrix once, where there is a GPU for it, and otherwise what PyTorch has.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fuseplan.capture.fx.composites import LIBRARY
from fuseplan.capture.fx.own_kernels import compiles_ahead, head_start, processors_of, run_here
from fuseplan.kernels.tiling import ALIGNED, MOST_ROWS, Tiling

DTYPES = (torch.bfloat16, torch.float16)
"""What the kernel takes: it multiplies by matrix units, which round float32."""
LIBRARY.define("few_rows(Tensor rows, Tensor[] weights, Tensor[] biases, int parts) -> Tensor")


def _tiling(rows: Tensor, weights: Sequence[Tensor], parts: int) -> Tiling:
    columns = tuple([weight.shape[0] for weight in weights])
    return Tiling.of(rows.numel() // rows.shape[-1], rows.shape[-1], columns, processors_of(rows.device), parts)


def _few_rows(rows: Tensor, weights: list[Tensor], biases: list[Tensor], parts: int) -> Tensor:
    result = _fake(rows, weights, biases, parts)
    if not _takes(rows, weights, biases):
        found = _by_torch(rows, weights, biases)
        if parts == 1:
            return result.copy_(found)
        result.zero_()[0].copy_(found)
        return result
    from fuseplan.kernels import few_rows

    flat = rows.reshape(-1, rows.shape[-1])
    given = flat if flat.stride(1) == 1 and flat.stride(0) % ALIGNED == 0 else flat.contiguous()
    few_rows.multiply(given, weights, biases, result, _tiling(rows, weights, parts))
    return result


def _takes(rows: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> bool:
    """Whether the kernel can be given these: rows of matrices begin where it can read them, too."""
    if not run_here(rows) or rows.dtype not in DTYPES or rows.numel() > MOST_ROWS * rows.shape[-1]:
        return False
    for one in (*weights, *biases):
        if one.dtype != rows.dtype or one.device != rows.device:
            return False
    if any(bias.stride(0) != 1 for bias in biases):
        return False
    for weight in weights:
        step, along = weight.stride()
        if along != 1 or step % ALIGNED or weight.data_ptr() % 16:
            return False
    return True


def _by_torch(rows: Tensor, weights: list[Tensor], biases: list[Tensor]) -> Tensor:
    added: Sequence[Tensor | None] = biases or [None] * len(weights)
    return torch.cat([F.linear(rows, weight, bias) for weight, bias in zip(weights, added, strict=True)], -1)


def _fake(rows: Tensor, weights: list[Tensor], biases: list[Tensor], parts: int) -> Tensor:
    """Sums of which parts are to be added are in float32, or as precise as what is given."""
    shape = (*rows.shape[:-1], sum(weight.shape[0] for weight in weights))
    if parts == 1:
        return rows.new_empty(shape)
    return rows.new_empty((parts, *shape), dtype=torch.promote_types(rows.dtype, torch.float32))


def _traced(rows: Tensor, weights: list[Tensor], biases: list[Tensor], parts: int) -> Tensor:
    result = _fake(rows, weights, biases, parts)
    if rows.dtype in DTYPES and compiles_ahead(rows, *weights):
        with head_start():
            from fuseplan.kernels import few_rows, launch

            tiling = _tiling(rows, weights, parts)
            flat = rows.new_empty((rows.numel() // rows.shape[-1], rows.shape[-1]))
            few_rows.multiply(flat, weights, biases, result, tiling, launch.compile_ahead)
    return result


LIBRARY.impl("few_rows", _few_rows, "CompositeExplicitAutograd")
torch.library.register_fake("fuseplan::few_rows", _traced, lib=LIBRARY)
