"""What nvFuser's table says yes and no to, and how a region must lie: all that needs no GPU and no nvFuser."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from conformance.build import meta, region_of
from fuseplan.capture.fx.targets import find_target
from fuseplan.errors import UnsupportedError
from fuseplan.executors.layout import dense_order
from fuseplan.executors.nvfuser.dtypes import promoted
from fuseplan.executors.nvfuser.executor import MAX_OPS, NvfuserExecutor
from fuseplan.executors.nvfuser.table import CONDITIONS, LOWERINGS, REFUSED
from fuseplan.graph import Graph

aten = torch.ops.aten
EXECUTOR = NvfuserExecutor()


def reasons(region: Graph) -> list[str]:
    return [why for op in region.ops if (why := EXECUTOR.supports(op, region)) is not None]


def on_gpu(function: Any, *inputs: torch.Tensor) -> Graph:
    return region_of(function, *inputs, device="cuda:0")


def test_every_name_in_the_table_is_an_operator() -> None:
    assert [find_target(name) for name in LOWERINGS]
    assert set(CONDITIONS) <= set(LOWERINGS)
    assert not {name.split(".")[1] for name in LOWERINGS} & set(REFUSED)


@pytest.mark.parametrize(
    ("function", "inputs", "reason"),
    [
        (lambda x, i: x.gather(1, i), (meta(4, 5), meta(4, 2, dtype=torch.int64)), "segment of its own"),
        (lambda x: aten.slice(x, 0, 0, 8, 2) + 1, (meta(8, 4),), "step 2"),
        (lambda x: x + 1, (meta(4, dtype=torch.int8),), "no int8"),
        (lambda x: x + 1, (meta(4, dtype=torch.complex64),), "no complex64"),
        (lambda x: x.flip(0), (meta(4, 5),), "no such view"),
        (lambda x: torch.var(x, 0, correction=0.5), (meta(4, 5),), "no whole number"),
        (lambda x: aten._softmax(x, 0, False), (meta(),), "a single number"),
    ],
)
def test_says_no_and_why(function: Any, inputs: tuple[torch.Tensor, ...], reason: str) -> None:
    region = on_gpu(function, *inputs)
    assert any(reason in why for why in reasons(region)), reasons(region)
    with pytest.raises(UnsupportedError, match=reason):
        EXECUTOR.compile(region)


def test_says_no_on_a_cpu() -> None:
    assert "runs on CUDA" in reasons(region_of(lambda x: x + 1, meta(4), device="cpu"))[0]


def test_statistics_of_a_batch_norm_may_be_written_in_place() -> None:
    def update(x: Any, mean: Any, var: Any) -> Any:
        y, _, _, new_mean, new_var = aten._native_batch_norm_legit_functional(x, None, None, mean, var, True, 0.1, 1e-5)
        aten.copy_.default(mean, new_mean)
        aten.copy_.default(var, new_var)
        return y

    assert reasons(on_gpu(update, meta(4, 3, 5), meta(3), meta(3))) == []


def shifted(x: Any) -> Any:
    total = x.t() + 1
    aten.copy_.default(x, total)
    return total * 2


def read_later(x: Any, y: Any) -> Any:
    aten.copy_.default(x, y)
    return x + 1


def of_a_view(x: Any) -> Any:
    total = x.sum(0, keepdim=True) + x
    aten.copy_.default(x, total)
    return total * 2


@pytest.mark.parametrize(
    ("function", "count", "reason"),
    [(shifted, 1, "reads the tensor"), (read_later, 2, "read"), (of_a_view, 1, "reads the tensor")],
)
def test_no_write_that_a_kernel_could_race_with(function: Any, count: int, reason: str) -> None:
    assert any(reason in why for why in reasons(on_gpu(function, *[meta(4, 4)] * count)))


def test_a_region_gives_no_views_of_what_others_hold() -> None:
    def with_its_base(x: Any) -> Any:
        y = x + 1
        return y, y.t()

    assert "is a view" in (EXECUTOR.refuses(on_gpu(with_its_base, meta(4, 5))) or "")
    assert "is a view" in (EXECUTOR.refuses(on_gpu(lambda x: (x.t(), x + 1), meta(4, 5))) or "")


def test_a_region_is_of_bounded_size() -> None:
    def long(x: Any) -> Any:
        for _ in range(MAX_OPS + 1):
            x = x + 1
        return x

    region = on_gpu(long, meta(4))
    assert reasons(region) == []
    with pytest.raises(UnsupportedError, match=f"at most {MAX_OPS}"):
        EXECUTOR.compile(region)


def test_unknown_overload_is_refused() -> None:
    region = on_gpu(lambda x: x + 1, meta(4))
    other = replace(region, ops=(replace(region.ops[0], target="aten.add.out"),))
    assert reasons(other) == ["it is in no lowering table"]


@pytest.mark.parametrize("a", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("b", [torch.float32, torch.float16, torch.int32, torch.bool])
@pytest.mark.parametrize("rank", [0, 2])
def test_promotion_is_torch_s(a: torch.dtype, b: torch.dtype, rank: int) -> None:
    x, y = torch.ones((2, 2), dtype=a), torch.ones((2,) * rank, dtype=b)
    expected = str(torch.result_type(x, y)).removeprefix("torch.")
    assert promoted((str(a)[6:], 2), (str(b)[6:], rank)) == expected


@pytest.mark.parametrize("size", [(2, 3, 4), (1, 3, 4), (2, 1, 1)])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_dense_order_gives_back_the_strides(size: tuple[int, ...], order: tuple[int, ...]) -> None:
    tensor = torch.empty([size[d] for d in order]).permute([order.index(d) for d in range(3)])
    found = dense_order(tensor.shape, tensor.stride())
    assert found is not None
    again = torch.empty([size[d] for d in found]).permute([found.index(d) for d in range(3)])
    strides = zip(size, again.stride(), tensor.stride(), strict=True)
    assert all(n == 1 or mine == theirs for n, mine, theirs in strides)
