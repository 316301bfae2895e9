"""Numbers on the CPU in a program of a GPU: what Inductor writes into kernels keeps no CUDA graph away, what it leaves does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from fuseplan.runtime.capturable import obstacle_in_code
from fuseplan.runtime.carving import captured_of, parts_of
from fuseplan.runtime.cudagraph import CaptureFacts, CudaGraphLaunch


def traced(program: Any, *devices: str) -> GraphModule:
    """As a compiler gets it, of tensors that are nowhere."""
    with FakeTensorMode():
        return make_fx(program)(*(torch.empty(4, device=device) for device in devices))


def facts(gm: GraphModule, folds: bool = True) -> CaptureFacts:
    return CudaGraphLaunch([]).facts("inference", gm, folds=folds)


def divided(x: Tensor) -> list[Tensor]:
    return [x / torch.full((), 3.0, device="cpu")]


def test_a_number_on_the_cpu_is_left_to_a_compiler_that_folds() -> None:
    gm = traced(divided, "cuda:0")
    assert facts(gm, folds=False).refused == "full is on the cpu"
    found = facts(gm)
    assert (found.refused, found.on_cpu, found.device) == (None, "full", 0)
    assert found.compiled(code("call")) == CaptureFacts(**{**vars(found), "on_cpu": None})
    assert found.compiled(code("call", devices=("cuda", "cpu"))) == CaptureFacts("inference", "full is on the cpu")


def test_what_has_nothing_on_the_cpu_may_be_code_of_any_kind() -> None:
    found = facts(traced(lambda x: [x + 1], "cuda:0"))
    assert found.on_cpu is None
    assert found.compiled(lambda args: args) == found


def test_what_is_no_constant_is_named_first() -> None:
    def mixed(x: Tensor) -> list[Tensor]:
        return [x / torch.full((), 3.0, device="cpu") + x.cpu().sum().to(x.device, copy=True)]

    assert facts(traced(mixed, "cuda:0")).on_cpu == "_to_copy"


def test_what_goes_on_by_a_number_is_not_captured() -> None:
    gm = traced(lambda x: [x + 1], "cuda:0")
    inner = traced(lambda x: [x * 2], "cuda:0")
    (x,) = inner.graph.find_nodes(op="placeholder")
    with inner.graph.inserting_after(x):
        inner.graph.call_function(torch.ops.higher_order.cond, (x, None, None, ()))
    assert facts(inner).refused == "cond (cond) cannot be captured"
    gm.add_module("part", inner)
    assert facts(gm).refused == "cond (cond) cannot be captured"


@pytest.mark.parametrize(
    ("program", "devices", "why"),
    [
        (lambda x, y: [x + y.sum()], ("cuda:0", "cpu"), "y_1 is on the cpu"),
        (lambda x: [x + 1, torch.full((), 3.0)], ("cuda:0",), "full is on the cpu"),
        (lambda x: [x + 1, x.cpu()], ("cuda:0",), "_to_copy is on the cpu"),
        (lambda x, y: [x + torch.full((), 3.0), y + 1], ("cuda:0", "cuda:1"), "it spans several GPUs"),
    ],
    ids=["an input", "an output", "a copy that is given", "two GPUs"],
)
def test_what_no_compiler_can_fold(program: Any, devices: tuple[str, ...], why: str) -> None:
    found = facts(traced(program, *devices))
    assert (found.refused, found.on_cpu) == (why, None)


def code(source: str = "", devices: tuple[str, ...] = ("cuda",), **given: Any) -> Any:
    return SimpleNamespace(**{"constants": {}, "device_types": set(devices), "source_code": source, **given})


READ = """
empty_strided_cpu = torch._C._dynamo.guards._empty_strided_cpu
c = None  # device(type='cpu')
#   %lift_fresh_copy : Tensor "f32[4][1]cpu"[num_users=1] = call_function[...](args = (%c,), kwargs = {{}})
def call(args):
    kernel.run({}, buf0, 4, stream=raw_stream0)
def get_args():
    global c
    c = rand_strided((4,), (1,))
"""
KEPT = {"c": torch.ones(4)}


@pytest.mark.parametrize(
    ("made", "left"),
    [
        (code(READ.format("buf1")), False),
        (code(READ.format("buf1"), devices=("cuda", "cpu")), True),
        (code(READ.format("c_cuda0"), constants=KEPT), False),  # the GPU's copy is read
        (code(READ.format("c"), constants=KEPT), True),
        (code(READ.format("c"), constants=None), False),
        (code(READ.format("_frozen_param0"), frozen_param_names={"_frozen_param0": "c"}), True),
        (code(READ.format("buf1") + "    buf2 = empty_strided_cpu((4, ), (1, ), torch.float32)"), True),
        (code(READ.format("buf1") + "    cpp_fused_arange_0(buf2)"), True),
        (code(), True),  # its text is not there
        (lambda args: args, True),  # nobody knows
    ],
)
def test_what_code_leaves_on_the_cpu(made: Any, left: bool) -> None:
    assert obstacle_in_code(made, "full") == ("full is on the cpu" if left else None)


def test_a_part_of_the_code_may_be_on_the_cpu_though_the_graph_is_not() -> None:
    """A graph within it tells of nothing but by its text."""
    assert (
        obstacle_in_code(code(READ + "buf2 = empty_strided_cpu((4, ), (1, ), torch.int64)"), None)
        == "a part of it is on the cpu"
    )
    assert obstacle_in_code(code(READ.format("buf1")), None) is None


def test_what_inductor_itself_would_not_capture() -> None:
    told = code(READ, disabled_cudagraphs_reason="control flow operator: torch.cond. Found from : \n   File x")
    assert obstacle_in_code(told, None) == "control flow operator: torch.cond."


def test_inductors_own_code_says_what_it_has() -> None:
    """Loud where another torch's says it otherwise."""
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    found: list[Any] = []

    def inner(gm: Any, inputs: Any, **options: Any) -> Any:
        found.append(compile_fx_inner(gm, inputs, **options))
        return found[-1]

    table = torch.tensor([1.0, 2.0] * 16)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: x * table / torch.tensor(3.0), backend=lambda gm, x: compile_fx(gm, x, inner_compile=inner)
    )
    with torch._functorch.config.patch(enable_autograd_cache=False):  # which would not ask Inductor again
        torch.testing.assert_close(compiled(torch.ones(32)), table / 3)
    (made,) = found
    assert set(made.device_types) == {"cpu"}
    assert made.disabled_cudagraphs_reason is None
    assert "cpp_fused" in made.source_code
    assert "empty_strided_cpu((" in made.source_code


def test_what_is_on_the_cpu_beside_a_gpu_is_not_carved_out() -> None:
    """It would be copied to the GPU while that is captured."""
    gm = traced(lambda x: [x * torch.full((), 3.0, device="cpu") + 1], "cuda:0")
    captured = captured_of(gm.graph)
    told = dict(zip((op.target for op in captured.graph.ops), parts_of(captured), strict=True))
    assert (told["aten.full.default"], told["aten.mul.Tensor"]) == (-1, told["aten.add.Tensor"])
    alone = captured_of(traced(lambda x: [x * torch.full((), 3.0) + 1], "cpu").graph)
    assert set(parts_of(alone)) == {0}
