"""Attention of a few queries over many keys, which are split between programs: each attends to a part of them, and the parts are joined.

A program has all heads of a group, so that keys and values are read once. It looks at its part of the mask first, and reads the keys and
values between the first key that anybody sees and the last: what is not filled yet is not read, and a captured CUDA graph reads more of it
from step to step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from fuseplan.kernels.launch import Launch, launch

LEAST_KEYS = 64
"""Of a part."""
MOST_PARTS = 128
PROGRAMS_EACH = 8
"""So many for each multiprocessor, at most, where keys may be split further: most of them find nothing in a cache that is hardly filled."""
SCANNED = 256
"""So many entries of a mask are looked at at once, where it is the same for all rows."""
READ = 32 * 1024
"""So many bytes of keys and values are read at once, and as many before: together they fit into what a multiprocessor shares."""
STAGES = 2
JOINED = 16
"""So many parts are read at once when they are joined."""


@triton.jit
def _between(shared, apart, real, first, last, m_key, SCAN: tl.constexpr, ADDED: tl.constexpr, SHARED: tl.constexpr):
    """The first key from `first` to `last` that a mask shows to anybody, and the one behind the last."""
    begin, end = last, first
    hidden = float("-inf") if ADDED else 0.0
    for start in range(first, last, SCAN):
        at_key = start + tl.arange(0, SCAN)
        inside, step = at_key < last, at_key.to(tl.int64) * m_key
        if SHARED:
            seen = inside & (tl.load(shared + step, mask=inside, other=0).to(tl.float32) != hidden)
        else:
            known = real[:, None] & inside[None, :]
            shown = known & (tl.load(apart + step[None, :], mask=known, other=0).to(tl.float32) != hidden)
            seen = tl.max(shown.to(tl.int32), axis=0) > 0
        begin = tl.minimum(begin, tl.min(tl.where(seen, at_key, last), axis=0))
        end = tl.maximum(end, tl.max(tl.where(seen, at_key + 1, first), axis=0))
    return begin, end


@triton.jit(do_not_specialize=["keys", "each"])
def _attend(
    query, key, value, mask, parts, tops, totals,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, m_batch, m_head, m_row, m_key,
    heads, keys, each, scale,
    GROUP: tl.constexpr, QUERIES: tl.constexpr, ROWS: tl.constexpr, FEATURES: tl.constexpr, WIDTH: tl.constexpr,
    FEATURE_BLOCK: tl.constexpr, WIDTH_BLOCK: tl.constexpr, BLOCK: tl.constexpr, SCAN: tl.constexpr,
    MASKED: tl.constexpr, ADDED: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """All queries of a group of heads over one part of the keys."""
    at, part = tl.program_id(0), tl.program_id(1)
    batch, head = (at // heads).to(tl.int64), (at % heads).to(tl.int64)
    rows = tl.arange(0, ROWS)
    real = rows < GROUP * QUERIES
    own, place = head * GROUP + rows // QUERIES, rows % QUERIES
    d, e = tl.arange(0, FEATURE_BLOCK), tl.arange(0, WIDTH_BLOCK)
    of_query = query + batch * q_batch + (own * q_head + place * q_row)[:, None] + d[None, :]
    q = tl.load(of_query, mask=real[:, None] & (d < FEATURES)[None, :], other=0.0)
    first = part * each
    last = tl.minimum(first + each, keys)
    begin, end = first, last
    shared = mask + batch * m_batch + head * GROUP * m_head
    apart = (mask + batch * m_batch + own * m_head + place * m_row)[:, None]
    if MASKED:
        begin, end = _between(shared, apart, real, first, last, m_key, SCAN, ADDED, SHARED)
        begin = first + (begin - first) // BLOCK * BLOCK
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sums = tl.zeros((ROWS, WIDTH_BLOCK), tl.float32)
    for start in range(begin, end, BLOCK):
        at_key = start + tl.arange(0, BLOCK)
        inside, step = at_key < end, at_key.to(tl.int64)
        of_key = key + batch * k_batch + head * k_head + (step * k_row)[:, None] + d[None, :]
        k = tl.load(of_key, mask=inside[:, None] & (d < FEATURES)[None, :], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if MASKED:
            if SHARED:
                told = tl.load(shared + step * m_key, mask=inside, other=0)[None, :]
            else:
                told = tl.load(apart + (step * m_key)[None, :], mask=real[:, None] & inside[None, :], other=0)
            scores = scores + told.to(tl.float32) if ADDED else tl.where(told != 0, scores, float("-inf"))
        scores = tl.where(inside[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, axis=1))
        known_top = tl.where(higher == float("-inf"), 0.0, higher)
        weights, less = tl.exp(scores - known_top[:, None]), tl.exp(top - known_top)
        of_value = value + batch * v_batch + head * v_head + (step * v_row)[:, None] + e[None, :]
        v = tl.load(of_value, mask=inside[:, None] & (e < WIDTH)[None, :], other=0.0)
        sums = sums * less[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        total = total * less + tl.sum(weights, axis=1)
        top = higher
    out = (at.to(tl.int64) * tl.num_programs(1) + part) * (GROUP * QUERIES) + rows
    tl.store(tops + out, top, mask=real)
    tl.store(totals + out, total, mask=real)
    tl.store(parts + out[:, None] * WIDTH + e[None, :], sums, mask=real[:, None] & (e < WIDTH)[None, :])


@triton.jit(do_not_specialize=["count"])
def _join(
    parts, tops, totals, y, y_batch, y_head, y_row, heads, count,
    GROUP: tl.constexpr, QUERIES: tl.constexpr, WIDTH: tl.constexpr, WIDTH_BLOCK: tl.constexpr, ALL: tl.constexpr, JOIN: tl.constexpr,
):  # fmt: skip
    """One query of one head: its parts, each weighed by the largest score in it. What no key is seen in is not read."""
    at, row = tl.program_id(0), tl.program_id(1)
    rows: tl.constexpr = GROUP * QUERIES
    first = at.to(tl.int64) * count * rows + row
    e, each = tl.arange(0, WIDTH_BLOCK), tl.arange(0, ALL)
    top = tl.max(tl.load(tops + first + each * rows, mask=each < count, other=float("-inf")), axis=0)
    top = tl.where(top == float("-inf"), 0.0, top)
    total, found = tl.sum(tl.zeros((JOIN,), tl.float32), axis=0), tl.zeros((WIDTH_BLOCK,), tl.float32)
    for start in range(0, count, JOIN):
        some = start + tl.arange(0, JOIN)
        highest = tl.load(tops + first + some * rows, mask=some < count, other=float("-inf"))
        weight, seen = tl.exp(highest - top), highest != float("-inf")
        sums = tl.load(
            parts + (first + some * rows)[:, None] * WIDTH + e[None, :],
            mask=seen[:, None] & (e < WIDTH)[None, :],
            other=0.0,
        )
        found += tl.sum(weight[:, None] * sums, axis=0)
        total += tl.sum(weight * tl.load(totals + first + some * rows, mask=seen, other=0.0), axis=0)
    found = found / tl.where(total == 0.0, 1.0, total)
    batch, head = (at // heads).to(tl.int64), at % heads * GROUP + row // QUERIES
    out = y + batch * y_batch + head * y_head + row % QUERIES * y_row + e
    tl.store(out, found.to(y.dtype.element_ty), mask=e < WIDTH)


@dataclass(frozen=True)
class KeyParts:
    """How the keys of one call are split."""

    each: int
    """Keys of a part."""
    count: int

    @staticmethod
    def of(keys: int, groups: int, processors: int) -> KeyParts:
        """Small parts, as long as there are not too many of them for all groups of heads on so many multiprocessors."""
        each = LEAST_KEYS
        while -(-keys // each) > MOST_PARTS or (each < keys and groups * -(-keys // each) > PROGRAMS_EACH * processors):
            each *= 2
        return KeyParts(each, -(-keys // each))


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    y: Tensor,
    processors: int,
    launch: Launch = launch,
) -> None:
    """Into `y`. Tensors have four dimensions and their features beside each other, and a mask has the size of the scores."""
    (batches, heads, queries, features), (groups, keys, width) = query.shape, value.shape[1:]
    group, rows = heads // groups, heads // groups * queries
    split = KeyParts.of(keys, batches * groups, processors)
    like = {"dtype": torch.float32, "device": query.device}
    parts = torch.empty((batches * groups, split.count, rows, width), **like)  # type: ignore[call-overload]
    tops, totals = torch.empty((2, batches * groups * split.count * rows), **like)  # type: ignore[call-overload]
    told, strides = (query, (0, 0, 0, 0)) if mask is None else (_bytes(mask), mask.stride())
    meant = {"GROUP": group, "QUERIES": queries, "WIDTH": width, "WIDTH_BLOCK": _block(width)}
    shared = (group == 1 or strides[1] == 0) and (queries == 1 or strides[2] == 0)
    given = (*query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *strides)
    row = (_block(features) + _block(width)) * query.element_size()
    block = max(16, min(64, 1 << (READ // row).bit_length() - 1))
    launch(
        _attend, (batches * groups, split.count),
        (query, key, value, told, parts, tops, totals, *given, groups, keys, split.each, scale),
        meant | {
            "ROWS": max(16, triton.next_power_of_2(rows)), "FEATURES": features, "FEATURE_BLOCK": _block(features),
            "BLOCK": block, "SCAN": SCANNED if shared else block, "MASKED": mask is not None,
            "ADDED": mask is not None and mask.dtype != torch.bool, "SHARED": shared, "num_stages": STAGES,
        },
    )  # fmt: skip
    meant |= {"ALL": triton.next_power_of_2(split.count), "JOIN": JOINED}
    launch(_join, (batches * groups, rows), (parts, tops, totals, y, *y.stride()[:3], groups, split.count), meant)


def _bytes(mask: Tensor) -> Tensor:
    return mask.view(torch.uint8) if mask.dtype == torch.bool else mask


def _block(size: int) -> int:
    """The features of a head as a matrix unit takes them."""
    return int(max(16, triton.next_power_of_2(size)))
