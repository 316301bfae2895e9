"""Made-up programs: what fusions are made of, at sizes from tiny to a gigabyte, with views at every place.

A program is the family and a number; the same number gives the same program. They are traced with fake tensors, so that
no device is needed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks.collect.devices import moved_to
from fuseplan.capture import from_fx
from fuseplan.graph import Graph

aten = torch.ops.aten
MOST_BYTES = 2**30
"""Of all inputs and outputs together."""
DTYPES = (torch.bfloat16, torch.float32)
INNER = (
    1, 2, 3, 7, 8, 16, 31, 32, 64, 77, 96, 128, 197, 255, 256, 384, 511, 512, 768, 1000, 1024, 1536, 2048, 2816, 3072,
    4096, 5120, 8192, 11008, 16384, 32000, 50257,
)  # fmt: skip
"""Lengths of the last dimension: those that models have, powers of two, and some that nothing divides."""


def program(family: str, number: int, device: str, most: int = MOST_BYTES) -> Graph:
    """The program of this number; `most` are the bytes of its inputs and outputs at most.

    >>> graph = program("softmax", 3, "cpu")
    >>> graph == program("softmax", 3, "cpu"), any("softmax" in op.target for op in graph.ops)
    (True, True)
    """
    for attempt in range(100):
        draw = Draw(random.Random(f"{family} {number} {attempt}"))
        with FakeTensorMode(allow_non_fake_inputs=True):
            function, inputs = FAMILIES[family](draw)
            gm = make_fx(_listed(function))(*inputs)
        gm.graph.eliminate_dead_code()
        graph = from_fx(gm)
        size = sum(_bytes(value) for value in (*inputs, *_results(gm)))
        if size <= most and graph.ops and not graph.opaque:
            return graph if device == "cpu" else moved_to(graph, device)
    raise AssertionError(f"no program of {family} is as small as {most} bytes")


def _listed(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    def listed(*args: Tensor) -> list[Any]:
        found = function(*args)
        return [value for value in (found if isinstance(found, (list, tuple)) else [found]) if value is not None]

    return listed


def _results(gm: torch.fx.GraphModule) -> list[Any]:
    return [node.meta["val"] for node in gm.graph.output_node().args[0]]  # type: ignore[union-attr]


def _bytes(value: Any) -> int:
    return value.numel() * value.element_size() if isinstance(value, Tensor) else 0


class Draw:
    """Draws sizes, tensors and operators of one program."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.dtype = chance.choice(DTYPES)

    def elements(self) -> int:
        """How many elements the largest tensor has, about: evenly spread over the orders of magnitude."""
        return round(2 ** self.chance.uniform(9, 27.5))

    def rows(self, inner: int | None = None) -> tuple[int, int]:
        """A matrix: its last dimension from the list."""
        elements = self.elements()
        inner = inner or self.chance.choice([n for n in INNER if n <= elements])
        rows = max(1, elements // inner)
        return (rows if self.chance.random() < 0.3 or rows < 16 else 1 << rows.bit_length() - 1), inner

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        """Any shape: a matrix whose rows are cut up into more dimensions."""
        rows, inner = self.rows()
        rank = rank or self.chance.choice((1, 2, 2, 3, 3, 4))
        if rank == 1:
            return (rows * inner,)
        outer: list[int] = []
        for _ in range(rank - 2):
            divisors = [d for d in (2, 3, 4, 6, 8, 12, 16, 32, 64) if rows % d == 0]
            chosen = self.chance.choice(divisors) if divisors else 1
            outer.append(chosen)
            rows //= chosen
        return (*outer, rows, inner) if self.chance.random() < 0.5 else (rows, *outer, inner)

    def tensor(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """An input."""
        return torch.empty(shape, dtype=dtype or self.dtype)

    def laid(self, *shape: int) -> Tensor:
        """An input that may not be contiguous: transposed, or a slice of a wider one."""
        way = self.chance.random()
        if way < 0.15 and len(shape) > 1:
            order = self.chance.sample(range(len(shape)), len(shape))
            back = sorted(range(len(shape)), key=order.__getitem__)
            return self.tensor(*(shape[d] for d in order)).permute(back)
        if way < 0.25 and shape[-1] > 1:
            return self.tensor(*shape[:-1], shape[-1] * 2)[..., : shape[-1]]
        return self.tensor(*shape)

    def some(self, most: int) -> int:
        """A small number, small ones more often."""
        return min(most, 1 + int(self.chance.expovariate(0.6)))

    def pick(self, choices: Sequence[Any]) -> Any:
        """One of several."""
        return self.chance.choice(list(choices))

    def maybe(self, share: float = 0.5) -> bool:
        """Yes, in so many cases."""
        return self.chance.random() < share


UNARY: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.relu, F.gelu, torch.sigmoid, torch.tanh, torch.exp, F.silu, torch.neg, torch.abs, torch.square,
    lambda x: x * 0.5, lambda x: x + 1.0, lambda x: F.gelu(x, approximate="tanh"), lambda x: x.float().to(x.dtype),
    lambda x: torch.clamp(x, -1.0, 1.0), lambda x: torch.rsqrt(x.abs() + 1.0),
)  # fmt: skip
BINARY: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    torch.add, torch.mul, torch.sub, torch.maximum, lambda a, b: a / (b.abs() + 1.0),
    lambda a, b: torch.where(a > b, a, b * 0.1), lambda a, b: F.silu(a) * b, lambda a, b: torch.add(a, b, alpha=0.5),
)  # fmt: skip
Made = tuple[Callable[..., Any], list[Tensor]]


def _view(draw: Draw, x: Tensor) -> Tensor:
    """One view, of any kind."""
    shape = list(x.shape)
    ways = ["flatten", "split", "permute", "unsqueeze"]
    way = draw.pick(ways)
    if way == "permute" and len(shape) > 1:
        a, b = draw.chance.sample(range(len(shape)), 2)
        return x.transpose(a, b)
    if way == "split":
        for d in draw.chance.sample(range(len(shape)), len(shape)):
            for part in (64, 16, 12, 8, 4, 2):
                if shape[d] % part == 0 and shape[d] > part:
                    return x.reshape(*shape[:d], shape[d] // part, part, *shape[d + 1 :])
    if way == "unsqueeze" and len(shape) < 5:
        return x.unsqueeze(draw.chance.randrange(len(shape) + 1))
    return x.reshape(-1) if len(shape) > 1 and draw.maybe(0.3) else x.reshape(-1, shape[-1])


def _chain(draw: Draw, x: Tensor, length: int, others: Sequence[Tensor] = ()) -> Tensor:
    """Cheap ops one after another; views in between where the draw says so."""
    views = draw.pick((0.0, 0.0, 0.2, 0.4))
    left = list(others)
    for _ in range(length):
        if draw.maybe(views):
            x = _view(draw, x)
        if left and draw.maybe(0.6):
            other = left.pop()
            if other.numel() == x.numel():
                other = other.reshape(x.shape)
            elif other.dim() > x.dim() or other.shape[-1] != x.shape[-1]:
                continue
            x = draw.pick(BINARY)(x, other)
        else:
            x = draw.pick(UNARY)(x)
    return _view(draw, x) if draw.maybe(views) else x


def _again(draw: Draw) -> Callable[[], Draw]:
    """The function is called more than once, when it is traced: each time with the same draws."""
    state, dtype = draw.chance.getstate(), draw.dtype

    def fresh() -> Draw:
        again = Draw(random.Random())
        again.chance.setstate(state)
        again.dtype = dtype
        return again

    return fresh


def _pointwise(draw: Draw) -> Made:
    shape, count, length = draw.shape(), draw.some(4), draw.some(10)
    inputs = [draw.laid(*shape) for _ in range(count)]
    fresh = _again(draw)
    return lambda x, *rest: _chain(fresh(), x, length, rest), inputs


def _pointwise_outputs(draw: Draw) -> Made:
    shape, fresh = draw.shape(), None
    inputs = [draw.laid(*shape) for _ in range(1 + draw.some(3))]
    lengths = [draw.some(4) for _ in range(2 + draw.some(2))]
    fresh = _again(draw)

    def function(x: Tensor, *rest: Tensor) -> list[Tensor]:
        again, found = fresh(), []
        for length in lengths:
            x = _chain(again, x, length, rest)
            found.append(x)
        return found

    return function, inputs


def _casts(draw: Draw) -> Made:
    shape = draw.shape()
    to = torch.float32 if draw.dtype is torch.bfloat16 else torch.bfloat16
    length, fresh = draw.some(5), _again(draw)

    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        again = fresh()
        wide = _chain(again, x.to(to), length, [y.to(to)])
        return [wide.to(x.dtype), wide] if again.maybe(0.3) else [wide.to(x.dtype)]

    return function, [draw.laid(*shape), draw.tensor(*shape)]


def _broadcast(draw: Draw) -> Made:
    rows, inner = draw.rows()
    heads = draw.pick((1, 4, 12, 16))
    kinds = [(rows, inner), (inner,), (rows, 1), (1,), (1, inner)]
    small = [draw.tensor(*draw.pick(kinds[1:])) for _ in range(draw.some(3))]
    length, fresh = draw.some(4), _again(draw)
    outer = draw.maybe(0.3) and rows * inner * heads * 4 < MOST_BYTES // 4

    def function(x: Tensor, *others: Tensor) -> Tensor:
        again = fresh()
        if outer:
            x = x.unsqueeze(0).expand(heads, -1, -1)
        for other in others:
            x = again.pick(BINARY[:4])(x, other)
        return _chain(again, x, length)

    return function, [draw.laid(rows, inner), *small]


def _transpose(draw: Draw) -> Made:
    shape = draw.shape(draw.pick((2, 3, 4)))
    order = draw.chance.sample(range(len(shape)), len(shape))
    before, after, fresh = draw.some(3) - 1, draw.some(3) - 1, _again(draw)
    flat = draw.maybe()

    def function(x: Tensor) -> Tensor:
        again = fresh()
        for _ in range(before):
            x = again.pick(UNARY)(x)
        x = x.permute(order).contiguous()
        x = x.reshape(x.shape[0], -1) if flat else x
        for _ in range(after):
            x = again.pick(UNARY)(x)
        return x

    return function, [draw.tensor(*shape)]


def _heads(draw: Draw) -> Made:
    """What stands around attention: hidden states to heads and back, in one piece or three."""
    batch, length, heads, width = (
        draw.pick((1, 4, 8, 32)),
        draw.pick((16, 77, 128, 512, 1024, 2048)),
        draw.pick((8, 12, 16)),
        64,
    )
    three, fresh = draw.maybe(0.4), _again(draw)

    def function(x: Tensor, b: Tensor) -> list[Tensor]:
        again = fresh()
        x = x + b if again.maybe() else x
        parts = x.split(heads * width, -1) if three else (x,)
        found = [part.view(batch, length, heads, width).transpose(1, 2) for part in parts]
        return [again.pick(UNARY)(one).contiguous() for one in found]

    wide = heads * width * (3 if three else 1)
    return function, [draw.tensor(batch, length, wide), draw.tensor(wide)]


def _rope(draw: Draw) -> Made:
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


def _reduction(axis: str) -> Callable[[Draw], Made]:
    reducers: tuple[Callable[..., Tensor], ...] = (
        torch.sum, torch.mean, torch.amax, lambda x, d: x.float().square().sum(d), lambda x, d: torch.var(x, d),
        lambda x, d: torch.logsumexp(x.float(), d),
    )  # fmt: skip

    def make(draw: Draw) -> Made:
        shape = draw.shape(draw.pick((2, 3, 4)))
        last = len(shape) - 1
        dims = {"inner": (last,), "outer": tuple(range(last)), "middle": (max(1, last - 1),) if last > 1 else (0,)}
        named = dims.get(axis) or tuple(range(len(shape)))
        which, before, after = draw.chance.randrange(len(reducers)), draw.some(4) - 1, draw.some(3) - 1
        two, fresh = draw.maybe(0.2), _again(draw)

        def function(x: Tensor, *rest: Tensor) -> list[Tensor]:
            again = fresh()
            for other in rest:
                x = again.pick(BINARY[:4])(x, other)
            for _ in range(before):
                x = again.pick(UNARY)(x)
            y = reducers[which](x, list(named))
            for _ in range(after):
                y = again.pick(UNARY)(y)
            return [y, x] if two else [y]

        return function, [draw.laid(*shape) for _ in range(draw.some(2))]

    return make


def _norm(kind: str) -> Callable[[Draw], Made]:
    """A norm over rows with what stands around it: residuals, dropout's scale, activations, views."""

    def make(draw: Draw) -> Made:
        rows, inner = draw.rows(draw.pick([n for n in INNER if 16 <= n <= 16384]))
        residual, after = draw.maybe(), draw.some(3) - 1
        views, fresh, gives = draw.maybe(0.3), _again(draw), draw.maybe(0.4)

        def function(x: Tensor, w: Tensor, b: Tensor, *rest: Tensor) -> list[Tensor | None]:
            again = fresh()
            for other in rest:
                x = x + other
            shaped = x.view(1, rows, inner) if views else x
            y = _layer_norm(shaped, w, b) if kind == "layer" else _rms_norm(shaped, w)
            for _ in range(after):
                y = again.pick(UNARY)(y)
            y = y.view(rows, inner) if views and again.maybe() else y
            return [y, x if gives and rest else None]

        weights = [draw.tensor(inner) for _ in range(2)]
        return function, [draw.laid(rows, inner), *weights, *([draw.tensor(rows, inner)] if residual else [])]

    return make


def _layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def _rms_norm(x: Tensor, w: Tensor) -> Tensor:
    wide = x.float()
    return w * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def _norm_backward(kind: str) -> Callable[[Draw], Made]:
    def make(draw: Draw) -> Made:
        rows, inner = draw.rows(draw.pick([n for n in INNER if 16 <= n <= 16384]))
        residual, weights, before, fresh = draw.maybe(), draw.maybe(0.7), draw.some(2) - 1, _again(draw)

        def layer(g: Tensor, x: Tensor, w: Tensor, mean: Tensor, rstd: Tensor, *rest: Tensor) -> list[Tensor]:
            again = fresh()
            for _ in range(before):
                g = again.pick(UNARY[-5:])(g)
            dx, dw, db = aten.native_layer_norm_backward(g, x, [inner], mean, rstd, w, w, [True, weights, weights])
            return [dx + rest[0] if rest else dx, *([dw, db] if weights else [])]

        def rms(g: Tensor, x: Tensor, w: Tensor, mean: Tensor, rstd: Tensor, *rest: Tensor) -> list[Tensor]:
            wide, up = x.float(), (g * w).float()
            normal = wide * rstd
            dx = rstd * (up - normal * (up * normal).mean(-1, keepdim=True))
            dw = (g.float() * normal).sum(0).to(g.dtype)
            dx = dx.to(x.dtype)
            return [dx + rest[0] if rest else dx, *([dw] if weights else [])]

        stats = [draw.tensor(rows, 1, dtype=torch.float32) for _ in range(2)]
        big = [draw.tensor(rows, inner) for _ in range(2)]
        rest = [draw.tensor(rows, inner)] if residual else []
        return (layer if kind == "layer" else rms), [*big, draw.tensor(inner), *stats, *rest]

    return make


def _softmax(draw: Draw) -> Made:
    shape = draw.shape(draw.pick((2, 3, 4)))
    scale, mask, log, fresh = draw.maybe(), draw.maybe(0.4), draw.maybe(0.3), _again(draw)
    inputs = [draw.laid(*shape)] + ([draw.tensor(shape[-2], shape[-1])] if mask else [])
    dim = -1 if draw.maybe(0.85) else 0
    after = draw.some(2) - 1

    def function(x: Tensor, *rest: Tensor) -> Tensor:
        again = fresh()
        x = x * 0.125 if scale else x
        for other in rest:
            x = x + other
        y = torch.log_softmax(x, dim) if log else torch.softmax(x, dim)
        for _ in range(after):
            y = again.pick(UNARY)(y)
        return y

    return function, inputs


def _softmax_backward(draw: Draw) -> Made:
    shape = draw.shape(draw.pick((2, 3, 4)))
    log, scale, own, by_hand = draw.maybe(0.3), draw.maybe(), draw.dtype, draw.maybe(0.3)

    def function(g: Tensor, y: Tensor) -> Tensor:
        if by_hand:
            dx = y * (g - (g * y).sum(-1, keepdim=True))
        elif log:
            dx = aten._log_softmax_backward_data(g, y, -1, own)
        else:
            dx = aten._softmax_backward_data(g, y, -1, own)
        return dx * 0.125 if scale else dx

    return function, [draw.tensor(*shape), draw.tensor(*shape)]


def _activation_backward(draw: Draw) -> Made:
    shape = draw.shape()
    which, bias, fresh = (
        draw.pick(("gelu", "gelu tanh", "silu", "relu", "tanh", "sigmoid")),
        draw.maybe(0.4),
        _again(draw),
    )
    calls: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "gelu": aten.gelu_backward,
        "gelu tanh": lambda g, x: aten.gelu_backward(g, x, approximate="tanh"),
        "silu": aten.silu_backward,
        "relu": lambda g, x: aten.threshold_backward(g, x, 0),
        "tanh": aten.tanh_backward,
        "sigmoid": aten.sigmoid_backward,
    }

    def function(g: Tensor, x: Tensor, *rest: Tensor) -> list[Tensor]:
        again = fresh()
        for other in rest:
            g = again.pick(BINARY[:2])(g, other)
        dx = calls[which](g, x)
        return [dx, dx.reshape(-1, dx.shape[-1]).sum(0)] if bias else [dx]

    return function, [draw.laid(*shape) for _ in range(2 + draw.maybe(0.3))]


def _gated(draw: Draw) -> Made:
    rows, inner = draw.rows()
    joined, act = draw.maybe() and inner % 2 == 0, draw.pick((F.silu, F.gelu, torch.sigmoid))

    def function(x: Tensor, *rest: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1) if joined else (x, rest[0])
        found: Tensor = act(gate) * up
        return found

    return function, [draw.tensor(rows, inner) for _ in range(1 if joined else 2)]


def _concat(draw: Draw) -> Made:
    shape = draw.shape(draw.pick((2, 3)))
    dim, count = draw.chance.randrange(len(shape)), 1 + draw.some(3)
    before, after, fresh = draw.maybe(), draw.some(2) - 1, _again(draw)

    def function(*parts: Tensor) -> Tensor:
        again = fresh()
        parts = tuple(again.pick(UNARY)(part) if before else part for part in parts)
        x = torch.cat(parts, dim)
        for _ in range(after):
            x = again.pick(UNARY)(x)
        return x

    return function, [draw.tensor(*shape) for _ in range(count)]


def _sliced(draw: Draw) -> Made:
    rows, inner = draw.rows(draw.pick([n for n in INNER if n >= 16]))
    start, parts, fresh = draw.maybe(), draw.pick((2, 3, 4)), _again(draw)

    def function(x: Tensor) -> list[Tensor]:
        again, width = fresh(), inner // parts
        found = [x[:, i * width + start : (i + 1) * width] for i in range(parts)]
        return [again.pick(UNARY)(one) for one in found[: 1 + parts // 2]]

    return function, [draw.tensor(rows, inner)]


def _loss(draw: Draw) -> Made:
    rows, inner = draw.rows(draw.pick((1000, 2048, 8192, 32000, 50257)))

    def function(logits: Tensor, labels: Tensor) -> Tensor:
        chosen = torch.log_softmax(logits.float(), -1).gather(1, labels.unsqueeze(1))
        return -chosen.mean()

    return function, [draw.tensor(rows, inner), draw.tensor(rows, dtype=torch.int64)]


def _embedding(draw: Draw) -> Made:
    rows, width = draw.pick((16, 128, 1024, 4096, 8192)), draw.pick((64, 768, 1024, 2048))
    words, norm = draw.pick((100, 30522, 50257)), draw.maybe(0.4)

    def function(table: Tensor, ids: Tensor, places: Tensor, w: Tensor, b: Tensor) -> Tensor:
        x = F.embedding(ids, table) + places
        return _layer_norm(x, w, b) if norm else x

    ids = draw.tensor(rows, dtype=torch.int64)
    return function, [draw.tensor(words, width), ids, draw.tensor(rows, width), draw.tensor(width), draw.tensor(width)]


def _channels(draw: Draw) -> Made:
    """What convolutions leave: images with an affine map for each channel, in either order of memory."""
    batch, channels, side = draw.pick((1, 8, 64)), draw.pick((3, 64, 128, 256, 512)), draw.pick((7, 14, 28, 56))
    last, stats, add, fresh = draw.maybe(), draw.maybe(0.4), draw.maybe(), _again(draw)

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


FAMILIES: dict[str, Callable[[Draw], Made]] = {
    "pointwise": _pointwise,
    "pointwise-outputs": _pointwise_outputs,
    "casts": _casts,
    "broadcast": _broadcast,
    "transpose": _transpose,
    "heads": _heads,
    "rope": _rope,
    "reduction-inner": _reduction("inner"),
    "reduction-outer": _reduction("outer"),
    "reduction-middle": _reduction("middle"),
    "reduction-all": _reduction("all"),
    "layer-norm": _norm("layer"),
    "rms-norm": _norm("rms"),
    "layer-norm-backward": _norm_backward("layer"),
    "rms-norm-backward": _norm_backward("rms"),
    "softmax": _softmax,
    "softmax-backward": _softmax_backward,
    "activation-backward": _activation_backward,
    "gated": _gated,
    "concat": _concat,
    "slices": _sliced,
    "loss": _loss,
    "embedding": _embedding,
    "channels": _channels,
}
"""How a program of each family is made."""
