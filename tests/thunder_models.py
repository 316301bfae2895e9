"""Eight small models for Thunder, in the shapes of litgpt's and transformers': one block each. They give a loss.

Each is one module whose forward calls functions alone: Thunder interprets what it traces, and a call of a module costs it 0.2 s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, WORDS, LENGTH = 16, 2, 32, 8
EACH = WIDTH // HEADS


@dataclass(frozen=True)
class Shape:
    """What a model is like."""

    order: str = "before"
    """Where its norms are: before attention and MLP, after them, or before both side by side."""
    rms: bool = False
    plus: float = 0.0
    """What is added to the weight of a norm, as in Gemma."""
    keys: int = HEADS
    """Heads that keys and values have."""
    act: Callable[[Tensor], Tensor] = F.gelu
    gated: bool = False
    experts: int = 1
    """All run, and each token weighs them."""
    rotary: bool = False
    positions: bool = False
    causal: bool = True
    padding: bool = False
    """Token 0 is padding, and nobody attends to it."""
    bias: bool = False
    """Attention has a bias by how far apart tokens are, as in T5."""
    scale: float = 1.0
    tied: bool = False
    pictures: bool = False


class Model(nn.Module):
    """One block, between words and logits, or pixels and classes."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, kv = shape, 2 * shape.keys * EACH
        sizes: dict[str, tuple[int, ...]] = {
            "norm1": (WIDTH,), "norm2": (WIDTH,), "q": (WIDTH, WIDTH), "kv": (kv, WIDTH), "out": (WIDTH, WIDTH),
            "up": (shape.experts, 2 * WIDTH, WIDTH), "down": (shape.experts, WIDTH, 2 * WIDTH), "head": (WORDS, WIDTH),
        }  # fmt: skip
        sizes |= {"gate": (shape.experts, 2 * WIDTH, WIDTH)} if shape.gated else {}
        sizes |= {"router": (shape.experts, WIDTH)} if shape.experts > 1 else {}
        sizes |= {"positions": (LENGTH, WIDTH)} if shape.positions else {}
        sizes |= {"near": (4, HEADS)} if shape.bias else {}
        sizes |= {"patches": (WIDTH, 3, 4, 4), "token": (1, 1, WIDTH)} if shape.pictures else {}
        sizes |= {} if shape.tied or shape.pictures else {"words": (WORDS, WIDTH)}
        for name, size in sizes.items():
            setattr(self, name, nn.Parameter(torch.randn(size) / 4))
        angles = torch.outer(torch.arange(LENGTH), 1 / 100 ** (torch.arange(0, EACH, 2) / EACH)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, batch: Tensor) -> Tensor:
        shape = self.shape
        if shape.pictures:
            x = F.conv2d(batch, self.patches, stride=4).flatten(2).transpose(1, 2)
            x = torch.cat((self.token.expand(x.size(0), -1, -1), x), dim=1)
        else:
            x = F.embedding(batch, self.head if shape.tied else self.words) * shape.scale
        if shape.positions:
            x = x + self.positions
        if shape.order == "beside":
            x = x + self.attention(self.norm(x, self.norm1), batch) + self.mlp(self.norm(x, self.norm2))
        elif shape.order == "after":
            x = self.norm(x + self.attention(x, batch), self.norm1)
            x = self.norm(x + self.mlp(x), self.norm2)
        else:
            x = x + self.attention(self.norm(x, self.norm1), batch)
            x = x + self.mlp(self.norm(x, self.norm2))
        logits = F.linear(x, self.head)
        if shape.pictures:
            return logits[:, 0].square().mean()
        return F.cross_entropy(logits.view(-1, WORDS), batch.reshape(-1))

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        if not self.shape.rms:
            return F.layer_norm(x, (WIDTH,), weight)
        wide = x.float()
        by = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-5)
        return (wide * by).to(x.dtype) * (self.shape.plus + weight)

    def attention(self, x: Tensor, batch: Tensor) -> Tensor:
        shape, (b, t, _) = self.shape, x.shape
        q = F.linear(x, self.q).view(b, t, HEADS, EACH).transpose(1, 2)
        k, v = F.linear(x, self.kv).view(b, t, 2 * shape.keys, EACH).transpose(1, 2).split(shape.keys, 1)
        if shape.rotary:
            q, k = self.turned(q), self.turned(k)
        if shape.keys != HEADS:
            k, v = k.expand(b, HEADS, t, EACH), v.expand(b, HEADS, t, EACH)
        mask = None
        if shape.padding:
            mask = torch.where(batch[:, None, None, :] == 0, -1e9, 0.0)
        if shape.bias:
            place = torch.arange(t, device=x.device)
            mask = F.embedding((place[None, :] - place[:, None]).abs().clamp(max=3), self.near).permute(2, 0, 1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=shape.causal and mask is None)
        return F.linear(y.transpose(1, 2).reshape(b, t, WIDTH), self.out)

    def turned(self, x: Tensor) -> Tensor:
        half = EACH // 2
        return x * self.cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * self.sin

    def mlp(self, x: Tensor) -> Tensor:
        shape = self.shape
        if shape.experts == 1:
            return self.expert(x, 0)
        weights = F.softmax(F.linear(x, self.router), dim=-1)
        return sum(self.expert(x, i) * weights[..., i, None] for i in range(shape.experts))

    def expert(self, x: Tensor, i: int) -> Tensor:
        up = F.linear(x, self.up[i])
        wide = self.shape.act(F.linear(x, self.gate[i])) * up if self.shape.gated else self.shape.act(up)
        return F.linear(wide, self.down[i])


SHAPES = {
    "litgpt pythia": Shape(order="beside", rotary=True),
    "litgpt llama": Shape(rms=True, rotary=True, keys=1, act=F.silu, gated=True),
    "litgpt gemma": Shape(rms=True, plus=1.0, rotary=True, gated=True, scale=4.0, tied=True),
    "litgpt mixtral": Shape(rms=True, rotary=True, keys=1, act=F.silu, gated=True, experts=2),
    "transformers gpt2": Shape(positions=True, tied=True),
    "transformers bert": Shape(order="after", positions=True, causal=False, padding=True),
    "transformers t5": Shape(rms=True, act=F.relu, causal=False, bias=True),
    "transformers vit": Shape(causal=False, pictures=True),
}


def model_of(name: str) -> nn.Module:
    """The model of this shape, the same each time."""
    torch.manual_seed(0)
    return Model(SHAPES[name])


def batch_of(name: str) -> Any:
    """One batch."""
    torch.manual_seed(1)
    return torch.randn(2, 3, 8, 8) if SHAPES[name].pictures else torch.randint(0, WORDS, (2, LENGTH))
