"""What each of tests/nvfuser_scripts computes, written by hand in torch, from the inputs of its program in their order.

Not in here are the three cases that are compared with programs of PyTorch by their keys.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by

SCRIPTS = Path(__file__).parent / "nvfuser_scripts"

HALF, BF16, INF = torch.float16, torch.bfloat16, float("inf")


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
    wide = x.float()
    out, mean, rstd = torch.native_layer_norm(wide, [64], weight.float(), bias.float(), 1e-5)
    return mean.squeeze(-1), rstd, out.bfloat16()


def layer_norm_backward(x: Tensor, grad: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor) -> Any:
    args = (grad.float(), x.float(), [48], mean[:, None], rstd, weight.float(), torch.zeros(48), [True, True, True])
    return tuple(part.half() for part in torch.ops.aten.native_layer_norm_backward(*args))


def softmax_dropout(x: Tensor, mask: Tensor) -> Any:
    probabilities = (x + mask).softmax(-1)
    kept = torch.rand(2, 4, 16, 32) < 0.9
    return probabilities * kept * 1.11111, kept


def written_attention(q: Tensor, k: Tensor, v: Tensor) -> Any:
    scores = (q @ k.mT).float() * 0.176777
    return scores.softmax(-1).bfloat16() @ v


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Any:
    left, right = x.chunk(2, -1)
    return ((x.float() * cos[:, None]) + torch.cat([-right, left], -1).float() * sin).bfloat16()


def silu_mul(gate: Tensor, up: Tensor) -> Any:
    return (F.silu(gate.float()) * up.float()).bfloat16()


def cross_entropy(logits: Tensor, labels: Tensor) -> Any:
    return F.cross_entropy(logits, labels), logits.log_softmax(-1)


def look_ups(numbers: Tensor, table: Tensor, columns: Tensor) -> Any:
    return table[numbers], table.gather(1, columns), table[2].exp()


def repeated_and_padded(x: Tensor, y: Tensor) -> Any:
    scaled = y * 0.5
    first = scaled[..., :4] * x
    turned = torch.cat([torch.zeros(5, 4, 5, 2), -first[..., :2]], -1)
    head = torch.cat([first + turned, torch.zeros(5, 4, 5, 12)], -1)
    return head + torch.cat([torch.zeros(5, 4, 5, 4), scaled[..., 4:]], -1), scaled.transpose(-1, -2)


def running_mean(x: Tensor, mean: Tensor) -> Any:
    centred, variance = x - mean, x.var(0)
    mean.mul_(0.9).add_(x.mean(0) * 0.1)
    return centred, variance


def linear_gelu(x: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Any:
    return F.gelu(F.linear(x, w, b).float(), approximate="tanh").bfloat16() @ v


def attention(qkv: Tensor) -> Any:
    heads = (part.view(2, 64, 2, 64).transpose(1, 2) for part in qkv.split(128, -1))
    return F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).reshape(2, 64, 128)


def integers(a: Tensor, b: Tensor) -> Any:
    return (
        (a.double() / b).trunc().long(), (a.double() / 3).trunc().long(), a / b, a - (a.double() / b).trunc().long() * b,
        a % b, a & b, a | b, a ^ 3, -a - 1, b * 8, a >> 3, torch.gcd(a, b), a.double() * 0.5,
        a.double().clamp_max(2.7), torch.where(a > 3, a.double(), 0.1), a / 0.3, (a > 3).sum(), b.float().prod(1), a.amin(0),
    )  # fmt: skip


def choices(x: Tensor, y: Tensor, m: Tensor) -> Any:
    return (
        torch.where(m, x, y), x.masked_fill(~m, 0.5), torch.minimum(x, y), x.clamp_min(0.5), x.clamp(0.5, 2.0),
        torch.where(x > 0.5, x, 2.0), (x + y) / 2, x + 0.5 * y * x, m & (x <= y), ~m | (x >= 0.5), x == y,
        x.abs().sqrt(), torch.atan2(x, y), x - 0.5 * (x / 0.5).trunc(), 2.0 - x, 2.0 * torch.exp(-y),
    )  # fmt: skip


def functions(x: Tensor) -> Any:
    return (
        x.abs(), x.acos(), x.asin(), x.asinh(), x.atan(), x.atanh(), x.ceil(), x.cos(), x.cosh(), x.erf(), x.erfc(),
        x.erfinv(), x.exp(), x.exp2(), x.expm1(), x.floor(), x.frac(), x.isfinite(), x.lgamma(), x.log(), x.log10(),
        x.log1p(), x.log2(), -x, 1 / x, x.clamp_min(0), x.round(), x**-0.5, 1 / (1 + torch.exp(-x)), x.sign(),
        x * x.sigmoid(), x.sin(), x.sinh(), x**0.5, x.tan(), x.tanh(), x.trunc(),
    )  # fmt: skip


def causal_mask(scores: Tensor) -> Any:
    later = torch.ones(16, 16, dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -INF), scores * later


def order(x: Tensor) -> Any:
    values, indices = x.sort(1, descending=True)
    return values[:, :3], indices[:, :3], indices, x.cumsum(1)


def welford(x: Tensor) -> Any:
    return x.var(1, unbiased=False), x.mean(1), x.var(0, keepdim=True)


def channels_last(x: Tensor, scale: Tensor, bias: Tensor) -> Any:
    return (x.float() * scale[:, None, None] + bias[:, None, None]).relu().half(), x.float().sum((0, 2, 3))


def dimensions(x: Tensor, y: Tensor) -> Any:
    both = x[0, :, 0] + y
    return (both[:, None] ** 2).repeat(1, 4, 1), both.reshape(9, 6), both.mT, both


def embedding(ids: Tensor, table: Tensor) -> Any:
    rows = table[ids].float()
    return rows / (rows.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def complex_numbers(x: Tensor) -> Any:
    y = x * (3 + 0.5j)
    return y.abs(), y.real + y.imag


def scatter(base: Tensor, index: Tensor, source: Tensor) -> Any:
    return base.clone().scatter_(1, index, source).sigmoid()


def own_helpers(x: Tensor, y: Tensor) -> Any:
    return F.rms_norm(x, [32], eps=1e-6) + y


def bias_gelu_layer_norm(weight: Tensor, bias: Tensor, x: Tensor) -> Any:
    wide = x.view(1, 64, 48).float()
    gelu = (wide * 0.5 * (1 + torch.erf(wide * 0.707107))).half().float()
    out, mean, rstd = torch.native_layer_norm(gelu, [48], weight, bias, 1e-5)
    return x.view(1, 64, 48), mean, rstd, out.half().view(64, 48)


def first_example(x: Tensor, y: Tensor) -> Any:
    return ((x + y) * 6).relu().sum(-1)


def two_fusions_0(x: Tensor, y: Tensor) -> Any:
    return x[:, None] + y


def two_fusions_1(x: Tensor, y: Tensor) -> Any:
    return x + y


def half_to_double(x: Tensor, y: Tensor) -> Any:
    return (x.double() + y).relu()


def window_attention(x: Tensor, y: Tensor) -> Any:
    rows = x.reshape(4, 12, 96)
    return x.var(2, correction=0), rows.var(2, correction=0), rows.mean(2), y - x.mean(2, keepdim=True)


def squeezed(x: Tensor, y: Tensor, z: Tensor) -> Any:
    return x * y.flatten() * z.sum((0, 1)), torch.full((4, 2), 2.0)


def a_class(x: Tensor, y: Tensor) -> Any:
    return x + y


def unit_test_case(x: Tensor) -> Any:
    outputs = x + 1.0, x + 5.0
    x.add_(2.0)
    return outputs


def numbers(x: Tensor) -> Any:
    one, other = torch.tensor(3), torch.tensor(5)
    chosen = torch.where(x, one, other)
    return chosen.double(), chosen.float(), chosen.int(), torch.where(x, 15, -5), x.clone()


def rms_norm_vectors(x: Tensor, weight: Tensor) -> Any:
    size = (x.float().square().mean(1, keepdim=True) + 1e-5).sqrt()
    return (weight.float() * (x.float() / size)).half(), size


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Any:
    return F.batch_norm(x, mean, var, weight, bias, eps=1e-5).relu()


def random_numbers(x: Tensor) -> Any:
    dropped = x * (torch.rand_like(x) > 0.1) * 1.11111
    return dropped, dropped + torch.randn(32, 24) * 0.5 + 2.0


_TODAY: list[Callable[..., Any]] = [
    layer_norm, layer_norm_backward, softmax_dropout, rope, silu_mul, cross_entropy, look_ups, repeated_and_padded,
    running_mean, linear_gelu, attention, integers, choices, functions, causal_mask, order, welford, channels_last,
    dimensions, embedding, complex_numbers, scatter, own_helpers, written_attention,
]  # fmt: skip
_OLD: list[Callable[..., Any]] = [
    bias_gelu_layer_norm, first_example, half_to_double, window_attention, squeezed, a_class, unit_test_case, numbers,
    rms_norm_vectors, batch_norm, random_numbers,
]  # fmt: skip

REFERENCES: dict[str, tuple[Callable[..., Any], ...]] = {
    **{f"today/{function.__name__}": (function,) for function in _TODAY},
    **{f"old/{function.__name__}": (function,) for function in _OLD},
    "old/two_fusions": (two_fusions_0, two_fusions_1),
}

ON_GPUS = {
    "sdpfa_bwd": """
with FusionDefinition() as fd:
    q = fd.define_tensor(shape=[2, 4, 64, 32], contiguity=True, dtype=DataType.Half)
    k = fd.define_tensor(shape=[2, 4, 48, 32], contiguity=True, dtype=DataType.Half)
    v = fd.define_tensor(shape=[2, 4, 48, 32], contiguity=True, dtype=DataType.Half)
    grad = fd.define_tensor(shape=[2, 4, 64, 32], contiguity=True, dtype=DataType.Half)
    p, causal = fd.define_scalar(0.0), fd.define_scalar(False)
    out, lse, seed, offset = fd.ops.sdpfa_fwd(q, k, v, p, causal, None)
    for tensor in fd.ops.sdpfa_bwd(grad, q, k, v, out, lse, p, causal, seed, offset, scale=None):
        fd.add_output(tensor)
""",
    "grouped_mm": """
with FusionDefinition() as fd:
    mat1 = fd.define_tensor(shape=[64, 32], contiguity=True, dtype=DataType.BFloat16)
    mat2 = fd.define_tensor(shape=[4, 32, 16], contiguity=True, dtype=DataType.BFloat16, stride_order=[2, 0, 1])
    offsets = fd.define_tensor(shape=[4], contiguity=True, dtype=DataType.Int32)
    fd.add_output(fd.ops.grouped_mm(mat1, mat2, offsets))
""",
}
"""Ops whose kernels only GPUs have: on a CPU it can be seen what they are, and the shapes of what they give."""

# the three cases of the beginning, as programs of PyTorch


def gelu_between_views(x: Tensor) -> Tensor:
    x = x.view(64, 128, 3072)
    return (x * 0.5 * ((x * 0.707107).erf() + 1.0)).view(8192, 3072)


def attention_transpose(x: Tensor) -> Tensor:
    heads = x.view(64, 12, 128, 64).permute(0, 2, 1, 3).contiguous()
    return heads.view(64, 128, 768).view(8192, 768)


def three_views(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return ((x.view(8192, 3072) + y).view(64, 128, 3072) * z).view(8192, 3072)


THEN_AND_NOW: dict[str, tuple[Callable[..., Tensor], list[list[int]]]] = {
    "gelu_between_views": (gelu_between_views, [[8192, 3072]]),
    "attention_transpose": (attention_transpose, [[768, 128, 64]]),
    "three_views": (three_views, [[64, 128, 3072], [8192, 3072], [64, 128, 3072]]),
}


def text_of(script: str) -> str:
    """The script of that name, as "today/rope"."""
    return (SCRIPTS / f"{script}.py").read_text(encoding="utf-8")


def graph_key(function: Callable[..., Any], *args: Tensor) -> str:
    """The key of the ATen graph that a program of one graph is captured as."""
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="fuseplan", options={"plan": "aten"})
    with torch.no_grad():
        compiled(*args)
    (program,) = programs_of(compiled_by(compiled))
    (record,) = program.graphs
    return record.graph.key
