"""Blocks written out by hand, each with something of its own that can go wrong.

All are small enough to run in milliseconds, and large enough that an error has somewhere to show.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 32


class Perceptron(nn.Module):
    """Two layers with a GELU and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(WIDTH, 64), nn.LayerNorm(64), nn.Linear(64, WIDTH)

    def forward(self, x: Tensor) -> Any:
        out = self.last(self.norm(F.gelu(self.first(x))))
        return out.square().mean(), out


class _Heads(nn.Module):
    """What both kinds of attention have."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], 4, WIDTH // 4).transpose(1, 2)


class Attention(_Heads):
    """Attention written out, with a causal mask."""

    def forward(self, x: Tensor) -> Any:
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        scores = q @ k.mT * (WIDTH // 4) ** -0.5
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        mixed = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v
        return x + self.out(mixed.transpose(1, 2).reshape(x.shape))


class KeptAttention(_Heads):
    """Attention as one call, with a mask of padding."""

    def forward(self, x: Tensor, kept: Tensor) -> Any:
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        mixed = F.scaled_dot_product_attention(q, k, v, kept[:, None, None, :] > 0)
        return x + self.out(mixed.transpose(1, 2).reshape(x.shape))


class Norms(nn.Module):
    """A residual block with a norm before each half, and one after all."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.halves = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Any:
        for norm, half in zip(self.norms, self.halves, strict=False):
            x = x + half(norm(x)).relu()
        return self.norms[2](x)


class Gated(nn.Module):
    """RMS norm written out as models do, in float32, and a SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(WIDTH) + 0.5)
        self.gate, self.up, self.down = nn.Linear(WIDTH, 48), nn.Linear(WIDTH, 48), nn.Linear(48, WIDTH)

    def forward(self, x: Tensor) -> Any:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        normed = self.scale * wide.to(x.dtype)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Rotary(nn.Module):
    """Queries and keys turned by their places, and what they have in common."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        steps = torch.arange(x.shape[1], device=x.device)[:, None]
        angles = steps * 100.0 ** (-torch.arange(0, WIDTH // 2, device=x.device) / (WIDTH // 2))
        cos, sin = (both.repeat(1, 2).to(x.dtype) for both in (angles.cos(), angles.sin()))
        q, k = (one * cos + turned(one) * sin for one in (self.q(x), self.k(x)))
        return (q @ k.mT / WIDTH).sigmoid() @ x


def turned(x: Tensor) -> Tensor:
    """The second half, negated, before the first."""
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


class Convolutions(nn.Module):
    """Convolutions with batch norms, which write to buffers, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(16)])
        self.head = nn.Linear(16, 10)

    def forward(self, pixels: Tensor, labels: Tensor) -> Any:
        x = self.norms[0](self.first(pixels)).relu()
        x = F.hardtanh(self.norms[1](self.second(x)), 0.0, 1.5)
        return F.cross_entropy(self.head(x.mean((2, 3))), labels)


class Upsampling(nn.Module):
    """A convolution with a group norm and a gate, at twice the size."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv, self.gate = nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Any:
        x = F.interpolate(F.silu(self.norm(x)), scale_factor=2, mode="bilinear")
        return self.conv(x) * self.gate(x).sigmoid()


class Language(nn.Module):
    """Tokens and places, a head, and a loss that ignores padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(64, WIDTH, padding_idx=3), nn.Embedding(16, WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64)

    def forward(self, ids: Tensor, labels: Tensor) -> Any:
        places = torch.arange(ids.shape[1], device=ids.device)
        logits = self.head(self.norm(self.words(ids) + self.places(places)))
        return F.cross_entropy(logits.view(-1, 64), labels.view(-1), ignore_index=3), logits


class Dropouts(nn.Module):
    """Two dropouts of the same size, and one of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        x = x + F.dropout(self.first(x).relu(), 0.3)
        chances = F.dropout((x @ x.mT / WIDTH).softmax(-1), 0.1)
        return x + F.dropout(self.last(chances @ x), 0.3)


class Scan(nn.Module):
    """Running sums of what decays."""

    def __init__(self) -> None:
        super().__init__()
        self.rate, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        decay = -F.softplus(self.rate(x)).cumsum(1) * 0.1
        state = (decay.exp() * self.value(x)).cumsum(1)
        return state, state.logsumexp(-1)


class KeyCache(nn.Module):
    """Keys that are written to their places in a buffer, and attended to."""

    kept: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.k = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("kept", torch.randn(2, 16, WIDTH))
        self.register_buffer("seen", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Tensor, places: Tensor) -> Any:
        self.kept.index_copy_(1, places, self.k(x))
        self.seen.add_(x.shape[1])
        return (x @ self.kept.mT * WIDTH**-0.5).softmax(-1) @ self.kept


class Experts(nn.Module):
    """Each row goes to two of four experts, and comes back weighed."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.weights = nn.Parameter(torch.randn(4, WIDTH, WIDTH) * WIDTH**-0.5)

    def forward(self, x: Tensor) -> Any:
        chances, chosen = self.router(x).softmax(-1).topk(2, -1)
        chances = chances / chances.sum(-1, keepdim=True)
        each = torch.einsum("nd,edf->nef", x, self.weights)
        taken = each.gather(1, chosen[..., None].expand(-1, -1, WIDTH))
        return (taken * chances[..., None]).sum(1)


class Edges(nn.Module):
    """Messages along the edges of a graph, summed where they arrive and divided by how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Any:
        sent = self.message(x)[source].relu()
        got = torch.zeros_like(x).index_add(0, target, sent)
        count = torch.zeros(x.shape[0], dtype=x.dtype, device=x.device).scatter_add(
            0, target, torch.ones_like(sent[:, 0])
        )
        return x + got / count.clamp(min=1.0)[:, None]


class Statistics(nn.Module):
    """Means, deviations, extremes and lengths."""

    def forward(self, x: Tensor) -> Any:
        centred = x - x.mean(1, keepdim=True)
        length = x.pow(2).sum(-1).add(1e-5).sqrt()
        return centred / x.std(-1, keepdim=True), x.var(1), x.amax(-1), length, (-x).abs().log1p().mean()


class Aliases(nn.Module):
    """Outputs that are views of inputs and of each other, and an input that is written."""

    def forward(self, x: Tensor, y: Tensor) -> Any:
        y.mul_(0.5).add_(x)
        z = (x * y).t()
        return x.t(), y[1:], z, z[:4], (x + 1).permute(1, 0)


class Specials(nn.Module):
    """Infinities and NaN that belong there."""

    def forward(self, x: Tensor) -> Any:
        positive = x.relu()
        return positive.log(), (positive / positive), torch.where(x > 1, float("inf"), x.exp()), x.clamp(-1.0, 1.0)


class Codes(nn.Module):
    """Rounded to whole numbers, which are looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.book = nn.Embedding(33, WIDTH)

    def forward(self, x: Tensor) -> Any:
        codes = (x * 8).round().clamp(-16, 16)
        return codes.to(torch.int32), self.book(codes.long() + 16), (codes / 8 - x).detach() + x


class LongSums(nn.Module):
    """Products and sums of 4,096 terms."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Linear(4096, 16)

    def forward(self, x: Tensor) -> Any:
        return self.narrow(x), x.square().mean(-1)


class Pooling(nn.Module):
    """Pooled in three ways."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Any:
        x = F.pad(self.mix(x), (1, 1, 1, 1))
        return F.max_pool2d(x, 2), F.avg_pool2d(x, 3, 2, 1), F.adaptive_avg_pool2d(x, 1)


class Recurrent(nn.Module):
    """A GRU cell written out, for some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.given, self.state = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Any:
        h = torch.zeros_like(x[:, 0])
        for step in x.unbind(1):
            a, b = self.given(step).chunk(3, -1), self.state(h).chunk(3, -1)
            reset, update = (a[0] + b[0]).sigmoid(), (a[1] + b[1]).sigmoid()
            h = (1 - update) * (a[2] + reset * b[2]).tanh() + update * h
        return h


class Contrast(nn.Module):
    """Two views of a batch, which should find each other."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.warmth = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        a, b = F.normalize(self.one(x), dim=-1), F.normalize(self.other(y), dim=-1)
        scores = a @ b.mT * self.warmth.exp()
        right = torch.arange(x.shape[0], device=x.device)
        return (F.cross_entropy(scores, right) + F.cross_entropy(scores.mT, right)) / 2


class Deep(nn.Module):
    """Twenty-five layers: fifty gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(25))

    def forward(self, x: Tensor) -> Any:
        for layer in self.layers:
            x = x + 0.3 * layer(x).tanh()
        return x


class Averages(nn.Module):
    """Moving averages kept in buffers, and a count of the steps."""

    mean: Tensor
    square: Tensor
    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.randn(WIDTH))
        self.register_buffer("square", torch.rand(WIDTH) + 0.5)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Any:
        self.mean.lerp_(x.mean(0), 0.1)
        self.square.mul_(0.9).add_(x.square().mean(0), alpha=0.1)
        self.steps.add_(1)
        return (x - self.mean) * torch.rsqrt(self.square + 1e-5)


class Large(nn.Module):
    """Values that half precision cannot hold once they are squared, unless that is done in float32."""

    def forward(self, x: Tensor) -> Any:
        wide = (x * 200).float()
        return (wide.square().sum(-1, keepdim=True) * 0.5).sqrt().reciprocal().mul(wide).to(x.dtype)


class Mobile(nn.Module):
    """A separable convolution whose values are cut off at six."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv2d(8, 16, 1)
        self.apart = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.narrow = nn.Conv2d(16, 8, 1)

    def forward(self, x: Tensor) -> Any:
        found = self.narrow(F.hardswish(self.apart((self.wide(x) * 4).clamp(0, 6))))
        return x + found
