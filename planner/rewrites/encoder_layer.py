"""What torch's fused layer of a transformer's encoder computes, which nn.TransformerEncoderLayer calls in inference, as ops that say so.

It takes any mask for booleans, also one of floats, and gives NaN where all of a row is hidden, as softmax does.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def encoder_layer(
    src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor,
    use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Tensor, norm_bias_1: Tensor, norm_weight_2: Tensor,
    norm_bias_2: Tensor, ffn_weight_1: Tensor, ffn_bias_1: Tensor, ffn_weight_2: Tensor, ffn_bias_2: Tensor,
    mask: Tensor | None = None, mask_type: int | None = None,
) -> Tensor:  # fmt: skip
    """Return what `torch._transformer_encoder_layer_fwd` returns for the same arguments, but for rounding."""
    shape = (embed_dim,)
    x = F.layer_norm(src, shape, norm_weight_1, norm_bias_1, eps) if norm_first else src
    hidden = None if mask is None else _hidden(mask, mask_type)
    x = F.linear(_attention(F.linear(x, qkv_weight, qkv_bias), num_heads, hidden), proj_weight, proj_bias) + src
    if not norm_first:
        x = F.layer_norm(x, shape, norm_weight_1, norm_bias_1, eps)
    residual = x
    if norm_first:
        x = F.layer_norm(x, shape, norm_weight_2, norm_bias_2, eps)
    rows = x.flatten(0, 1)
    rows = torch._addmm_activation(
        ffn_bias_1, rows, ffn_weight_1.t(), use_gelu=use_gelu
    )  # its gelu hangs on the device
    x = F.linear(rows.unflatten(0, (x.shape[0], x.shape[1])), ffn_weight_2, ffn_bias_2) + residual
    return x if norm_first else F.layer_norm(x, shape, norm_weight_2, norm_bias_2, eps)


def _hidden(mask: Tensor, mask_type: int | None) -> Tensor:
    """A mask with axes for batch, heads, rows and columns."""
    mask = mask.to(torch.bool)
    if mask_type == 0:
        return mask[None, None]
    if mask_type == 1:
        return mask[:, None, None]
    if mask_type == 2:
        return mask
    raise ValueError(f"there is no mask of type {mask_type}")


def _attention(projected: Tensor, num_heads: int, hidden: Tensor | None) -> Tensor:
    """Queries, keys and values lie one behind another, for all heads each."""
    q, k, v = projected.unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    scores = torch.matmul(q * (1 / math.sqrt(q.shape[-1])), k.transpose(-2, -1))
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    return torch.matmul(scores.softmax(-1), v).transpose(1, 2).flatten(2)
