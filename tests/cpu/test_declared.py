"""Statistics of norms whose dtype tracing does not know: whoever runs the norm, and whoever what comes of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from norm_programs import Low, Mixed, Weighted, assert_like_eager


def layer() -> nn.Module:
    return Mixed(nn.LayerNorm(16))


def group() -> nn.Module:
    return Mixed(nn.GroupNorm(4, 16))


def batch() -> nn.Module:
    return Mixed(nn.BatchNorm1d(16))


Case = tuple[Callable[[], nn.Module], str, tuple[str, ...]]
READ: dict[str, Case] = {
    "saved ones of a layer norm": (layer, "backward", ("mul", "layer_norm_backward")),
    "saved ones of a group norm": (group, "backward", ("group_norm_backward",)),
    "saved ones of a batch norm": (batch, "backward", ("mul", "batch_norm_backward")),
    "what a group norm gives back": (group, "backward", ("_to_copy", "sin", "neg")),
    "running ones": (Low, "forward", ("_to_copy", "sin", "mul")),
}
MADE: dict[str, Case] = {
    "of a layer norm": (layer, "forward", ("layer_norm", "mul", "sin")),
    "of a group norm": (group, "forward", ("group_norm", "mul", "sin")),
    "of a batch norm": (batch, "forward", ("batch_norm", "mul", "sin")),
    "of a weight norm": (Weighted, "forward", ("weight_norm",)),
}


def given(name: str) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(8, 16, dtype=torch.float16 if "weight" in name else torch.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize("saving", ["min-cut", "all"])
@pytest.mark.parametrize("name", READ)
def test_statistics_that_a_region_reads_are_in_its_dtype(name: str, saving: str) -> None:
    kind, role, words = READ[name]
    assert_like_eager(kind(), given(name), role, words, "inductor", saving=saving)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:fuseplan. a region of")
@pytest.mark.parametrize("name", MADE)
def test_statistics_that_others_read_are_not_rounded(name: str) -> None:
    kind, role, words = MADE[name]
    assert_like_eager(kind(), given(name), role, words, "inductor", refused=True)


@pytest.mark.slow
def test_what_aten_runs_in_a_regions_place_is_given_what_came() -> None:
    """Statistics in float32, which its backward of a norm insists on, whatever the region was compiled for."""
    assert_like_eager(layer(), given(""), "backward", ("layer_norm_backward",), "aten")
