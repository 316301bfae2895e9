"""Made-up programs around sums: reductions, norms, softmax and losses, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.collect.draw import INNER, UNARY, Draw, Made, again_of, cheap, with_others

aten = torch.ops.aten


def reduction(axis: str) -> Callable[[Draw], Made]:
    """Sums and the like along some axes, with cheap operators around."""
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
        two, fresh = draw.maybe(0.2), again_of(draw)

        def function(x: Tensor, *rest: Tensor) -> list[Tensor]:
            again = fresh()
            x = with_others(again, x, rest)
            x = cheap(again, x, before)
            y = reducers[which](x, list(named))
            y = cheap(again, y, after)
            return [y, x] if two else [y]

        return function, [draw.laid(*shape) for _ in range(draw.some(2))]

    return make


def norm(kind: str) -> Callable[[Draw], Made]:
    """A norm over rows with what stands around it: residuals, dropout's scale, activations, views."""

    def make(draw: Draw) -> Made:
        rows, inner = draw.rows(draw.pick([n for n in INNER if 16 <= n <= 16384]))
        residual, after = draw.maybe(), draw.some(3) - 1
        views, fresh, gives = draw.maybe(0.3), again_of(draw), draw.maybe(0.4)

        def function(x: Tensor, w: Tensor, b: Tensor, *rest: Tensor) -> list[Tensor | None]:
            again = fresh()
            for other in rest:
                x = x + other
            shaped = x.view(1, rows, inner) if views else x
            y = F.layer_norm(shaped, (inner,), w, b) if kind == "layer" else _rms_norm(shaped, w)
            y = cheap(again, y, after)
            y = y.view(rows, inner) if views and again.maybe() else y
            return [y, x if gives and rest else None]

        weights = [draw.tensor(inner) for _ in range(2)]
        return function, [draw.laid(rows, inner), *weights, *([draw.tensor(rows, inner)] if residual else [])]

    return make


def _rms_norm(x: Tensor, w: Tensor) -> Tensor:
    wide = x.float()
    return w * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def norm_backward(kind: str) -> Callable[[Draw], Made]:
    """The backward of a norm, by its operator or written out."""

    def make(draw: Draw) -> Made:
        rows, inner = draw.rows(draw.pick([n for n in INNER if 16 <= n <= 16384]))
        residual, weights, before, fresh = draw.maybe(), draw.maybe(0.7), draw.some(2) - 1, again_of(draw)

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


def softmax(draw: Draw) -> Made:
    """Softmax with a scale and a mask."""
    shape = draw.shape(draw.pick((2, 3, 4)))
    scale, mask, log, fresh = draw.maybe(), draw.maybe(0.4), draw.maybe(0.3), again_of(draw)
    inputs = [draw.laid(*shape)] + ([draw.tensor(shape[-2], shape[-1])] if mask else [])
    dim = -1 if draw.maybe(0.85) else 0
    after = draw.some(2) - 1

    def function(x: Tensor, *rest: Tensor) -> Tensor:
        again = fresh()
        x = x * 0.125 if scale else x
        for other in rest:
            x = x + other
        y = torch.log_softmax(x, dim) if log else torch.softmax(x, dim)
        return cheap(again, y, after)

    return function, inputs


def softmax_backward(draw: Draw) -> Made:
    """Its backward, by its operator or written out."""
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


def activation_backward(draw: Draw) -> Made:
    """The backward of an activation, and of the bias before it."""
    shape = draw.shape()
    which, bias, fresh = (
        draw.pick(("gelu", "gelu tanh", "silu", "relu", "tanh", "sigmoid")),
        draw.maybe(0.4),
        again_of(draw),
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
        g = with_others(again, g, rest, 2)
        dx = calls[which](g, x)
        return [dx, dx.reshape(-1, dx.shape[-1]).sum(0)] if bias else [dx]

    return function, [draw.laid(*shape) for _ in range(2 + draw.maybe(0.3))]


def loss(draw: Draw) -> Made:
    """Cross entropy of rows of logits."""
    rows, inner = draw.rows(draw.pick((1000, 2048, 8192, 32000, 50257)))

    def function(logits: Tensor, labels: Tensor) -> Tensor:
        chosen = torch.log_softmax(logits.float(), -1).gather(1, labels.unsqueeze(1))
        return -chosen.mean()

    return function, [draw.tensor(rows, inner), draw.tensor(rows, dtype=torch.int64)]
