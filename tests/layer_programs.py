"""PyTorch's own functions as small programs, forward and backward; for the CPU and the GPU.

What makes their arguments makes them on the default device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from observing import Arguments, Cases, Program


def sample(*shape: int, seed: int = 3, grad: bool = True) -> Tensor:
    """Random numbers on the default device, but the same on each."""
    numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), device="cpu")
    return numbers.to(torch.get_default_device()).requires_grad_(grad)


def _normalized(*affine: tuple[int, ...]) -> Arguments:
    return lambda: (sample(4, 6, 8), *(sample(*shape, seed=i) for i, shape in enumerate(affine)))


def _classes() -> tuple[Tensor, Tensor]:
    return sample(6, 5), torch.tensor([0, 4, 2, -100, 1, 3])


_NORMS: Cases = {
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (8,), w, b), _normalized((8,), (8,))),
    "layer_norm_without_weights": (lambda x: F.layer_norm(x, (6, 8)), _normalized()),
    "rms_norm": (lambda x, w: F.rms_norm(x, (8,), w), _normalized((8,))),
    "group_norm": (lambda x, w, b: F.group_norm(x, 3, w, b), _normalized((6,), (6,))),
    "instance_norm": (lambda x: F.instance_norm(x), _normalized()),
    "batch_norm_training": (
        lambda x, w, b, mean, var: F.batch_norm(x, mean, var, w, b, training=True),
        lambda: (*_normalized((6,), (6,))(), torch.zeros(6), torch.ones(6)),
    ),
    "batch_norm_evaluation": (
        lambda x, w, b, mean, var: F.batch_norm(x, mean, var, w, b),
        lambda: (*_normalized((6,), (6,))(), torch.full((6,), 0.5), torch.full((6,), 2.0)),
    ),
}
_ACTIVATIONS: Cases = {
    "gelu": (lambda x: F.gelu(x), _normalized()),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), _normalized()),
    "silu_gate": (lambda x, y: F.silu(x) * y, _normalized((4, 6, 8))),
    "softmax_and_log_softmax": (lambda x: (x.softmax(-1), x.log_softmax(1)), _normalized()),
    "hardswish_and_mish": (lambda x: F.hardswish(x) + F.mish(x), _normalized()),
}
_LOSSES: Cases = {
    "cross_entropy": (lambda x, y: F.cross_entropy(x, y), _classes),
    "smoothed_cross_entropy": (lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1, reduction="sum"), _classes),
    "embedding": (
        lambda w, i: F.embedding(i, w, padding_idx=0),
        lambda: (sample(5, 3), torch.tensor([[0, 4], [4, 1]])),
    ),
    "binary_cross_entropy": (
        lambda x: F.binary_cross_entropy_with_logits(x, torch.ones_like(x)),
        lambda: (sample(4, 5),),
    ),
    "convolutions": (
        lambda x, w: F.max_pool2d(F.conv2d(x, w, stride=2, padding=1, groups=2), 2),
        lambda: (sample(2, 4, 9, 9), sample(6, 2, 3, 3)),
    ),
    "einsum": (lambda x, y: torch.einsum("bij,bkj->bik", x, y), _normalized((4, 5, 8))),
}


FUNCTIONS: Cases = {**_NORMS, **_ACTIVATIONS, **_LOSSES}


def attention(**options: Any) -> Program:
    """Scaled dot-product attention with a mask that may be a fourth argument."""

    def program(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)

    return program


def heads(kv_heads: int = 4, kv_length: int = 6, mask: Callable[[], Tensor] | None = None) -> Arguments:
    """Queries, keys, values, and the mask where there is one."""
    kv = (2, kv_heads, kv_length, 8)
    masks = () if mask is None else (mask,)
    return lambda: (sample(2, 4, 6, 8), sample(*kv, seed=1), sample(*kv, seed=2), *(make() for make in masks))


def _allowed() -> Tensor:
    return torch.tensor([[True] * 4 + [False] * 2, [True] * 6]).view(2, 1, 1, 6)


def _slope() -> Tensor:
    return torch.linspace(-1, 1, 36).view(6, 6)


ATTENTION: Cases = {
    "plain": (attention(), heads()),
    "causal": (attention(is_causal=True), heads()),
    "bool_mask": (attention(), heads(mask=_allowed)),
    "mask_that_hides_everything": (attention(), heads(mask=lambda: torch.zeros(6, 6, dtype=torch.bool))),
    "float_mask": (attention(), heads(mask=_slope)),
    "learned_bias": (attention(), heads(mask=lambda: sample(4, 6, 6, seed=4))),
    "scaled": (attention(scale=0.3), heads()),
    "cross": (attention(), heads(kv_length=9)),
    "grouped_queries": (attention(enable_gqa=True, is_causal=True), heads(kv_heads=2)),
    "dropout": (attention(dropout_p=0.3), heads()),
    "dropout_with_mask": (attention(dropout_p=0.3), heads(mask=_allowed)),
}
