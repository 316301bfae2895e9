"""Attention kept whole on the GPU: a mask that shows all keys or none keeps no fused kernel away."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import fuseplan.capture.fx.composites  # noqa: F401 - defines the operator
from agreement import assert_as_accurate, in_double

FUSED = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]


@pytest.mark.parametrize("hidden", [(), (3, 100)], ids=["sees all", "some see nothing"])
def test_a_mask_that_is_expanded_along_the_keys_runs_under_a_fused_kernel(hidden: tuple[int, ...]) -> None:
    inputs = [torch.randn(4, 12, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    mask = torch.ones(128, dtype=torch.bool, device="cuda")
    mask[list(hidden)] = False
    mask = mask[:, None].expand(4, 1, 128, 128)
    with sdpa_kernel(FUSED):
        actual = torch.ops.fuseplan.sdpa(*inputs, mask, False, None, False)
        with pytest.raises(RuntimeError, match="No available kernel"):
            F.scaled_dot_product_attention(*inputs, attn_mask=mask)  # or the operator need not do this any longer
    with sdpa_kernel(SDPBackend.MATH):
        eager = F.scaled_dot_product_attention(*inputs, attn_mask=mask)
        exact = F.scaled_dot_product_attention(*in_double(inputs), attn_mask=mask)
    fused = F.scaled_dot_product_attention(*inputs) * mask[..., :1]
    assert_as_accurate(actual, fused, exact)
    assert not actual[:, :, list(hidden)].any()
    assert not eager[:, :, list(hidden)].any()
