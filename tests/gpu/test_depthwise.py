"""Convolutions channel by channel, by Triton kernels of our own: as accurate as the library's, whatever their sizes."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuseplan
from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by
from fuseplan.plan import Plan, Rewrite
from fuseplan.runtime.capture_place import SETTLING

pytestmark = pytest.mark.gpu
LAST = {"memory_format": torch.channels_last}
SHAPES = [
    (2, 96, 56, 56, 7, 1, 3), (3, 72, 28, 28, 5, 2, 2), (4, 16, 31, 45, 3, 1, 1), (4, 64, 30, 31, 3, 2, 1), (1, 5, 9, 7, 3, 1, 0),
    (2, 960, 7, 7, 5, 1, 2), (2, 20, 16, 17, 3, 3, 1), (2, 12, 14, 14, 2, 2, 0), (1, 130, 8, 8, 7, 2, 3), (2, 8, 3, 3, 3, 1, 0),
]  # fmt: skip
"""Images, channels, rows, columns; how large the kernel is, its steps, what is added at the edges."""


def far(found: Tensor, right: Tensor) -> float:
    return float((found.double() - right).norm() / right.norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_operators_are_as_accurate_as_the_library_s(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    images, channels, rows, columns, size, stride, padding = shape
    torch.manual_seed(0)
    x = torch.randn(images, channels, rows, columns, device="cuda", dtype=dtype).to(**LAST).requires_grad_()
    weight = torch.randn(channels, 1, size, size, device="cuda", dtype=dtype, requires_grad=True)
    bias = torch.randn(channels, device="cuda", dtype=dtype, requires_grad=True)
    given = (x, weight, bias)
    exact = [one.detach().double().requires_grad_() for one in given]
    want = F.conv2d(*exact, stride, padding, groups=channels)
    grad = torch.randn_like(want).to(dtype)
    right = [want.detach(), *torch.autograd.grad(want, exact, grad.double())]
    errors = []
    for call in (
        lambda: torch.ops.fuseplan.depthwise(*given, stride, padding),
        lambda: F.conv2d(*given, stride, padding, groups=channels),
    ):
        out = call()
        *found, of_bias = out, *torch.autograd.grad(out, given, grad)
        errors.append([far(*pair) for pair in zip(found, right[:-1], strict=True)])
        sums, sizes = (one.double().sum((0, 2, 3)) for one in (grad, grad.abs()))  # sums may cancel out
        rounding = torch.finfo(dtype).eps * sums.abs() + torch.finfo(torch.float32).eps * sizes
        assert ((of_bias.double() - sums).abs() <= rounding).all()
    for ours, library in zip(*errors, strict=True):
        assert ours <= 1.1 * library + torch.finfo(dtype).eps / 8, errors


@pytest.mark.parametrize("lies", ["a column", "every second", "one for all"])
def test_a_bias_may_lie_as_it_likes(lies: str) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 16, 9, 9, device="cuda").to(**LAST), torch.randn(16, 1, 3, 3, device="cuda")
    some = torch.randn(16, 2, device="cuda")
    bias = {"a column": some[:, 1], "every second": some.flatten()[::2], "one for all": some[:1, 0].expand(16)}[lies]
    right = F.conv2d(x.double(), weight.double(), bias.double(), 1, 1, groups=16)
    torch.testing.assert_close(
        torch.ops.fuseplan.depthwise(x, weight, bias, 1, 1).double(), right, rtol=1e-5, atol=1e-5
    )


def test_gradients_of_gradients_are_right() -> None:
    torch.manual_seed(0)
    given = [torch.randn(*shape, device="cuda").requires_grad_() for shape in ((2, 16, 9, 9), (16, 1, 3, 3), (16,))]
    found = []
    for call in (
        partial(torch.ops.fuseplan.depthwise, stride=2, padding=1),
        partial(F.conv2d, stride=2, padding=1, groups=16),
    ):
        gradients = torch.autograd.grad(call(*given).square().sum(), given, create_graph=True)
        penalty = sum(one.square().sum() for one in gradients)
        assert isinstance(penalty, Tensor)
        found.append([*gradients, *torch.autograd.grad(penalty, given)])
    for ours, theirs in zip(*found, strict=True):
        assert far(ours, theirs.double()) < 1e-4


def test_sums_are_always_the_same() -> None:
    x = torch.randn(8, 64, 28, 28, device="cuda").to(**LAST)
    grad = torch.randn_like(x)
    first, *others = (torch.ops.fuseplan.depthwise_weight(grad, x, 5, 1, 2) for _ in range(4))
    assert all(torch.equal(first, one) for one in others)


class Small(nn.Module):
    """What MobileNet and ConvNeXt have around them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Conv2d(8, 32, 1, bias=False), nn.BatchNorm2d(32)
        self.first = nn.Conv2d(32, 32, 3, 2, 1, groups=32, bias=False)
        self.second = nn.Conv2d(32, 32, 7, 1, 3, groups=32)
        self.down = nn.Conv2d(32, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardswish(self.norm(self.up(x)))
        return self.down(F.gelu(self.second(self.first(x))))  # type: ignore[no-any-return]


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("launch", ["plain", "cudagraph"])
@pytest.mark.parametrize("host", ["inductor", "aten"])
@pytest.mark.parametrize("channels_last", [False, True], ids=["as it is", "channels last"])
def test_a_plan_with_them_trains(channels_last: bool, host: str, launch: str) -> None:
    torch.manual_seed(0)
    net = Small().cuda().bfloat16()
    net = net.to(**LAST) if channels_last else net  # type: ignore[call-overload]
    exact = copy.deepcopy(net).double()
    rewrites = tuple(Rewrite("depthwise", site, "triton") for site in range(2))
    call = fuseplan.compile(net, plan=Plan(host, rewrites, launch=launch))
    for _ in range(SETTLING + 2):
        x = torch.randn(4, 8, 30, 26, device="cuda", dtype=torch.bfloat16)
        x = x.to(**LAST) if channels_last else x
        wanted = exact(x.double())
        right = [wanted, *torch.autograd.grad(wanted.square().mean(), list(exact.parameters()))]
        errors, strides = [], []
        for each in (call, net):
            out = each(x)
            grads = torch.autograd.grad(out.float().square().mean(), list(net.parameters()))
            errors.append([far(*pair) for pair in zip((out, *grads), right, strict=True)])
            strides.append(out.stride())
        assert strides[0] == strides[1]
        for ours, eager in zip(*errors, strict=True):
            assert ours <= 1.5 * eager + 2e-3, errors
    (program,) = programs_of(compiled_by(call))
    if host == "aten":  # Inductor has its programs whole
        targets = [op.target for record in program.graphs for op in record.graph.ops]
        assert sum("depthwise" in target for target in targets) == 6  # forward, and gradients of images and of weights
