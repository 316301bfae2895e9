"""Matmuls of few rows by a kernel of our own: as accurate as the library's, under both launches, and preferred."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fuseplan
from agreement import assert_as_accurate, in_double
from cpu.test_few_rows import Layer, every
from fuseplan.capture.fx.own_kernels import processors_of
from fuseplan.kernels.tiling import MOST_ROWS, Tiling
from fuseplan.plan import Plan
from fuseplan.runtime.capture_place import LEARNING
from rewriting import sites_in

pytestmark = pytest.mark.gpu
OPERATOR = torch.ops.fuseplan.few_rows
SHAPES = [
    (128, (8,)), (64, (16, 24)), (4096, (4096, 1024, 1024)), (896, (896, 128, 128)), (1000, (17, 3, 250, 5)),
    (72, (152064,)), (6912, (1152,)), (8, (40,)), (2048, (5632, 5632)), (14336, (4096,)),
]  # fmt: skip
"""Features, and the columns of each matrix."""


def far(found: Tensor, right: Tensor) -> float:
    return float((found.double() - right).norm() / right.norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("features", "columns"), SHAPES)
def test_the_operator_is_as_accurate_as_the_library(
    features: int, columns: tuple[int, ...], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    like = {"device": "cuda", "dtype": dtype}
    weights = [torch.randn(n, features, **like) / features**0.5 for n in columns]  # type: ignore[call-overload]
    for rows in (1, 3, 8, 16, 17, 32, 33, MOST_ROWS):
        x = torch.randn(rows, 1, features, **like)  # type: ignore[call-overload]
        for biases in ([], [torch.randn(n, **like) for n in columns]):  # type: ignore[call-overload]
            given = list(zip(weights, biases or [None] * len(columns), strict=True))
            right = torch.cat([F.linear(x.double(), w.double(), b if b is None else b.double()) for w, b in given], -1)
            library = torch.cat([F.linear(x, w, b) for w, b in given], -1)
            for parts in {1, 2, Tiling.of(rows, features, columns, processors_of(x.device)).parts}:
                if parts > -(-features // 64):
                    continue
                found = OPERATOR(x, weights, biases, parts)
                ours = found if parts == 1 else found.sum(0).to(dtype)
                assert (ours.dtype, ours.shape, ours.stride()) == (library.dtype, library.shape, library.stride())
                assert far(ours, right) <= 1.05 * far(library, right) + 1e-6, (rows, parts)
                again = OPERATOR(x, weights, biases, parts)
                assert torch.equal(found, again)


@pytest.mark.parametrize("rows", [65, 77, 128, 197])
def test_the_kernel_is_as_accurate_where_no_program_has_all_rows(rows: int) -> None:
    from fuseplan.kernels import few_rows

    torch.manual_seed(0)
    for features, columns in ((768, (768, 768, 768)), (3072, (768,)), (136, (33, 70))):
        like = {"device": "cuda", "dtype": torch.bfloat16}
        x = torch.randn(rows, features, **like)  # type: ignore[call-overload]
        weights = [torch.randn(n, features, **like) / features**0.5 for n in columns]  # type: ignore[call-overload]
        tiling = Tiling.of(rows, features, columns, processors_of(x.device))
        y = torch.empty(tiling.parts, rows, sum(columns), device="cuda")
        few_rows.multiply(x, weights, [], y, tiling)
        right = torch.cat([F.linear(x.double(), w.double()) for w in weights], -1)
        library = torch.cat([F.linear(x, w) for w in weights], -1)
        assert far(y.sum(0).to(x.dtype), right) <= 1.05 * far(library, right) + 1e-6


def test_what_lies_otherwise_is_computed_all_the_same() -> None:
    wide = torch.randn(64, 257, device="cuda", dtype=torch.bfloat16)
    for rows, weight in (
        (torch.randn(4, 256), wide[:, 1:]), (torch.randn(4, 512)[:, ::2], wide[:, :256].contiguous()),
        (torch.randn(256, 4).t(), wide.flatten()[1 : 1 + 32 * 256].view(32, 256)), (torch.randn(0, 256), wide[:, :256].contiguous()),
        (torch.randn(2, 2, 257)[..., :256], wide[:, :256].contiguous()), (torch.randn(200, 256), wide[:, :256].contiguous()),
    ):  # fmt: skip
        x = rows.to("cuda", torch.bfloat16)
        right = F.linear(x.double(), weight.double())
        for parts in (1, 2):
            found = OPERATOR(x, [weight], [], parts)
            ours = found if parts == 1 else found.sum(0).to(x.dtype)
            torch.testing.assert_close(ours.double(), right, rtol=0.02, atol=0.1)


def test_biases_that_lie_apart() -> None:
    like = {"device": "cuda", "dtype": torch.bfloat16}
    x, weight = torch.randn(4, 256, **like), torch.randn(64, 256, **like)  # type: ignore[call-overload]
    for bias in (torch.randn(128, **like)[::2], torch.randn(1, **like).expand(64), torch.randn(65, **like)[1:]):  # type: ignore[call-overload]
        right = F.linear(x.double(), weight.double(), bias.double())
        torch.testing.assert_close(OPERATOR(x, [weight], [bias], 1).double(), right, rtol=0.02, atol=0.1)


@pytest.mark.parametrize("launch", ["plain", "cudagraph"])
@pytest.mark.parametrize("host", ["inductor", "aten"])
def test_a_layer_is_right_while_its_weights_change(host: str, launch: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Layer(1024, bias=True).to("cuda", torch.bfloat16).requires_grad_(False)
    compiled = fuseplan.compile(model, plan=Plan(host, every(4), launch=launch), dynamic=False)
    for turn in range(LEARNING + 4):
        x = torch.randn(8, 1, 1024, device="cuda", dtype=torch.bfloat16)
        model.query.weight.mul_(-1)
        assert_as_accurate(compiled(x), model(x), in_double(copy.deepcopy(model))(x.double())), turn


def test_rows_that_vary_and_become_many() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Layer(1024, bias=True).to("cuda", torch.bfloat16).requires_grad_(False)
    compiled = fuseplan.compile(model, plan=Plan("inductor", every(4)), dynamic=True)
    for rows in (20, 32, 5, 64, 200, MOST_ROWS + 1):
        x = torch.randn(rows, 1, 1024, device="cuda", dtype=torch.bfloat16)
        assert_as_accurate(compiled(x), model(x), in_double(copy.deepcopy(model))(x.double()))


def test_it_is_preferred() -> None:
    model = Layer(1024).to("cuda", torch.bfloat16).requires_grad_(False)
    x = torch.randn(8, 1, 1024, device="cuda", dtype=torch.bfloat16)
    assert [site.preferred for site in sites_in("few-rows", model, x)] == ["triton"] * 4
    assert {site.refusal("triton") for site in sites_in("few-rows", model.float(), x.float())} == {
        "the kernel does not multiply float32"
    }
