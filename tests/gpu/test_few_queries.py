"""Attention of a few queries by kernels of our own: as accurate as the library's, whatever is masked, and captured while a cache fills."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fuseplan
from attention_calls import found_in
from fuseplan.capture.fx import split_keys
from fuseplan.plan import Plan, Rewrite
from fuseplan.runtime.capture_place import SETTLING

pytestmark = pytest.mark.gpu
OPERATOR = torch.ops.fuseplan.sdpa_split_keys
SHAPES = [
    (1, 32, 8, 1, 4096, 128, 128), (8, 16, 16, 1, 513, 64, 64), (2, 8, 1, 1, 1000, 256, 256), (3, 6, 2, 4, 77, 32, 32),
    (2, 12, 2, 1, 300, 80, 48), (1, 4, 4, 16, 64, 96, 96), (64, 16, 8, 1, 8192, 64, 64), (1, 4, 2, 1, 1, 64, 64),
]  # fmt: skip
"""Batches, heads, groups of them, queries, keys, features of keys and of values."""
KINDS = ("none", "filled", "by batch", "window", "random", "biased", "hidden by numbers")


def mask_of(kind: str, batches: int, heads: int, queries: int, keys: int, dtype: torch.dtype) -> Tensor | None:
    places, shown = torch.arange(keys, device="cuda"), torch.rand(batches, heads, queries, keys, device="cuda") < 0.5
    shown[..., 0] = True
    found: dict[str, Tensor | None] = {
        "none": None,
        "filled": (places <= keys // 3).expand(batches, 1, queries, keys),
        "by batch": places <= torch.randint(keys, (batches, 1, 1, 1), device="cuda"),
        "window": ((places >= keys // 2) & (places < keys // 2 + 50)).expand(batches, 1, queries, keys),
        "random": shown,
        "biased": torch.randn(1, heads, queries, keys, device="cuda", dtype=dtype),
        "hidden by numbers": torch.zeros(batches, 1, queries, keys, device="cuda", dtype=dtype).masked_fill(
            ~shown[:, :1], -torch.inf
        ),
    }
    return found[kind]


def far(found: Tensor, right: Tensor) -> float:
    return float((found.double() - right).norm() / right.norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_the_operator_is_as_accurate_as_the_library(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    batches, heads, groups, queries, keys, features, width = shape
    torch.manual_seed(0)
    like: dict[str, Any] = {"device": "cuda", "dtype": dtype}
    q, k = torch.randn(batches, heads, queries, features, **like), torch.randn(batches, groups, keys, features, **like)
    v = torch.randn(batches, keys, groups, width, **like).transpose(1, 2)
    for kind in KINDS:
        mask = mask_of(kind, batches, heads, queries, keys, dtype)
        wide = mask if mask is None or mask.dtype == torch.bool else mask.double()
        right = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), wide, enable_gqa=True)
        library = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
        ours = OPERATOR(q, k, v, mask, None)
        assert (ours.dtype, ours.shape) == (library.dtype, library.shape)
        terms = F.scaled_dot_product_attention(q.double(), k.double(), v.double().abs(), wide, enable_gqa=True)
        # sums of terms that cancel, in float32 and in another order
        sums = torch.finfo(torch.float32).eps * float(terms.norm() / right.norm())
        allowed = 2 * far(library, right) + torch.finfo(dtype).eps / 2 + sums
        assert far(ours, right) <= allowed, (kind, far(ours, right), allowed)


def test_parts_are_small_as_long_as_there_are_not_too_many() -> None:
    from fuseplan.kernels.split_keys import MOST_PARTS, KeyParts

    asked = [(4096, 8, 132), (4096, 256, 132), (40, 8, 132), (1 << 20, 1, 132)]
    assert [(one.each, one.count) for one in (KeyParts.of(*each) for each in asked)] == [
        (64, 64), (1024, 4), (64, 1), ((1 << 20) // MOST_PARTS, MOST_PARTS),
    ]  # fmt: skip


def test_what_is_not_filled_is_not_read() -> None:
    q, k, v = (torch.randn(2, heads, length, 64, device="cuda") for heads, length in ((8, 1), (2, 1000), (2, 1000)))
    mask = (torch.arange(1000, device="cuda") <= 255).expand(2, 1, 1, 1000)  # the end of a block
    right = F.scaled_dot_product_attention(q, k[:, :, :256], v[:, :, :256], enable_gqa=True)
    k[:, :, 256:] = v[:, :, 256:] = torch.nan
    torch.testing.assert_close(OPERATOR(q, k, v, mask, None), right, rtol=1e-5, atol=1e-5)
    assert not OPERATOR(q, k, v, torch.zeros_like(mask), None).any()


def test_other_head_sizes_and_dtypes_are_torch_s() -> None:
    for size, dtype in ((8, torch.float32), (64, torch.float64)):
        q, k, v = (torch.randn(1, 2, length, size, device="cuda", dtype=dtype) for length in (1, 50, 50))
        assert not split_keys._takes(q, v)
        torch.testing.assert_close(OPERATOR(q, k, v, None, None), F.scaled_dot_product_attention(q, k, v))


class Layer(torch.nn.Module):
    """One step of decoding over a cache that is written to where it lies."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.values = (torch.zeros(2, 2, 512, 64, device="cuda") for _ in range(2))

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        self.keys.index_copy_(2, at, x[:, :2])
        self.values.index_copy_(2, at, x[:, 2:4])
        mask = (torch.arange(512, device=x.device) <= at).expand(2, 1, 1, 512)
        keys, values = (
            one[:, :, None].expand(2, 2, 4, 512, 64).reshape(2, 8, 512, 64) for one in (self.keys, self.values)
        )
        return F.scaled_dot_product_attention(x, keys, values, mask)


@pytest.mark.parametrize("host", ["inductor", "aten"])
@pytest.mark.parametrize("way", ["split+grouped", "auto+packed"])
def test_steps_are_captured_while_the_cache_fills(way: str, host: str) -> None:
    layer, twin = Layer(), Layer()
    with torch.no_grad():
        (site,), _ = found_in(Layer(), torch.randn(2, 8, 1, 64, device="cuda"), torch.tensor([0], device="cuda"))
        assert way in site.variants, site.refusal(way)
        assert site.preferred == "split+grouped"
        torch._dynamo.reset()
        call = fuseplan.compile(layer, plan=Plan(host, (Rewrite("attention", 0, way),), launch="cudagraph"))
        for number in range(SETTLING + 120):
            x, at = torch.randn(2, 8, 1, 64, device="cuda"), torch.tensor([number], device="cuda")
            torch.testing.assert_close(call(x, at), twin(x, at), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(layer.keys, twin.keys, rtol=0.0, atol=0.0)
