"""Convolutions channel by channel as an operator of ours: the same numbers, in the same layout, found wherever they are called."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fuseplan
from agreement import assert_same
from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by
from fuseplan.plan import Rewrite
from plans import on_both_hosts
from rewriting import sites_in, with_gradients, with_rewrites

OURS = (Rewrite("depthwise", 0, "triton"),)
LAST = {"memory_format": torch.channels_last}
LAYOUTS = ("as it is", "channels last")
Call = Callable[..., Tensor]


def by_channel(channels: int, size: int, stride: int = 1, padding: Any = 0, bias: bool = True) -> nn.Conv2d:
    return nn.Conv2d(channels, channels, size, stride, padding, groups=channels, bias=bias)


CASES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "MobileNet's": (by_channel(8, 3, 1, 1, bias=False), (2, 8, 12, 10)),
    "every second": (by_channel(8, 3, 2, 1, bias=False), (2, 8, 11, 10)),
    "EfficientNet's": (by_channel(12, 5, 2, 2), (2, 12, 14, 14)),
    "ConvNeXt's": (by_channel(16, 7, 1, 3), (2, 16, 8, 8)),
    "at the edges only": (by_channel(5, 3), (1, 5, 3, 3)),
    "said in words": (by_channel(4, 2, padding="valid"), (2, 4, 5, 5)),
    "as large as it was": (by_channel(4, 5, padding="same"), (2, 4, 6, 5)),
}


def compiled(call: Call, host: str = "aten") -> Call:
    return with_rewrites(call, OURS, host)


def trained(call: Call, x: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    return with_gradients(call(x), inputs)


@pytest.mark.parametrize(
    ("case", "layout", "host"), on_both_hosts(product(CASES, LAYOUTS), [("EfficientNet's", "channels last")])
)
def test_results_gradients_and_strides_are_the_same(case: str, layout: str, host: str) -> None:
    given, shape = CASES[case]
    layer = copy.deepcopy(given).double()
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64)
    x = (x.to(**LAST) if layout == "channels last" else x).requires_grad_()

    def net(x: Tensor) -> Tensor:
        return layer(x.sin()).cos()  # type: ignore[no-any-return]

    inputs = [one for one in (x, *layer.parameters()) if one.requires_grad]
    (site,) = sites_in("depthwise", net, x)
    assert (site.refusal("triton"), site.preferred) == (None, None)  # on a CPU it is the same
    assert_same(trained(compiled(net, host), x, inputs), trained(net, x, inputs), bitwise=False)


def test_no_convolution_is_left() -> None:
    layer, shape = CASES["ConvNeXt's"]
    made = compiled(layer)
    made(torch.randn(shape)).sum().backward()
    (program,) = programs_of(compiled_by(made))
    targets = {op.target for record in program.graphs for op in record.graph.ops}
    assert not any("convolution" in target for target in targets)
    assert {"fuseplan.depthwise.default", "fuseplan.depthwise_weight.default"} <= targets
    assert "fuseplan.depthwise_input.default" not in targets  # nobody asks for it
    told = "depthwise convolution 0: 7 × 7 over 16 channels, in steps of 1; variant triton"
    assert told in fuseplan.explain(made, graphs=False)


def test_a_batch_that_varies() -> None:
    layer, _ = CASES["MobileNet's"]
    made = compiled(layer)
    for batch in (2, 3, 5):
        x = torch.randn(batch, 8, 12, 10)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(made(x), layer(x))
    assert len(programs_of(compiled_by(made))) == 1


def test_autocast() -> None:
    layer, shape = CASES["EfficientNet's"]

    def call(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x)  # type: ignore[no-any-return]

    x, inputs = torch.randn(shape), list(layer.parameters())
    for got, want in zip(trained(compiled(call), x, inputs), trained(call, x, inputs), strict=True):
        assert (got.dtype, got.stride()) == (want.dtype, want.stride())
        torch.testing.assert_close(got, want, rtol=0.05, atol=0.05)


def test_autocast_leaves_double_as_it_is() -> None:
    layer = copy.deepcopy(CASES["EfficientNet's"][0]).double()

    def call(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x)  # type: ignore[no-any-return]

    x = torch.randn(2, 12, 14, 14, dtype=torch.float64)
    assert_same(compiled(call)(x), call(x), bitwise=False)


def test_a_checkpointed_block() -> None:
    layer, shape = CASES["ConvNeXt's"]

    def block(x: Tensor) -> Tensor:
        return F.silu(layer(x.sin()))

    def call(x: Tensor) -> Tensor:
        return checkpoint(block, x, use_reentrant=False).cos()  # type: ignore[no-any-return]

    x, inputs = torch.randn(shape), list(layer.parameters())
    found = trained(compiled(call), x, inputs)
    for got, want in zip(found, trained(call, x, inputs), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.conv2d(x, torch.ones(8, 2, 3, 3), groups=4),
        lambda x: F.conv2d(x, torch.ones(16, 1, 3, 3), groups=8),
        lambda x: F.conv2d(x, torch.ones(8, 8, 3, 3)),
        lambda x: F.conv1d(x[0], torch.ones(8, 1, 3), groups=8),
    ],
    ids=["channels meet", "two of each", "all meet", "a signal"],
)
def test_other_convolutions_are_no_sites(call: Call) -> None:
    assert sites_in("depthwise", call, torch.randn(2, 8, 8, 8)) == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"stride": (1, 2)}, "it is not the same in both directions"),
        ({"padding": (0, 1)}, "it is not the same in both directions"),
        ({"padding": "same", "weight": torch.ones(4, 1, 4, 4)}, "there is more padding on one side than on the other"),
        ({"dilation": 2}, "there is no kernel for its sizes"),
        ({"stride": 4}, "there is no kernel for its sizes"),
        ({"padding": 3}, "there is no kernel for its sizes"),
    ],
)
def test_what_no_kernel_does(options: dict[str, Any], why: str) -> None:
    given = {"weight": torch.ones(4, 1, 3, 3), **options}
    (site,) = sites_in("depthwise", lambda x: F.conv2d(x, groups=4, **given), torch.randn(2, 4, 9, 9))
    assert site.refusal("triton") == why
    assert site.refusal("another") == "there is no depthwise variant 'another'"


def test_what_lies_in_no_known_order_stays() -> None:
    layer, _ = CASES["ConvNeXt's"]
    (site,) = sites_in("depthwise", layer, torch.randn(2, 16, 8, 16)[..., ::2])
    assert site.refusal("triton") == "it does not lie in one piece"
    (site,) = sites_in("depthwise", lambda x: F.conv2d(x, layer.weight.mT, groups=16), torch.randn(2, 16, 8, 8))  # type: ignore[operator]
    assert site.refusal("triton") == "gradients would be laid out otherwise"


def test_what_would_lie_with_channels_last_behind_stays() -> None:
    """Weights that do have all of it computed so: the gradient of an image that does not comes back otherwise than it is."""
    layer, x = by_channel(8, 3, 1, 1).to(**LAST), torch.randn(2, 8, 6, 5)  # type: ignore[call-overload]
    (site,) = sites_in("depthwise", layer, x)
    assert site.refusal("triton") is None
    (site,) = sites_in("depthwise", layer, x.requires_grad_())
    assert site.refusal("triton") == "gradients would be laid out otherwise"
    (site,) = sites_in("depthwise", layer, x.detach().to(**LAST).requires_grad_())
    assert site.refusal("triton") is None


def test_complex_numbers_stay() -> None:
    call: Call = lambda x: F.conv2d(x, torch.ones(4, 1, 3, 3, dtype=torch.complex64), groups=4)  # noqa: E731
    (site,) = sites_in("depthwise", call, torch.randn(2, 4, 9, 9, dtype=torch.complex64))
    assert site.refusal("triton") == "the kernels compute in none of its dtypes"


@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_of_gradients_are_right(stride: int) -> None:
    x, weight = torch.randn(2, 3, 5, 6, dtype=torch.float64), torch.randn(3, 1, 3, 3, dtype=torch.float64)
    bias = torch.randn(3, dtype=torch.float64)
    given = [one.requires_grad_() for one in (x, weight, bias)]
    call = partial(torch.ops.fuseplan.depthwise, stride=stride, padding=1)
    assert torch.autograd.gradcheck(call, given)
    assert torch.autograd.gradgradcheck(call, given)


def test_sizes_that_vary_stay() -> None:
    layer, shape = CASES["MobileNet's"]
    x = torch.randn(shape)
    torch._dynamo.mark_dynamic(x, 3)
    (site,) = sites_in("depthwise", layer, x)
    assert site.refusal("triton") == "its sizes are known at run time only"


def test_on_a_gpu_it_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as a machine without one can tell: a site is asked about what it is of."""
    layer, shape = CASES["ConvNeXt's"]
    (site,) = sites_in("depthwise", layer, torch.randn(shape))
    kind, found = site.kind, site.found
    (x,) = (node for node in found.of.call.args[:1])
    given = x.meta["example_value"]
    with given.fake_mode:
        x.meta["example_value"] = torch.empty(given.shape, device="cuda")
    monkeypatch.setattr("fuseplan.rewrites.depthwise.no_kernels", lambda device: None)
    assert kind.preferred(found) == "triton"
    assert dict(kind.rivals(found)) == {"triton": "triton"}
    monkeypatch.setattr("fuseplan.rewrites.depthwise.LEAST_CHANNELS", 17)
    assert (kind.preferred(found), dict(kind.rivals(found))) == (None, {})
    monkeypatch.setattr("fuseplan.rewrites.depthwise.no_kernels", lambda device: "there is no Triton")
    assert kind.refusal(found, "triton") == "there is no Triton"
    assert kind.preferred(found) is None


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [2, 3, 5, 7])
def test_the_operators_are_what_torch_computes(size: int, stride: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6, 13, 11, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 1, size, size, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(6, dtype=torch.float64, requires_grad=True)
    given = (x, weight, bias)
    out = torch.ops.fuseplan.depthwise(*given, stride, size // 2)
    want = F.conv2d(*given, stride, size // 2, groups=6)
    grad = torch.randn_like(want)
    assert out.is_contiguous(**LAST)
    torch.testing.assert_close(out, want.to(**LAST))
    found = torch.autograd.grad(out, given, grad)
    for one, right in zip(found, torch.autograd.grad(want, given, grad), strict=True):
        torch.testing.assert_close(one, right, check_stride=False)
    torch.library.opcheck(torch.ops.fuseplan.depthwise.default, (*given, stride, size // 2))
