"""Attention as models and people write it out: each spelling is a function, and what it is given.

Where a spelling is from is said with it; none is a copy, but each does the same to its scores, in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SPELLINGS: dict[str, Spelling] = {}


@dataclass(frozen=True)
class Sizes:
    """Of one attention: batch, heads, rows, columns, features."""

    b: int = 2
    h: int = 3
    n: int = 8
    m: int = 8
    d: int = 16


class Draw:
    """Tensors from a seed: those of floats take gradients."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype = dtype

    def __call__(self, *shape: int, scale: float = 1.0) -> Tensor:
        drawn = torch.randn(shape, generator=self.generator) * scale
        return drawn.to(self.dtype).requires_grad_()

    def buffer(self, *shape: int) -> Tensor:
        """Without a gradient."""
        return self(*shape).detach()

    def kept(self, *shape: int) -> Tensor:
        """Booleans, of which the first of each row is true."""
        drawn = torch.rand(shape, generator=self.generator) < 0.7
        drawn[..., 0] = True
        return drawn


@dataclass(frozen=True)
class Spelling:
    """One way to write attention."""

    function: Callable[..., Any]
    given: Callable[[Draw, Sizes], tuple[Any, ...]]
    square: bool
    """There are as many queries as keys."""
    fused: bool
    """A fused kernel is legal in training, too."""

    def inputs(self, seed: int = 0, dtype: torch.dtype = torch.float32, sizes: Sizes | None = None) -> tuple[Any, ...]:
        """What the function is given."""
        return self.given(Draw(seed, dtype), sizes or Sizes())


def heads(draw: Draw, s: Sizes) -> tuple[Tensor, ...]:
    """Queries, keys and values by batch and head."""
    return draw(s.b, s.h, s.n, s.d), draw(s.b, s.h, s.m, s.d), draw(s.b, s.h, s.m, s.d)


def flat(draw: Draw, s: Sizes) -> tuple[Tensor, ...]:
    """With batch and heads as one axis."""
    return draw(s.b * s.h, s.n, s.d), draw(s.b * s.h, s.m, s.d), draw(s.b * s.h, s.m, s.d)


def rows(draw: Draw, s: Sizes) -> tuple[Tensor, ...]:
    """With heads behind rows."""
    return draw(s.b, s.n, s.h, s.d), draw(s.b, s.m, s.h, s.d), draw(s.b, s.m, s.h, s.d)


def channels(draw: Draw, s: Sizes) -> tuple[Tensor, ...]:
    """With features before positions, as convolutions have them."""
    return draw(s.b, s.h * s.d, s.n), draw(s.b, s.h * s.d, s.m), draw(s.b, s.h * s.d, s.m)


def spelling(
    given: Callable[[Draw, Sizes], tuple[Any, ...]], square: bool = False, fused: bool = True
) -> Callable[..., Any]:
    """Add a spelling by its function's name."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        SPELLINGS[function.__name__] = Spelling(function, given, square, fused)
        return function

    return add


def plus(base: Callable[[Draw, Sizes], tuple[Any, ...]], *more: Callable[[Draw, Sizes], Any]) -> Callable[..., Any]:
    """What another function gives, and more."""
    return lambda draw, sizes: (*base(draw, sizes), *(each(draw, sizes) for each in more))


def causal_buffer(draw: Draw, s: Sizes) -> Tensor:
    """As nanoGPT keeps it."""
    return torch.tril(torch.ones(32, 32)).view(1, 1, 32, 32)


def key_padding(draw: Draw, s: Sizes) -> Tensor:
    """Which columns of each batch are tokens."""
    return draw.kept(s.b, s.m)


# language models


@spelling(plus(heads, causal_buffer), square=True)
def nano_gpt(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    t = q.size(2)
    att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    att = att.masked_fill(bias[:, :, :t, :t] == 0, float("-inf"))
    att = F.softmax(att, dim=-1)
    att = F.dropout(att, 0.1, False)
    y = att @ v
    return y.transpose(1, 2).contiguous().view(q.size(0), t, -1)


@spelling(plus(heads, lambda draw, s: draw.kept(s.b, 1, s.n, s.m)))
def annotated_transformer(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    scores = scores.masked_fill(mask == 0, -1e9)
    return torch.matmul(scores.softmax(dim=-1), v)


@spelling(plus(heads, lambda draw, s: draw.kept(s.b, s.m)), fused=False)
def bert_eager(q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> Tensor:
    shown = torch.tensor(0.0, dtype=q.dtype)
    mask = torch.where(kept[:, None, None, :], shown, torch.finfo(q.dtype).min)
    weights = torch.matmul(q, k.transpose(2, 3)) * q.size(-1) ** -0.5
    weights = weights + mask
    weights = F.softmax(weights, dim=-1)
    weights = F.dropout(weights, p=0.1, training=False)
    return torch.matmul(weights, v).transpose(1, 2).contiguous()


@spelling(plus(heads, lambda draw, s: draw.kept(s.b, s.m)))
def bert_soft_mask_of_ten_thousand(q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> Tensor:
    mask = (1.0 - kept[:, None, None, :].to(q.dtype)) * -10000.0
    scores = torch.matmul(q, k.transpose(-1, -2))
    scores = scores / math.sqrt(q.size(-1))
    scores = scores + mask
    return torch.matmul(torch.nn.Softmax(dim=-1)(scores), v).permute(0, 2, 1, 3).contiguous()


@spelling(heads, square=True)
def gpt2_before_fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    n = q.size(-2)
    weights = torch.matmul(q, k.transpose(-1, -2))
    weights = weights / torch.full([], v.size(-1) ** 0.5, dtype=weights.dtype, device=weights.device)
    causal = torch.tril(torch.ones((n, n), dtype=torch.bool)).view(1, 1, n, n)
    low = torch.full([], torch.finfo(weights.dtype).min, dtype=weights.dtype)
    weights = torch.where(causal, weights.to(weights.dtype), low)
    weights = F.softmax(weights, dim=-1).type(v.dtype)
    return torch.matmul(weights, v)


@spelling(plus(heads, lambda draw, s: draw(s.n, s.m, s.h)))
def t5(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    bias = table.permute([2, 0, 1]).unsqueeze(0)
    scores = torch.matmul(q, k.transpose(3, 2))
    scores += bias
    weights = F.softmax(scores.float(), dim=-1).type_as(scores)
    return torch.matmul(weights, v).transpose(1, 2).contiguous().view(q.size(0), q.size(2), -1)


@spelling(plus(heads, lambda draw, s: draw.buffer(s.h, 1, s.m)), fused=False)
def bloom_alibi(q: Tensor, k: Tensor, v: Tensor, alibi: Tensor) -> Tensor:
    b, h, n, d = q.shape
    flat_alibi = alibi.repeat(b, 1, 1)
    scores = flat_alibi.baddbmm(
        batch1=q.reshape(b * h, n, d), batch2=k.transpose(-1, -2).reshape(b * h, d, -1), beta=1.0, alpha=d**-0.5
    )
    scores = scores.view(b, h, n, -1)
    weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.bmm(weights.view(b * h, n, -1), v.reshape(b * h, -1, d)).view(b, h, n, d)


@spelling(plus(flat, lambda draw, s: draw.kept(s.b, 1, s.n, s.m)))
def opt_bmm(q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> Tensor:
    weights = torch.bmm(q * q.size(-1) ** -0.5, k.transpose(1, 2))
    b, n, m = kept.size(0), kept.size(2), kept.size(3)
    weights = weights.view(b, -1, n, m).masked_fill(~kept, float("-inf"))
    weights = weights.view(-1, n, m)
    weights = F.dropout(F.softmax(weights, dim=-1), p=0.0, training=True)
    out = torch.bmm(weights, v)
    return out.view(b, -1, n, q.size(-1)).transpose(1, 2)


@spelling(heads, square=True)
def gpt_j_in_float32(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    n = q.size(-2)
    query, key = q.to(torch.float32), k.to(torch.float32)
    weights = torch.matmul(query, key.transpose(-1, -2))
    causal = torch.ones(n, n, dtype=torch.bool).tril()[None, None]
    weights = torch.where(causal, weights, torch.tensor(torch.finfo(weights.dtype).min, dtype=weights.dtype))
    weights = weights / math.sqrt(q.size(-1))
    weights = F.softmax(weights, dim=-1).to(v.dtype)
    return torch.matmul(weights, v)


@spelling(flat)
def gpt_neox_baddbmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.zeros(q.size(0), q.size(1), k.size(1), dtype=q.dtype)
    scores = torch.baddbmm(scores, q, k.transpose(1, 2), beta=1.0, alpha=1.0 / math.sqrt(q.size(-1)))
    return torch.matmul(F.softmax(scores, dim=-1).to(v.dtype), v)


@spelling(flat)
def diffusers_baddbmm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    empty = torch.empty(q.shape[0], q.shape[1], k.shape[1], dtype=q.dtype, device=q.device)
    scores = torch.baddbmm(empty, q, k.transpose(-1, -2), beta=0, alpha=q.size(-1) ** -0.5)
    probabilities = scores.softmax(dim=-1).to(q.dtype)
    return torch.bmm(probabilities, v)


@spelling(heads, square=True)
def llama_eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    n = q.size(-2)
    low = torch.finfo(q.dtype).min
    mask = torch.full((n, n), low, dtype=q.dtype).triu(1)[None, None]
    weights = torch.matmul(q, k.transpose(2, 3)) * q.size(-1) ** -0.5
    weights = weights + mask
    weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, v).transpose(1, 2).contiguous()


@spelling(plus(rows, lambda draw, s: draw.kept(s.b, s.m)))
def flash_reference(q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> Tensor:
    scores = torch.einsum("bthd,bshd->bhts", q / math.sqrt(q.size(-1)), k)
    scores.masked_fill_(~kept[:, None, None, :], float("-inf"))
    attention = torch.softmax(scores, dim=-1).to(v.dtype)
    return torch.einsum("bhts,bshd->bthd", attention, v)


@spelling(plus(rows, lambda draw, s: draw.kept(s.b, s.m)))
def loftr_softmax_over_the_third(q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> Tensor:
    scores = torch.einsum("nlhd,nshd->nlsh", q, k)
    scores.masked_fill_(~kept[:, None, :, None], float("-inf"))
    weights = torch.softmax(1.0 / q.size(3) ** 0.5 * scores, dim=2)
    return torch.einsum("nlsh,nshd->nlhd", weights, v).contiguous()


@spelling(plus(heads, lambda draw, s: draw.kept(s.b, s.m)), square=True)
def x_transformers(q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> Tensor:
    n = q.size(-2)
    sim = torch.einsum("b h i d, b h j d -> b h i j", q, k) * q.size(-1) ** -0.5
    low = -torch.finfo(sim.dtype).max
    sim = sim.masked_fill(~kept[:, None, None, :], low)
    sim = sim.masked_fill(torch.ones((n, n), dtype=torch.bool).triu(1), low)
    attn = sim.softmax(dim=-1, dtype=torch.float32).type(sim.dtype)
    return torch.einsum("b h i j, b h j d -> b h i d", attn, v)


@spelling(lambda draw, s: (draw(s.b, s.h, s.n, s.d), draw(s.b, s.m, s.d), draw(s.b, s.m, s.d)))
def palm_one_key_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    sim = torch.einsum("b h i d, b j d -> b h i j", q * q.size(-1) ** -0.5, k)
    sim = sim - sim.amax(dim=-1, keepdim=True).detach()
    return torch.einsum("b h i j, b j d -> b h i d", sim.softmax(dim=-1), v)


@spelling(plus(heads, lambda draw, s: draw(1, s.h, s.n, s.m), lambda draw, s: draw.kept(s.b, 1, 1, s.m)))
def alphafold_biases(q: Tensor, k: Tensor, v: Tensor, pair: Tensor, kept: Tensor) -> Tensor:
    biases = [1e3 * (kept.to(q.dtype) - 1), pair]
    a = torch.matmul(q, k.transpose(-1, -2))
    for bias in biases:
        a += bias
    a = torch.nn.functional.softmax(a, dim=-1)
    return torch.matmul(a, v).transpose(-2, -3)


@spelling(plus(heads, lambda draw, s: draw(s.b, s.h, s.n, s.d)))
def transformer_xl_content_and_position(q: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
    content = torch.matmul(q, k.transpose(2, 3))
    position = torch.matmul(r, k.transpose(2, 3)).tanh()
    scores = (content + position) / math.sqrt(q.size(-1))
    return torch.matmul(scores.softmax(-1), v)


# vision


def windows(draw: Draw, s: Sizes) -> tuple[Any, ...]:
    """Windows of two images, with a bias for each head and a mask for each window."""
    q, k, v = (draw(2 * s.b, s.h, s.n, s.d) for _ in range(3))
    hidden = torch.where(draw.kept(s.b, s.n, s.n), 0.0, -100.0).to(draw.dtype)
    return q, k, v, draw((2 * s.n), s.h), torch.arange(s.n * s.n) % (2 * s.n), hidden


@spelling(windows, square=True, fused=False)
def swin_shifted_windows(q: Tensor, k: Tensor, v: Tensor, table: Tensor, index: Tensor, mask: Tensor) -> Tensor:
    b_, h, n, d = q.shape
    attn = (q * d**-0.5) @ k.transpose(-2, -1)
    bias = table[index].view(n, n, -1).permute(2, 0, 1).contiguous()
    attn = attn + bias.unsqueeze(0)
    windows = mask.shape[0]
    attn = attn.view(-1, windows, h, n, n) + mask.unsqueeze(1).unsqueeze(0)
    attn = attn.view(-1, h, n, n)
    attn = F.dropout(F.softmax(attn, dim=-1), 0.0, False)
    return (attn @ v).transpose(1, 2).reshape(b_, n, h * d)


@spelling(windows, square=True)
def beit_relative_bias(q: Tensor, k: Tensor, v: Tensor, table: Tensor, index: Tensor, mask: Tensor) -> Tensor:
    b, _, n, d = q.shape
    attn = (q * d**-0.5) @ k.transpose(-2, -1)
    attn = attn + table[index].view(n, n, -1).permute(2, 0, 1).contiguous().unsqueeze(0)
    attn = attn.softmax(dim=-1)
    return (attn @ v).transpose(1, 2).reshape(b, n, -1)


@spelling(plus(heads, lambda draw, s: draw(s.h, 1, 1), lambda draw, s: draw(s.h, s.n, s.m)))
def swin_v2_cosine(q: Tensor, k: Tensor, v: Tensor, logit_scale: Tensor, bias: Tensor) -> Tensor:
    attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
    attn = attn * torch.clamp(logit_scale, max=math.log(100.0)).exp()
    attn = attn + (16 * torch.sigmoid(bias)).unsqueeze(0)
    return attn.softmax(-1) @ v


@spelling(lambda draw, s: (draw(s.b, s.n, 3 * s.h * s.d),))
def timm_attention(x: Tensor) -> Tensor:
    b, n, c = x.shape
    q, k, v = x.reshape(b, n, 3, 3, c // 9).permute(2, 0, 3, 1, 4).unbind(0)
    attn = (q * (c // 9) ** -0.5) @ k.transpose(-2, -1)
    return (attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, n, c // 3)


@spelling(plus(heads, lambda draw, s: draw(s.h, 1, 1)), square=True)
def xcit_over_channels(q: Tensor, k: Tensor, v: Tensor, temperature: Tensor) -> Tensor:
    q, k, v = (each.transpose(-2, -1) for each in (q, k, v))
    attn = (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)) * temperature
    return (attn.softmax(dim=-1) @ v).permute(0, 3, 1, 2).flatten(2)


@spelling(
    lambda draw, s: (draw(s.b, s.h, s.n, 8), draw(s.b, s.h, 8, s.m), draw(s.b, s.h, s.m, s.d), draw(s.h, s.n, s.m))
)
def levit_narrow_keys(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    attn = q @ k * 8**-0.5 + bias
    return (attn.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)


@spelling(lambda draw, s: tuple(draw(s.b, 4, s.h, n, s.d) for n in (s.n, s.m, s.m)))
def mobilevit_patches_of_five_axes(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    attn = torch.softmax((q * q.size(-1) ** -0.5) @ k.mT, dim=-1)
    return (attn @ v).permute(0, 3, 1, 2, 4).flatten(3)


@spelling(
    plus(
        lambda draw, s: tuple(draw(s.b, 4, s.h, n, s.d) for n in (s.n, s.m, s.m)), lambda draw, s: draw(4, 1, s.n, s.m)
    )
)
def windows_of_five_axes_with_biases(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    scores = torch.einsum("bwhid,bwhjd->bwhij", q, k).mul(0.25).add(bias)
    return torch.einsum("bwhij,bwhjd->bwihd", scores.softmax(-1), v)


@spelling(
    plus(heads, lambda draw, s: draw(s.b, s.h, s.n, 1, s.m // 2), lambda draw, s: draw(s.b, s.h, s.n, 2, 1)),
    square=True,
)
def sam_decomposed_positions(q: Tensor, k: Tensor, v: Tensor, across: Tensor, down: Tensor) -> Tensor:
    b, h, n, d = q.shape
    attn = (q * d**-0.5) @ k.transpose(-2, -1)
    attn = (attn.view(b * h, n, 2, n // 2) + across.flatten(0, 1) + down.flatten(0, 1)).view(b, h, n, n)
    return (attn.softmax(dim=-1) @ v).view(b, h, 2, n // 2, -1).permute(0, 2, 3, 1, 4).reshape(b, 2, n // 2, -1)


# images and sound


@spelling(channels)
def guided_diffusion(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scale = 1 / math.sqrt(math.sqrt(q.size(1)))
    weight = torch.einsum("bct,bcs->bts", q * scale, k * scale)
    weight = torch.softmax(weight.float(), dim=-1).type(weight.dtype)
    return torch.einsum("bts,bcs->bct", weight, v)


@spelling(channels)
def vqgan_block(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    w_ = torch.bmm(q.permute(0, 2, 1), k)
    w_ = w_ * (int(q.size(1)) ** (-0.5))
    w_ = F.softmax(w_, dim=2)
    return torch.bmm(v, w_.permute(0, 2, 1))


@spelling(channels)
def ddpm_heads_of_channels(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = q.unflatten(1, (3, -1)), k.unflatten(1, (3, -1)), v.unflatten(1, (3, -1))
    sim = torch.einsum("b h d i, b h d j -> b h i j", q * q.size(2) ** -0.5, k)
    return torch.einsum("b h i j, b h d j -> b h i d", sim.softmax(dim=-1), v)


@spelling(channels)
def keys_before_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    attn = torch.softmax(k.mT @ q / q.size(1) ** 0.5, dim=-2)
    return v @ attn


@spelling(plus(rows, lambda draw, s: torch.full((s.n, s.m), -math.inf).triu_(1)), square=True, fused=False)
def whisper(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    n, scale = q.size(1), q.size(-1) ** -0.25
    q = q.permute(0, 2, 1, 3) * scale
    k = k.permute(0, 2, 3, 1) * scale
    qk = (q @ k + mask[:n, :n].to(q.dtype)).float()
    w = F.softmax(qk, dim=-1).to(q.dtype)
    return (w @ v.permute(0, 2, 1, 3)).permute(0, 2, 1, 3).flatten(start_dim=2)


@spelling(plus(flat, lambda draw, s: draw.kept(s.b, s.m)))
def fairseq_esm(q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> Tensor:
    weights = torch.bmm(q, k.transpose(1, 2))
    b, n, m = kept.size(0), q.size(1), k.size(1)
    weights = weights.view(b, -1, n, m)
    weights = weights.masked_fill(~kept.unsqueeze(1).unsqueeze(2).to(torch.bool), float("-inf"))
    weights = weights.view(-1, n, m)
    floats = F.softmax(weights, dim=-1, dtype=torch.float32)
    return torch.bmm(floats.type_as(weights), v).transpose(0, 1).contiguous().view(n, b, -1)


@spelling(plus(heads, lambda draw, s: draw.kept(s.b, s.n, s.m)))
def espnet_masked_minimum(q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    mask = kept.unsqueeze(1).eq(0)
    return torch.matmul(torch.softmax(scores.masked_fill(mask, torch.finfo(scores.dtype).min), dim=-1), v)


def disentangled(draw: Draw, s: Sizes) -> tuple[Any, ...]:
    """Beside the usual, what is learned of 2 × 4 distances, which of them each pair has, and what is kept of pairs of tokens."""
    distances = [draw(s.b * s.h, 8, s.d) for _ in range(2)]
    pairs = (torch.arange(s.n)[:, None] - torch.arange(s.n) + 4).clamp(0, 7)
    tokens = draw.kept(s.b, s.n)
    return *flat(draw, s), *distances, pairs, tokens[:, None, :, None] * tokens[:, None, None, :]


@spelling(disentangled, square=True)
def deberta_disentangled_positions(
    q: Tensor, k: Tensor, v: Tensor, of_keys: Tensor, of_queries: Tensor, pairs: Tensor, kept: Tensor
) -> Tensor:
    scale = torch.sqrt(torch.tensor(q.size(-1), dtype=torch.float) * 3)
    scores = torch.bmm(q, k.transpose(-1, -2) / scale.to(dtype=q.dtype))
    index = pairs.expand([q.size(0), *pairs.shape])
    by_place = torch.gather(torch.bmm(q, of_keys.transpose(-1, -2)), -1, index) / scale.to(dtype=q.dtype)
    by_place += torch.gather(torch.bmm(k, of_queries.transpose(-1, -2)), -1, index).transpose(-1, -2) / scale.to(
        dtype=q.dtype
    )
    scores = (scores + by_place).view(kept.size(0), -1, q.size(1), k.size(1))
    scores = scores.masked_fill(~kept.bool(), torch.finfo(q.dtype).min)
    weights = F.dropout(torch.softmax(scores, dim=-1), 0.1, False)
    return torch.bmm(weights.view(-1, q.size(1), k.size(1)), v)


@spelling(lambda draw, s: (draw(s.n, s.d), draw(s.m, s.d), draw(s.m, s.d)))
def of_one_head_and_no_batch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.T / math.sqrt(k.shape[-1]), dim=-1) @ v


@spelling(heads)
def by_aten(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.ops.aten.mul.Tensor(torch.ops.aten.matmul.default(q, torch.ops.aten.transpose.int(k, -1, -2)), 0.25)
    return torch.ops.aten.matmul.default(torch.ops.aten.softmax.int(scores, -1), v)


@spelling(heads)
def with_a_negative_scale(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.special.softmax(-(q @ k.swapaxes(-1, -2)).multiply(0.3), -1) @ v


@spelling(plus(heads, key_padding), square=True)
def scaled_after_masking(q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> Tensor:
    scores = (q @ k.mT).masked_fill(~kept[:, None, None], -1e10)
    return torch.div(scores, 4.0).softmax(-1) @ v


@spelling(heads)
def in_place_everywhere(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1)
    scores *= 0.5
    scores.add_(1.0).div_(2.0)
    return scores.softmax(-1) @ v


# softmax spelled out


@spelling(plus(heads, key_padding))
def exponentials_by_their_sum(q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> Tensor:
    """As pure PyTorch references of flash attention have it."""
    scores = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(~kept[:, None, None], -math.inf)
    exponentials = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
    return (exponentials / exponentials.sum(dim=-1, keepdim=True)) @ v


@spelling(plus(heads, lambda draw, s: draw(s.h, s.n, s.m)))
def exponentials_in_float32_by_a_reciprocal(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """As thunder's traces have it."""
    scores = (q @ k.mT + bias).float()
    largest = torch.amax(scores, [3]).unsqueeze(3).expand(scores.shape)
    exponentials = torch.exp(torch.sub(scores, largest))
    sums = torch.sum(exponentials, [3])[:, :, :, None]
    return torch.mul(exponentials, torch.reciprocal(sums)).to(v.dtype) @ v


@spelling(heads)
def softmax_of_a_logarithm(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.log_softmax(q @ k.mT * 0.25, dim=-1).exp() @ v


@spelling(rows)
def less_the_logarithm_of_the_sum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bnhd,bmhd->bhmn", q, k * 0.25)
    weights = torch.exp(scores - torch.logsumexp(scores, 2, keepdim=True))
    return torch.einsum("bhmn,bmhd->bnhd", weights, v)


@spelling(heads)
def softmax_in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / 4
    scores -= scores.amax(dim=-1, keepdim=True).detach()
    scores.exp_()
    return (scores / scores.sum(-1, keepdim=True)) @ v


@spelling(plus(heads, lambda draw, s: draw(s.b, 1, s.m, s.d // 2)))
def deepseek_keys_put_together(q: Tensor, k: Tensor, v: Tensor, turned: Tensor) -> Tensor:
    """A part of the features is each head's own, and the rest is the same for all."""
    half = turned.shape[-1]
    keys = k.new_empty(k.shape)
    keys[..., :half] = k[..., :half]
    keys[..., half:] = turned
    weights = (q @ keys.transpose(2, 3) * 0.25).softmax(-1, dtype=torch.float32).to(q.dtype)
    return weights @ v


@spelling(heads)
def rotary_positions_of_a_part_in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    queries, keys = q.clone(), k.clone()
    for each in (queries, keys):
        places = torch.arange(each.shape[2], dtype=torch.float32, device=each.device)[:, None]
        angles = places * torch.logspace(0, -1, 2, device=each.device)
        real, imaginary = each[..., 0:2].clone(), each[..., 2:4].clone()
        each[..., 0:2] = (real * angles.cos() - imaginary * angles.sin()).to(each.dtype)
        each[..., 2:4] = (real * angles.sin() + imaginary * angles.cos()).to(each.dtype)
    return ((queries @ keys.mT) / 4.0).softmax(-1) @ v


@spelling(plus(heads, lambda draw, s: draw.kept(s.b, s.m)), square=True, fused=False)
def llama_mask_put_together(q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> Tensor:
    """As transformers had it for a while: the padding is written into a part of what is causal."""
    n, low = q.size(-2), torch.finfo(q.dtype).min
    mask = torch.full((n, n), low, dtype=q.dtype).triu(1)[None, None].expand(q.size(0), 1, -1, -1).clone()
    padding = (mask[..., : kept.size(-1)] + kept[:, None, None, :].to(q.dtype)) == 0
    mask[..., : kept.size(-1)] = mask[..., : kept.size(-1)].masked_fill(padding, low)
    weights = q @ k.transpose(2, 3) * 0.25 + mask[..., : k.size(-2)]
    return weights.softmax(-1, dtype=torch.float32).to(q.dtype) @ v


@spelling(heads)
def the_last_columns_hidden_by_a_mask_put_together(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.zeros(q.size(-2), k.size(-2), dtype=torch.bool)
    mask[:, -2:] = True
    return ((q @ k.mT) / 4.0).masked_fill(mask, -math.inf).softmax(-1) @ v
