"""Statistics of norms whose dtype tracing does not know, with the norm under ATen and what comes of them in a region."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from norm_programs import Low, Mixed, assert_like_eager


@pytest.mark.parametrize("executor", ["inductor", "nvfuser"])
def test_running_statistics_in_low_precision(executor: str) -> None:
    torch.manual_seed(0)
    words = ("_to_copy", "sin", "mul") if executor == "inductor" else ("_to_copy", "sin", "mul", "copy_")
    assert_like_eager(Low().cuda(), torch.randn(8, 16, device="cuda").bfloat16(), "forward", words, executor)


@pytest.mark.parametrize("executor", ["inductor", "nvfuser"])
@pytest.mark.parametrize(
    ("role", "words"),
    [("backward", ("mul", "_to_copy", "layer_norm_backward")), ("forward", ("layer_norm", "mul", "sin"))],
)
def test_saved_statistics_under_weights_in_float32(executor: str, role: str, words: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    assert_like_eager(
        Mixed(nn.LayerNorm(16)).cuda(), torch.randn(8, 16, device="cuda").bfloat16(), role, words, executor
    )
