"""Fusions as models make them: normalisation, attention, RoPE, losses, and the cases that started this project."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from conformance.build import meta, region_of
from fuseplan.executors.nvfuser.executor import NvfuserExecutor
from fuseplan.judge.regions import check

aten = torch.ops.aten
BF16, FP32, BOOL, INT = torch.bfloat16, torch.float32, torch.bool, torch.int64


def gelu_between_views(x: Any) -> Any:
    return F.gelu(x.view(64, 128, 3072)).view(8192, 3072) * 1.0


def heads_to_rows(x: Any) -> Any:
    heads = x.view(64, 12, 128, 64).permute(0, 2, 1, 3)
    return heads.clone(memory_format=torch.contiguous_format).view(8192, 768) + 0.0


def three_views(x: Any, y: Any) -> Any:
    flat = x.view(512, 3072) + y
    return (flat.view(4, 128, 3072) * 2.0).view(512, 3072).neg()


def norm_gelu_dropout(x: Any, weight: Any, bias: Any) -> Any:
    y, mean, rstd = aten.native_layer_norm(x, [768], weight, bias, 1e-5)
    z, mask = aten.native_dropout(F.gelu(y), 0.1, True)
    return z, mask, mean, rstd


def norm_backward(grad: Any, x: Any, mean: Any, rstd: Any, weight: Any, bias: Any) -> Any:
    return aten.native_layer_norm_backward(grad, x, [768], mean, rstd, weight, bias, [True, True, True])


def masked_softmax(x: Any, mask: Any) -> Any:
    return F.softmax(x.masked_fill(mask, float("-inf")) * 0.125, -1)


def softmax_backward(grad: Any, y: Any) -> Any:
    return aten._softmax_backward_data(grad, y, -1, y.dtype) * 0.125


def rope(q: Any, cos: Any, sin: Any) -> Any:
    half = q.shape[-1] // 2
    rotated = torch.cat([-q[..., half:], q[..., :half]], -1)
    return q * cos + rotated * sin


def rms(x: Any, weight: Any) -> Any:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def swiglu(a: Any, b: Any) -> Any:
    return F.silu(a) * b


def cross_entropy(logits: Any, target: Any) -> Any:
    return F.cross_entropy(logits.float(), target)


def cross_entropy_backward(grad: Any, log_p: Any, target: Any, total: Any) -> Any:
    picked = aten.nll_loss_backward(grad, log_p, target, None, 1, -100, total)
    return aten._log_softmax_backward_data(picked, log_p, 1, torch.float32).to(BF16)


def batch_norm_training(x: Any, weight: Any, bias: Any, mean: Any, var: Any, count: Any) -> Any:
    y, save_mean, save_rstd, new_mean, new_var = aten._native_batch_norm_legit_functional(
        x, weight, bias, mean, var, True, 0.1, 1e-5
    )
    aten.copy_.default(mean, new_mean)
    aten.copy_.default(var, new_var)
    aten.copy_.default(count, count + 1)
    return y.relu(), save_mean, save_rstd


def batch_norm_backward(grad: Any, x: Any, weight: Any, mean: Any, rstd: Any) -> Any:
    return aten.native_batch_norm_backward(grad, x, weight, None, None, mean, rstd, True, 1e-5, [True, True, True])


def causal_mask(x: Any) -> Any:
    steps = torch.arange(128, device=x.device)
    return x.masked_fill(steps[None, :] > steps[:, None], float("-inf")).softmax(-1)


def residual_of_many(x: Any, y: Any, scale: Any) -> Any:
    a = x + y
    b = a * scale
    c = b.sigmoid() * a
    return a, c, c.sum(0), (a.transpose(0, 1) * 2).clone(memory_format=torch.contiguous_format)


def uneven_pieces(x: Any) -> Any:
    a, b, c = x.split(2, dim=0)
    first, rest = x.split([1, 4], dim=1)
    return a * 2, b * 3, c * 5, first.neg(), rest * 7, x[:, 4:5] * x[:, :1], torch.cat([x[4:], x[:4]], 0)


def statistics_of_repeated_rows(x: Any) -> Any:
    wide = x[None].expand(6, *x.shape) if x.dim() == 2 else x[:1].expand(6, 4, 16)
    y, mean, rstd = aten.native_layer_norm(wide, [4, 16], None, None, 1e-5)
    return y, mean, rstd, *torch.var_mean(wide, (0, 2), correction=1)


def m(*shape: int, dtype: torch.dtype = FP32, **kwargs: Any) -> torch.Tensor:
    return meta(*shape, dtype=dtype, **kwargs)


CHAINS: list[tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = [
    (gelu_between_views, (m(8192, 3072),)),
    (heads_to_rows, (m(768, 128, 64),)),
    (three_views, (m(4, 128, 3072), m(512, 3072))),
    (norm_gelu_dropout, (m(512, 768, dtype=BF16), m(768, dtype=BF16), m(768, dtype=BF16))),
    (norm_gelu_dropout, (m(512, 768), m(768), m(768))),
    (norm_backward, (m(512, 768, dtype=BF16), m(512, 768, dtype=BF16), m(512, 1), m(512, 1), m(768, dtype=BF16), m(768, dtype=BF16))),
    (masked_softmax, (m(4, 12, 128, 128, dtype=BF16), m(4, 1, 1, 128, dtype=BOOL))),
    (softmax_backward, (m(4, 12, 128, 128, dtype=BF16), m(4, 12, 128, 128, dtype=BF16))),
    (rope, (m(2, 16, 128, 64, dtype=BF16, stride=(131072, 64, 1024, 1)), m(2, 1, 128, 64, dtype=BF16), m(2, 1, 128, 64, dtype=BF16))),
    (rms, (m(512, 1024, dtype=BF16), m(1024, dtype=BF16))),
    (swiglu, (m(512, 2816, dtype=BF16), m(512, 2816, dtype=BF16))),
    (cross_entropy, (m(512, 5003, dtype=BF16), m(512, dtype=INT))),
    (cross_entropy_backward, (m(), m(512, 5003), m(512, dtype=INT), m())),
    (batch_norm_training, (m(16, 32, 28, 28, dtype=BF16), m(32), m(32), m(32), m(32), m(dtype=INT))),
    (batch_norm_training, (m(16, 32, 28, 28, stride=(25088, 1, 896, 32)), m(32), m(32), m(32), m(32), m(dtype=INT))),
    (batch_norm_backward, (m(16, 32, 28, 28), m(16, 32, 28, 28), m(32), m(32), m(32))),
    (causal_mask, (m(8, 128, 128, dtype=BF16),)),
    (uneven_pieces, (m(5, 5, 5),)),
    (uneven_pieces, (m(5, 5, 5, dtype=BF16),)),
    (statistics_of_repeated_rows, (m(4, 16),)),
    (statistics_of_repeated_rows, (m(3, 4, 16),)),
    (residual_of_many, (m(256, 384, dtype=BF16), m(256, 384, dtype=BF16), m(384, dtype=BF16))),
]  # fmt: skip


@pytest.mark.parametrize(("function", "inputs"), CHAINS, ids=[f"{f.__name__}-{str(i[0].dtype)[6:]}" for f, i in CHAINS])
def test_chain(function: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> None:
    region, executor = region_of(function, *inputs, device="cuda:0"), NvfuserExecutor()
    assert [why for op in region.ops if (why := executor.supports(op, region))] == []
    result = check(region, executor.compile(region), seeds=(0, 1, 3))
    assert result.ok, result.reason
