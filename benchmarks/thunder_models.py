"""The models of benchmark `thunder`, as nanoGPT and litgpt write them: Thunder interprets a model's code, and gives tensors back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.written_models import SmallGpt


class NanoGpt(SmallGpt):
    """A step of training gives its loss; no dropout, as nanoGPT trains from scratch."""

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int) -> None:
        super().__init__(vocabulary, width, layers, heads, dropout=0.0)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
        return F.cross_entropy(self.logits(input_ids).flatten(0, 1), labels.flatten())


class RmsNorm(nn.Module):
    """Computed in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight


class LlamaBlock(nn.Module):
    """Attention with rotary positions, and a gated feed-forward."""

    def __init__(self, width: int, inner: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = RmsNorm(width), RmsNorm(width)
        self.mixed, self.joined = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            one.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for one in self.mixed(self.before(x)).split(width, -1)
        )
        mixed = F.scaled_dot_product_attention(turned(query, cos, sin), turned(key, cos, sin), value, is_causal=True)
        x = x + self.joined(mixed.transpose(1, 2).reshape(batch, length, width))
        y = self.between(x)
        found: Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return found


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions."""
    half = x.size(-1) // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


class Llama(nn.Module):
    """Tokens in, logits out."""

    def __init__(self, vocabulary: int, width: int, inner: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, inner, heads) for _ in range(layers))
        self.last, self.head = RmsNorm(width), nn.Linear(width, vocabulary, bias=False)
        each = width // heads
        angles = torch.outer(torch.arange(length), 1 / 10000 ** (torch.arange(0, each, 2) / each)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        found: Tensor = self.head(self.last(x))
        return found


@dataclass(frozen=True)
class ThunderCase:
    """One model at one size."""

    build: Callable[[], nn.Module]
    batch: int
    length: int
    vocabulary: int
    train: bool = False

    def load(self, device: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """The model and one batch, from fixed seeds; a CPU is given float32."""
        torch.manual_seed(0)
        dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
        model = self.build().to(device, dtype).train(self.train)
        tokens = torch.randint(0, self.vocabulary, (self.batch, self.length), device=device)
        return model, (tokens, tokens.roll(-1, 1)) if self.train else (tokens,)


CASES = {
    "nanogpt 8x512 train": ThunderCase(partial(NanoGpt, 50304, 768, 12, 12), 8, 512, 50304, train=True),
    "llama 4x2048": ThunderCase(partial(Llama, 32000, 1024, 2816, 8, 16, 2048), 4, 2048, 32000),
}
TINY = {
    "tiny nanogpt train": ThunderCase(partial(NanoGpt, 100, 32, 1, 2), 2, 16, 100, train=True),
    "tiny llama": ThunderCase(partial(Llama, 100, 32, 64, 1, 2, 16), 2, 16, 100),
}
"""On these it is tried on a CPU."""
EVERY = CASES | TINY
