"""Matmuls of few rows with one to four matrices that read them: what takes time is to read the matrices, once.

A program has all rows, unless these are many, and a few columns of one matrix. Where that makes too few programs to read as fast as memory can be read, features
are split between them, too, and each gives a part of the sums: whoever reads these adds them up, in the order in which they lie.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from fuseplan.kernels.launch import Launch, launch
from fuseplan.kernels.tiling import ALIGNED, MOST_TOGETHER, Tiling

WARPS = 4
READ_AHEAD = 16 * 1024
"""So many elements of a matrix are on their way to a program at once: its stages share what a multiprocessor has."""


@triton.jit(do_not_specialize=["n0", "n1", "n2", "n3", "rows", "each"])
def _multiply(
    x, w0, w1, w2, w3, b0, b1, b2, b3, y, n0, n1, n2, n3, r0, r1, r2, r3, rows, features, x_row, each,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr, BIASED: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """So many rows with so many columns of one matrix, over some of the features."""
    tile, part = tl.program_id(0), tl.program_id(1)
    second = tl.cdiv(n0, COLUMNS)
    third = second + tl.cdiv(n1, COLUMNS)
    fourth = third + tl.cdiv(n2, COLUMNS)
    weight, bias, count, step, first, behind = w0, b0, n0, r0, 0, 0
    if tile >= second:
        weight, bias, count, step, first, behind = w1, b1, n1, r1, second, n0
    if tile >= third:
        weight, bias, count, step, first, behind = w2, b2, n2, r2, third, n0 + n1
    if tile >= fourth:
        weight, bias, count, step, first, behind = w3, b3, n3, r3, fourth, n0 + n1 + n2
    # what is known of them is lost where one of several is chosen
    weight, step = tl.multiple_of(weight, 16), tl.multiple_of(step, STEP)
    column = (tile - first) * COLUMNS + tl.arange(0, COLUMNS)
    inside, row = column < count, tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    real = row < rows
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    if BIASED:  # noqa: SIM102 -- it alone is known when this is compiled
        if part == 0:
            sums += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)[None, :]
    begin = part * each * BLOCK
    for start in range(begin, tl.minimum(begin + each * BLOCK, features), BLOCK):
        at = start + tl.arange(0, BLOCK)
        of_weight = weight + column.to(tl.int64)[None, :] * step + at[:, None]
        of_x = x + row.to(tl.int64)[:, None] * x_row + at[None, :]
        if EVEN:
            matrix = tl.load(of_weight, mask=inside[None, :], other=0.0)
            given = tl.load(of_x, mask=real[:, None], other=0.0)
        else:
            matrix = tl.load(of_weight, mask=inside[None, :] & (at < features)[:, None], other=0.0)
            given = tl.load(of_x, mask=real[:, None] & (at < features)[None, :], other=0.0)
        sums = tl.dot(given, matrix, sums)
    out = y + (part * rows + row).to(tl.int64)[:, None] * (n0 + n1 + n2 + n3) + behind + column[None, :]
    tl.store(out, sums.to(y.dtype.element_ty), mask=real[:, None] & inside[None, :])


def multiply(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], y: Tensor, tiling: Tiling, launch: Launch = launch
) -> None:
    """Into `y`: a part behind the other, each with all columns of a row beside each other. A matrix has a row for each column of the
    result, with its features beside each other.
    """
    (rows, features), absent = x.shape, MOST_TOGETHER - len(weights)
    columns, steps = [weight.shape[0] for weight in weights], [weight.stride(0) for weight in weights]
    added = biases or [x] * len(weights)
    told = (
        x, *weights, *[weights[0]] * absent, *added, *[added[0]] * absent, y,
        *columns, *[0] * absent, *steps, *[steps[0]] * absent, rows, features, x.stride(0), tiling.blocks_each,
    )  # fmt: skip
    meant = {
        "ROWS": tiling.rows, "COLUMNS": tiling.columns, "BLOCK": tiling.block,
        "EVEN": features % tiling.block == 0, "BIASED": bool(biases), "STEP": ALIGNED,
        "num_warps": WARPS, "num_stages": min(5, max(2, READ_AHEAD // (tiling.columns * tiling.block))),
    }  # fmt: skip
    grid = (sum(-(-n // tiling.columns) for n in columns), tiling.parts, -(-rows // tiling.rows))
    launch(_multiply, grid, told, meant)
