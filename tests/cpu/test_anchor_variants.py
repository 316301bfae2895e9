"""Other ways to run an anchor give what the plain operator gives, strides included, or say that they cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from conformance.build import meta, region_of
from fuseplan.capture.fx.composites import composites_kept
from fuseplan.errors import ExecutorError, UnsupportedError
from fuseplan.executors.aten.executor import AtenExecutor
from fuseplan.graph import Graph, Op, Ref, TensorType, Value
from fuseplan.judge.regions import check

BF16 = torch.bfloat16


def holds(region: Graph, variant: str) -> None:
    """Fail unless the variant is offered and right."""
    assert variant in AtenExecutor().variants(region)
    result = check(region, AtenExecutor().compile(region, variant))
    assert result.ok, result.reason


MATMULS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "mm": (torch.mm, (meta(6, 5, dtype=BF16), meta(5, 7, dtype=BF16))),
    "mm of a transposed weight": (lambda a, w: a @ w.t(), (meta(16, 8, dtype=BF16), meta(13, 8, dtype=BF16))),
    "bmm": (torch.bmm, (meta(2, 3, 5), meta(2, 5, 7))),
    "addmm of a row": (torch.addmm, (meta(7), meta(6, 5), meta(5, 7))),
    "addmm of a matrix": (torch.addmm, (meta(6, 7), meta(6, 5), meta(5, 7))),
    "addmm of one number": (torch.addmm, (meta(1), meta(6, 5), meta(5, 7))),
    "addmm scaled": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), (meta(7), meta(8, 5), meta(5, 7))),
}


@pytest.mark.parametrize("name", MATMULS)
def test_padded_matmul(name: str) -> None:
    function, inputs = MATMULS[name]
    holds(_anchor(region_of(function, *inputs)), "padded")


def _anchor(graph: Graph) -> Graph:
    """The region of the one op that is no view."""
    from fuseplan.segment import extract

    return extract(graph, [i for i, op in enumerate(graph.ops) if not op.is_view])


def test_padding_is_not_offered_where_all_is_aligned() -> None:
    region = region_of(torch.mm, meta(8, 16, dtype=BF16), meta(16, 24, dtype=BF16))
    assert AtenExecutor().variants(region) == ("default",)


@pytest.mark.parametrize("transposed", [False, True])
def test_channels_last_convolution(transposed: bool) -> None:
    function = F.conv_transpose2d if transposed else F.conv2d
    holds(region_of(function, meta(2, 4, 9, 7), meta(4, 4, 3, 3), meta(4)), "channels_last")


def attention(mask: bool = False) -> Graph:
    """A region of attention kept whole, as capture makes it where eager would take the math path."""
    kind = TensorType("float32", (2, 3, 8, 16), (384, 128, 16, 1))
    inputs = [Value(name, kind) for name in "qkv"]
    if mask:
        inputs.append(Value("m", TensorType("bool", (2, 1, 8, 8), (64, 64, 8, 1))))
    args: tuple[Any, ...] = (Ref("q"), Ref("k"), Ref("v"), Ref("m") if mask else None, False, None, False)
    op = Op("fuseplan.sdpa.default", args, (), (Value("out", kind),))
    return Graph(tuple(inputs), (op,), (Ref("out"),))


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("kernel", ["flash", "math"])
def test_attention_by_a_kernel_of_choice(kernel: str, mask: bool) -> None:
    assert composites_kept
    holds(attention(mask), kernel)


def test_a_kernel_that_this_device_lacks_says_so() -> None:
    with pytest.raises(ExecutorError, match="cudnn kernel of attention refuses"):
        AtenExecutor().compile(attention(), "cudnn")


def test_a_region_of_several_ops_has_no_variants() -> None:
    region = region_of(lambda a, b: (a @ b).relu(), meta(3, 5), meta(5, 7))
    assert AtenExecutor().variants(region) == ("default",)
    with pytest.raises(UnsupportedError, match="no variant 'padded'"):
        AtenExecutor().compile(region, "padded")
