"""Convolutions whose patches lie beside each other, as matmuls: the same numbers, in the same layout."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuseplan
from agreement import assert_same
from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by
from fuseplan.plan import Rewrite
from plans import on_both_hosts
from rewriting import sites_in, with_gradients, with_rewrites

PATCHES = (Rewrite("convolution", 0, "patches"),)
LAST = {"memory_format": torch.channels_last}
LAYOUTS = ("as it is", "channels last")
Call = Callable[..., Tensor]
CASES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "an image becomes tokens": (nn.Conv2d(3, 8, 4, 4), (2, 3, 16, 12)),
    "without a bias": (nn.Conv2d(3, 8, 4, 4, bias=False), (2, 3, 16, 12)),
    "something is left at the end": (nn.Conv2d(3, 8, (4, 3), (4, 3)), (2, 3, 18, 13)),
    "many channels": (nn.Conv2d(16, 8, 2, 2, padding="valid"), (2, 16, 8, 8)),
    "one patch": (nn.Conv2d(3, 8, 4, 4), (1, 3, 4, 4)),
    "a signal": (nn.Conv1d(2, 5, 4, 4), (3, 2, 22)),
    "a film": (nn.Conv3d(3, 4, (2, 4, 4), (2, 4, 4)), (2, 3, 4, 8, 8)),
}


def trained(call: Call, x: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    return with_gradients(call(x), inputs)


def compiled(call: Call, host: str = "aten") -> Call:
    return with_rewrites(call, PATCHES, host)


@pytest.mark.parametrize(
    ("case", "layout", "host"),
    on_both_hosts(
        product(CASES, LAYOUTS),
        [("an image becomes tokens", "channels last"), ("something is left at the end", "as it is")],
    ),
)
def test_results_gradients_and_strides_are_the_same(case: str, layout: str, host: str) -> None:
    given, shape = CASES[case]
    layer = copy.deepcopy(given).double()
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64)
    if layout == "channels last" and x.dim() == 4:
        x, layer = x.to(**LAST), layer.to(**LAST)
    else:
        x.requires_grad_()
    inputs = [one for one in (x, *layer.parameters()) if one.requires_grad]
    (site,) = sites_in("convolution", layer, x)
    assert (site.refusal("patches"), site.preferred) == (None, None)  # on a CPU nobody has seen it pay
    made = compiled(layer, host)
    assert_same(trained(made, x, inputs), trained(layer, x, inputs), bitwise=False)


@pytest.mark.parametrize("host", ["aten", pytest.param("inductor", marks=pytest.mark.exhaustive)])
def test_tokens_that_are_viewed(host: str) -> None:
    """What reads the result by its strides finds them as they were."""
    layer = nn.Conv2d(3, 8, 4, 4)

    def tokens(x: Tensor) -> Tensor:
        return layer(x).view(2, 8 * 12).view(2, 8, 12).transpose(1, 2).relu()

    x = torch.randn(2, 3, 16, 12, requires_grad=True)
    inputs = [x, *layer.parameters()]
    assert_same(trained(compiled(tokens, host), x, inputs), trained(tokens, x, inputs), bitwise=False)


def test_no_convolution_is_left() -> None:
    layer, shape = CASES["an image becomes tokens"]
    made = compiled(layer)
    with torch.no_grad():
        made(torch.randn(shape))
    (program,) = programs_of(compiled_by(made))
    targets = [op.target for record in program.graphs for op in record.graph.ops]
    assert not any("convolution" in target for target in targets)
    assert sum("mm" in target for target in targets) == 1
    told = "convolution 0: patches of 4 × 4, 3 channels; variant patches"
    assert told in fuseplan.explain(made, graphs=False)


def test_a_batch_that_varies() -> None:
    layer, _ = CASES["an image becomes tokens"]
    made = compiled(layer)
    for batch in (2, 3, 5):
        x = torch.randn(batch, 3, 16, 12)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(made(x), layer(x))
    assert len(programs_of(compiled_by(made))) == 1


def test_autocast() -> None:
    layer, shape = nn.Conv2d(3, 8, 4, 4), (2, 3, 16, 12)

    def call(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x)  # type: ignore[no-any-return]

    x = torch.randn(shape, requires_grad=True)
    inputs = [x, *layer.parameters()]
    for got, want in zip(trained(compiled(call), x, inputs), trained(call, x, inputs), strict=True):
        assert (got.dtype, got.stride()) == (want.dtype, want.stride())
        torch.testing.assert_close(got, want, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2}, {"stride": 4, "padding": 1}, {"stride": 4, "padding": "valid", "groups": 3}, {"stride": 4, "dilation": 2},
    ],
    ids=["patches overlap", "padding", "groups", "dilation"],
)  # fmt: skip
def test_other_convolutions_are_no_sites(options: dict[str, Any]) -> None:
    weight = torch.randn(6, 3 // options.get("groups", 1), 4, 4)
    assert sites_in("convolution", lambda x: F.conv2d(x, weight, **options), torch.randn(2, 3, 16, 16)) == []
    assert sites_in("convolution", lambda x: F.conv2d(x, torch.randn(6, 3, 1, 1)), torch.randn(2, 3, 16, 16)) == []
    assert (
        sites_in("convolution", lambda x: F.conv2d(x, torch.randn(6, 3, 4, 4), stride=4), torch.randn(3, 16, 16)) == []
    )


@pytest.mark.parametrize("which", ["input", "weight", "input turned by the program"])
def test_gradients_are_laid_out_as_they_were(which: str) -> None:
    layer, x = nn.Conv2d(3, 8, 4, 4), torch.randn(2, 3, 16, 12)
    if which == "weight":
        layer = layer.to(**LAST)  # type: ignore[call-overload]
    elif which == "input":
        x = x.to(**LAST)
    else:
        layer, x = layer.to(**LAST), torch.randn(2, 16, 12, 3)  # type: ignore[call-overload]
    call = layer if x.shape[1] == 3 else lambda x: layer(x.permute(0, 3, 1, 2))
    (site,) = sites_in("convolution", call, x.requires_grad_())
    assert site.refusal("patches") == "gradients would be laid out otherwise"
    with torch.no_grad():
        (site,) = sites_in("convolution", call, x)
        assert site.refusal("patches") is None


def test_float32_stays_where_matmuls_may_be_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    layer = nn.Conv2d(3, 8, 4, 4)
    (site,) = sites_in("convolution", layer, torch.randn(2, 3, 16, 12))
    assert site.refusal("patches") == "matmuls in float32 may be rounded"
    (site,) = sites_in("convolution", copy.deepcopy(layer).bfloat16(), torch.randn(2, 3, 16, 12, dtype=torch.bfloat16))
    assert site.refusal("patches") is None


def test_sizes_that_vary_stay() -> None:
    layer, _ = CASES["an image becomes tokens"]
    x = torch.randn(2, 3, 16, 12)
    torch._dynamo.mark_dynamic(x, 3)
    (site,) = sites_in("convolution", layer, x)
    assert site.refusal("patches") == "its sizes are known at run time only"


def test_with_few_channels_on_a_gpu_it_is_preferred() -> None:
    """As far as a machine without one can tell: a site is asked about what it is of."""
    for channels, way in ((3, "patches"), (64, None)):
        layer = nn.Conv2d(channels, 8, 4, 4)
        (site,) = sites_in("convolution", layer, torch.randn(2, channels, 16, 12))
        kind, found = site.kind, site.found
        (x,) = (node for node in found.call.args[:1])
        given = x.meta["example_value"]
        with given.fake_mode:
            x.meta["example_value"] = torch.empty(given.shape, device="cuda")
        assert kind.preferred(found) == way
        assert dict(kind.rivals(found)) == {"patches": "patches"}
