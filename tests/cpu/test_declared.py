"""Statistics of norms whose dtype tracing does not know: whoever runs the norm, and whoever what comes of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from norm_programs import Low, Mixed, assert_like_eager

CASES: dict[str, tuple[type[nn.Module], str, tuple[str, ...]]] = {
    "saved ones, read by a region": (Mixed, "backward", ("mul", "layer_norm_backward")),
    "a region that would save them": (Mixed, "forward", ("layer_norm", "mul", "sin")),
    "running ones, read by a region": (Low, "forward", ("_to_copy", "sin", "mul")),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:fuseplan. a region of")  # the second case is ATen's
@pytest.mark.parametrize("name", CASES)
def test_statistics_are_what_eager_makes_them(name: str) -> None:
    kind, role, words = CASES[name]
    torch.manual_seed(0)
    assert_like_eager(kind(), torch.randn(8, 16).bfloat16(), role, words, "inductor")
