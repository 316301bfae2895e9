"""Made-up programs without sums of their own: arithmetic, casts, broadcasts, layouts, and what stands around attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.collect.draw import INNER, MOST_BYTES, UNARY, Draw, Made, again_of, chain, cheap, with_others


def pointwise(draw: Draw) -> Made:
    """Operators one after another on inputs of one shape."""
    shape, count, length = draw.shape(), draw.some(4), draw.some(10)
    inputs = [draw.laid(*shape) for _ in range(count)]
    fresh = again_of(draw)
    return lambda x, *rest: chain(fresh(), x, length, rest), inputs


def pointwise_outputs(draw: Draw) -> Made:
    """The same with several results along the way."""
    shape, fresh = draw.shape(), None
    inputs = [draw.laid(*shape) for _ in range(1 + draw.some(3))]
    lengths = [draw.some(4) for _ in range(2 + draw.some(2))]
    fresh = again_of(draw)

    def function(x: Tensor, *rest: Tensor) -> list[Tensor]:
        again, found = fresh(), []
        for length in lengths:
            x = chain(again, x, length, rest)
            found.append(x)
        return found

    return function, inputs


def casts(draw: Draw) -> Made:
    """Arithmetic in another type, and back."""
    shape = draw.shape()
    to = torch.float32 if draw.dtype is torch.bfloat16 else torch.bfloat16
    length, fresh = draw.some(5), again_of(draw)

    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        again = fresh()
        wide = chain(again, x.to(to), length, [y.to(to)])
        return [wide.to(x.dtype), wide] if again.maybe(0.3) else [wide.to(x.dtype)]

    return function, [draw.laid(*shape), draw.tensor(*shape)]


def broadcast(draw: Draw) -> Made:
    """A matrix with rows, columns and scalars."""
    rows, inner = draw.rows()
    heads = draw.pick((1, 4, 12, 16))
    kinds = [(rows, inner), (inner,), (rows, 1), (1,), (1, inner)]
    small = [draw.tensor(*draw.pick(kinds[1:])) for _ in range(draw.some(3))]
    length, fresh = draw.some(4), again_of(draw)
    outer = draw.maybe(0.3) and rows * inner * heads * 4 < MOST_BYTES // 4

    def function(x: Tensor, *others: Tensor) -> Tensor:
        again = fresh()
        if outer:
            x = x.unsqueeze(0).expand(heads, -1, -1)
        x = with_others(again, x, others)
        return chain(again, x, length)

    return function, [draw.laid(rows, inner), *small]


def transpose(draw: Draw) -> Made:
    """Dimensions in another order, and memory after them."""
    shape = draw.shape(draw.pick((2, 3, 4)))
    order = draw.chance.sample(range(len(shape)), len(shape))
    before, after, fresh = draw.some(3) - 1, draw.some(3) - 1, again_of(draw)
    flat = draw.maybe()

    def function(x: Tensor) -> Tensor:
        again = fresh()
        x = cheap(again, x, before)
        x = x.permute(order).contiguous()
        x = x.reshape(x.shape[0], -1) if flat else x
        return cheap(again, x, after)

    return function, [draw.tensor(*shape)]


def heads(draw: Draw) -> Made:
    """What stands around attention: hidden states to heads and back, in one piece or three."""
    batch, length, heads, width = (
        draw.pick((1, 4, 8, 32)),
        draw.pick((16, 77, 128, 512, 1024, 2048)),
        draw.pick((8, 12, 16)),
        64,
    )
    three, fresh = draw.maybe(0.4), again_of(draw)

    def function(x: Tensor, b: Tensor) -> list[Tensor]:
        again = fresh()
        x = x + b if again.maybe() else x
        parts = x.split(heads * width, -1) if three else (x,)
        found = [part.view(batch, length, heads, width).transpose(1, 2) for part in parts]
        return [again.pick(UNARY)(one).contiguous() for one in found]

    wide = heads * width * (3 if three else 1)
    return function, [draw.tensor(batch, length, wide), draw.tensor(wide)]


def rope(draw: Draw) -> Made:
    """Rotary embeddings of queries."""
    batch, length, heads, width = (
        draw.pick((1, 4)),
        draw.pick((16, 128, 1024, 2048)),
        draw.pick((8, 16, 32)),
        draw.pick((64, 128)),
    )

    def function(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q = q.view(batch, length, heads, width).transpose(1, 2)
        half = torch.cat((-q[..., width // 2 :], q[..., : width // 2]), -1)
        return q * cos.unsqueeze(1) + half * sin.unsqueeze(1)

    angles = [draw.tensor(batch, length, width) for _ in range(2)]
    return function, [draw.tensor(batch, length, heads * width), *angles]


def gated(draw: Draw) -> Made:
    """One half of a linear layer through an activation, times the other."""
    rows, inner = draw.rows()
    joined, act = draw.maybe() and inner % 2 == 0, draw.pick((F.silu, F.gelu, torch.sigmoid))

    def function(x: Tensor, *rest: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1) if joined else (x, rest[0])
        found: Tensor = act(gate) * up
        return found

    return function, [draw.tensor(rows, inner) for _ in range(1 if joined else 2)]


def concat(draw: Draw) -> Made:
    """Several tensors in one."""
    shape = draw.shape(draw.pick((2, 3)))
    dim, count = draw.chance.randrange(len(shape)), 1 + draw.some(3)
    before, after, fresh = draw.maybe(), draw.some(2) - 1, again_of(draw)

    def function(*parts: Tensor) -> Tensor:
        again = fresh()
        parts = tuple(again.pick(UNARY)(part) if before else part for part in parts)
        x = torch.cat(parts, dim)
        return cheap(again, x, after)

    return function, [draw.tensor(*shape) for _ in range(count)]


def sliced(draw: Draw) -> Made:
    """A matrix in parts."""
    rows, inner = draw.rows(draw.pick([n for n in INNER if n >= 16]))
    start, parts, fresh = draw.maybe(), draw.pick((2, 3, 4)), again_of(draw)

    def function(x: Tensor) -> list[Tensor]:
        again, width = fresh(), inner // parts
        found = [x[:, i * width + start : (i + 1) * width] for i in range(parts)]
        return [again.pick(UNARY)(one) for one in found[: 1 + parts // 2]]

    return function, [draw.tensor(rows, inner)]


def embedding(draw: Draw) -> Made:
    """Rows of a table, with those of places."""
    rows, width = draw.pick((16, 128, 1024, 4096, 8192)), draw.pick((64, 768, 1024, 2048))
    words, norm = draw.pick((100, 30522, 50257)), draw.maybe(0.4)

    def function(table: Tensor, ids: Tensor, places: Tensor, w: Tensor, b: Tensor) -> Tensor:
        x = F.embedding(ids, table) + places
        return F.layer_norm(x, (x.shape[-1],), w, b) if norm else x

    ids = draw.tensor(rows, dtype=torch.int64)
    return function, [draw.tensor(words, width), ids, draw.tensor(rows, width), draw.tensor(width), draw.tensor(width)]


def channels(draw: Draw) -> Made:
    """What convolutions leave: images with an affine map for each channel, in either order of memory."""
    batch, channels, side = draw.pick((1, 8, 64)), draw.pick((3, 64, 128, 256, 512)), draw.pick((7, 14, 28, 56))
    last, stats, add, fresh = draw.maybe(), draw.maybe(0.4), draw.maybe(), again_of(draw)

    def function(x: Tensor, scale: Tensor, shift: Tensor, *rest: Tensor) -> list[Tensor]:
        again = fresh()
        y = x * scale[:, None, None] + shift[:, None, None]
        for other in rest:
            y = y + other
        y = torch.relu(y) if again.maybe(0.8) else y
        return [y, y.float().sum((0, 2, 3))] if stats else [y]

    def image() -> Tensor:
        made = draw.tensor(batch, channels, side, side)
        return made.to(memory_format=torch.channels_last) if last else made

    weights = [draw.tensor(channels) for _ in range(2)]
    return function, [image(), *weights, *([image()] if add else [])]
