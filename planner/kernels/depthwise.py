"""Convolutions of which each channel has a kernel of its own, and their gradients, with channels last in memory.

A thread has a few channels of a row, and walks along it: what it has read serves all outputs that it touches, and sums stay in
registers. They are in float32, and are added in an order that is always the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from fuseplan.kernels.launch import Launch, launch

WARPS = 4
EACH = 4
"""Channels of a thread."""
PROGRAMS_EACH = 4
"""So many for each multiprocessor add up the gradient of weights, at most."""
_BLOCKS = {64: 1.0, 32: 1.4, 16: 1.6}
"""Channels of a program, and how long it takes for each of them beside where it has 64, as layers of three models took on an H100."""
_BLOCKS_OF_WEIGHT = {64: 1.0, 32: 0.98, 16: 1.6}


@triton.jit(do_not_specialize=["rows_all", "height", "width", "groups", "out_height", "out_width"])
def _forward(
    x, weight, bias, y, rows_all, height, width, groups, out_height, out_width,
    SIZE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    TILE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """So many rows of outputs, TILE of each."""
    channels = groups * STEP  # which tells what it is a multiple of
    tiles = tl.cdiv(out_width, TILE)
    place = tl.program_id(0)
    first = place % tiles * TILE
    rows = place // tiles * ROWS + tl.arange(0, ROWS)
    image, top = rows // out_height, rows % out_height * STRIDE - PADDING
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = c < channels
    sums = (tl.zeros((ROWS, BLOCK), tl.float32),) * TILE
    for i in range(SIZE):
        h = top + i
        seen = (rows < rows_all) & (h >= 0) & (h < height)
        start = x + ((image * height + h).to(tl.int64) * width * channels)[:, None] + c[None, :]
        taps = ()
        for j in tl.static_range(SIZE):
            tap = tl.load(weight + (i * SIZE + j) * channels + c, mask=inside, other=0.0)
            taps = taps + (tap.to(tl.float32)[None, :],)
        for at in tl.static_range((TILE - 1) * STRIDE + SIZE):
            w = first * STRIDE + at - PADDING
            mask = (seen & (w >= 0) & (w < width))[:, None] & inside[None, :]
            value = tl.load(start + w * channels, mask=mask, other=0.0).to(tl.float32)
            for t in tl.static_range(TILE):
                if at - t * STRIDE >= 0 and at - t * STRIDE < SIZE:
                    sums = sums[:t] + (sums[t] + value * taps[at - t * STRIDE],) + sums[t + 1 :]
    if bias is not None:
        add = tl.load(bias + c, mask=inside, other=0.0).to(tl.float32)[None, :]
    out = y + (rows.to(tl.int64) * out_width * channels)[:, None] + c[None, :]
    for t in tl.static_range(TILE):
        found = sums[t]
        if bias is not None:
            found = found + add
        mask = ((rows < rows_all) & (first + t < out_width))[:, None] & inside[None, :]
        tl.store(out + (first + t) * channels, found.to(y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows_all", "height", "width", "groups", "out_height", "out_width"])
def _of_input(
    grad, weight, y, rows_all, height, width, groups, out_height, out_width,
    SIZE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    TILE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr, LOWEST: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """So many rows of inputs that meet the same rows of the kernel, TILE of each; COUNT outputs from LOWEST on have read these."""
    channels = groups * STEP
    tiles = tl.cdiv(width, TILE)
    each = tl.cdiv(height, STRIDE)
    place = tl.program_id(0)
    turn = place % STRIDE
    first = place // STRIDE % tiles * TILE
    rows = place // STRIDE // tiles * ROWS + tl.arange(0, ROWS)
    image, h = rows // each, rows % each * STRIDE + turn
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = c < channels
    sums = (tl.zeros((ROWS, BLOCK), tl.float32),) * TILE
    for i in range((turn + PADDING) % STRIDE, SIZE, STRIDE):
        back = h + (PADDING - i)
        seen = (rows < rows_all) & (back >= 0) & (back // STRIDE < out_height)
        start = grad + ((image * out_height + back // STRIDE).to(tl.int64) * out_width * channels)[:, None] + c[None, :]
        taps = ()
        for j in tl.static_range(SIZE):
            tap = tl.load(weight + (i * SIZE + j) * channels + c, mask=inside, other=0.0)
            taps = taps + (tap.to(tl.float32)[None, :],)
        for at in tl.static_range(COUNT):
            w = first // STRIDE + LOWEST + at
            mask = (seen & (w >= 0) & (w < out_width))[:, None] & inside[None, :]
            value = tl.load(start + w * channels, mask=mask, other=0.0).to(tl.float32)
            for t in tl.static_range(TILE):
                if t + PADDING - (LOWEST + at) * STRIDE >= 0 and t + PADDING - (LOWEST + at) * STRIDE < SIZE:
                    sums = sums[:t] + (sums[t] + value * taps[t + PADDING - (LOWEST + at) * STRIDE],) + sums[t + 1 :]
    out = y + ((image * height + h).to(tl.int64) * width * channels)[:, None] + c[None, :]
    for t in tl.static_range(TILE):
        mask = ((rows < rows_all) & (h < height) & (first + t < width))[:, None] & inside[None, :]
        tl.store(out + (first + t) * channels, sums[t].to(y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows_all", "height", "width", "groups", "out_height", "out_width", "blocks"])
def _of_weight(
    grad, x, parts, rows_all, height, width, groups, out_height, out_width, blocks,
    SIZE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
    TILE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """One row of the kernel: what some blocks of rows of outputs add to it."""
    channels = groups * STEP
    place = tl.program_id(0)
    i, chunk = place % SIZE, place // SIZE
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = c < channels
    sums = (tl.zeros((ROWS, BLOCK), tl.float32),) * SIZE
    for block in range(blocks):
        rows = (chunk * blocks + block) * ROWS + tl.arange(0, ROWS)
        image, h = rows // out_height, rows % out_height * STRIDE - PADDING + i
        seen = (rows < rows_all) & (h >= 0) & (h < height)
        of_grad = grad + (rows.to(tl.int64) * out_width * channels)[:, None] + c[None, :]
        of_x = x + ((image * height + h).to(tl.int64) * width * channels)[:, None] + c[None, :]
        for first in range(0, out_width, TILE):
            given = ()
            for t in tl.static_range(TILE):
                mask = (seen & (first + t < out_width))[:, None] & inside[None, :]
                given = given + (tl.load(of_grad + (first + t) * channels, mask=mask, other=0.0).to(tl.float32),)
            for at in tl.static_range((TILE - 1) * STRIDE + SIZE):
                w = first * STRIDE + at - PADDING
                mask = (seen & (w >= 0) & (w < width))[:, None] & inside[None, :]
                value = tl.load(of_x + w * channels, mask=mask, other=0.0).to(tl.float32)
                for j in tl.static_range(SIZE):
                    if at - j >= 0 and (at - j) % STRIDE == 0 and (at - j) // STRIDE < TILE:
                        sums = sums[:j] + (sums[j] + value * given[(at - j) // STRIDE],) + sums[j + 1 :]
    out = parts + (chunk * SIZE + i) * SIZE * channels + c
    for j in tl.static_range(SIZE):
        tl.store(out + j * channels, tl.sum(sums[j], axis=0), mask=inside)


@triton.jit(do_not_specialize=["chunks", "taps", "channels"])
def _summed(parts, y, chunks, taps, channels, BLOCK: tl.constexpr):
    """One tap of all channels: the sum of what was added up apart."""
    tap = tl.program_id(0)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = c < channels
    found = tl.zeros((BLOCK,), tl.float32)
    for chunk in range(chunks):
        found += tl.load(parts + (chunk * taps + tap) * channels + c, mask=inside, other=0.0)
    tl.store(y + c * taps + tap, found.to(y.dtype.element_ty), mask=inside)


@dataclass(frozen=True)
class ImageSizes:
    """Those of one convolution, as all of its kernels have them."""

    images: int
    channels: int
    height: int
    width: int
    out_height: int
    out_width: int
    size: int
    stride: int
    padding: int

    def told(self, rows: int) -> tuple[int, ...]:
        """What each kernel is told, by its place."""
        step = math.gcd(self.channels, 8)
        return (rows, self.height, self.width, self.channels // step, self.out_height, self.out_width)

    def meant(self, tile: int, block: int) -> dict[str, int]:
        """What each kernel is compiled for."""
        return {
            "SIZE": self.size, "STRIDE": self.stride, "PADDING": self.padding, "TILE": tile,
            "ROWS": WARPS * 32 * EACH // block, "BLOCK": block, "STEP": math.gcd(self.channels, 8), "num_warps": WARPS,
        }  # fmt: skip


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, sizes: ImageSizes, launch: Launch = launch
) -> None:
    """Into `y`, all of them with channels last but for the weights, which have them first."""
    tile, block = _tile(sizes.out_width, (8, 7)), _block(sizes.channels, _BLOCKS)
    rows, meant = sizes.images * sizes.out_height, sizes.meant(tile, block)
    grid = (_parts(sizes.out_width, tile) * _parts(rows, meant["ROWS"]), _parts(sizes.channels, block))
    launch(_forward, grid, (x, _turned(weight), bias, y, *sizes.told(rows)), meant)


def of_input(grad: Tensor, weight: Tensor, y: Tensor, sizes: ImageSizes, launch: Launch = launch) -> None:
    """The gradient of the inputs into `y`."""
    size, stride, padding = sizes.size, sizes.stride, sizes.padding
    tiles = (7, 8) if stride == 1 else (8, 14) if stride == 2 else (2 * stride, 4 * stride)
    tile, block = _tile(sizes.width, tiles), _block(sizes.channels, _BLOCKS)
    rows, meant = sizes.images * _parts(sizes.height, stride), sizes.meant(tile, block)
    lowest = (padding - size + 1) // stride
    meant |= {"LOWEST": lowest, "COUNT": (tile - 1 + padding) // stride - lowest + 1}
    grid = (stride * _parts(sizes.width, tile) * _parts(rows, meant["ROWS"]), _parts(sizes.channels, block))
    launch(_of_input, grid, (grad, _turned(weight), y, *sizes.told(rows)), meant)


def of_weight(grad: Tensor, x: Tensor, y: Tensor, sizes: ImageSizes, launch: Launch = launch) -> None:
    """The gradient of the weights into `y`, which has channels first."""
    tile, block = _tile(sizes.out_width, (8, 7)), _block(sizes.channels, _BLOCKS_OF_WEIGHT)
    rows, meant = sizes.images * sizes.out_height, sizes.meant(tile, block)
    across, taps = _parts(sizes.channels, block), sizes.size**2
    most = PROGRAMS_EACH * torch.cuda.get_device_properties(grad.device).multi_processor_count
    blocks = _parts(_parts(rows, meant["ROWS"]), max(1, _parts(most, sizes.size * across)))
    chunks = _parts(_parts(rows, meant["ROWS"]), blocks)
    parts = torch.empty((chunks, taps, sizes.channels), dtype=torch.float32, device=grad.device)
    launch(_of_weight, (chunks * sizes.size, across), (grad, x, parts, *sizes.told(rows), blocks), meant)
    told = (parts, y, chunks, taps, sizes.channels)
    launch(_summed, (taps, _parts(sizes.channels, 64)), told, {"BLOCK": 64})


def _turned(weight: Tensor) -> Tensor:
    """With channels last: those of a program lie beside each other."""
    return weight.flatten(1).t().contiguous()


def _tile(width: int, tiles: tuple[int, ...]) -> int:
    """Which of the tiles leaves least of it unused at the end of a row; of two that leave as much, the first."""
    return min(tiles, key=lambda tile: _parts(width, tile) * tile)


def _block(channels: int, blocks: dict[int, float]) -> int:
    """How many channels a program has: as many as it can, unless many of them would not exist."""
    return min(blocks, key=lambda block: _parts(channels, block) * block * blocks[block])


def _parts(whole: int, each: int) -> int:
    return -(-whole // each)
