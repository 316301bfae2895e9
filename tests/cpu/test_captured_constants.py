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

from fuseplan.runtime.cudagraph import CaptureFacts, CudaGraphLaunch
from fuseplan.runtime.inductor_host import _has_on_cpu


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
    assert found.compiled(left=False) == CaptureFacts(**{**vars(found), "on_cpu": None})
    assert found.compiled(left=True) == CaptureFacts("inference", "full is on the cpu")


def test_what_has_nothing_on_the_cpu_is_not_asked_again() -> None:
    found = facts(traced(lambda x: [x + 1], "cuda:0"))
    assert found.on_cpu is None
    assert found.compiled(left=True) is found


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


def code(source: str = "", devices: tuple[str, ...] = ("cuda",), **constants: Tensor) -> Any:
    return SimpleNamespace(constants=constants, device_types=set(devices), source_code=source)


READ = """
c = None  # device(type='cpu')
#   %lift_fresh_copy : Tensor "f32[4][1]cpu"[num_users=1] = call_function[...](args = (%c,), kwargs = {{}})
def call(args):
    kernel.run({}, buf0, 4, stream=raw_stream0)
def get_args():
    global c
    c = rand_strided((4,), (1,))
"""


def test_what_code_leaves_on_the_cpu() -> None:
    assert not _has_on_cpu(code())
    assert _has_on_cpu(code(devices=("cuda", "cpu")))
    assert not _has_on_cpu(code(READ.format("c_cuda0"), c=torch.ones(4)))  # the GPU's copy is read
    assert _has_on_cpu(code(READ.format("c"), c=torch.ones(4)))
    assert _has_on_cpu(lambda args: args)  # nobody knows


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
    assert isinstance(made.source_code, str)
    assert "def call(" in made.source_code
