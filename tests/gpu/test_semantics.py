"""What programs do to memory, random numbers and precision on a GPU is what they do there under eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from agreement import assert_same
from layer_programs import ATTENTION, FUNCTIONS, sample
from memory_programs import ALIASING, COMPLEX, IN_PLACE, SHAPES, STRIDES
from observing import Arguments, Cases, Program, check, table
from plans import PLANS, SEGMENTED, compile_under

DEVICE = "cuda"


@table({**IN_PLACE, **ALIASING, **STRIDES, **SHAPES, **COMPLEX})
def test_memory(program: Program, arguments: Arguments) -> None:
    check(program, arguments, SEGMENTED, device=DEVICE)


@table({**FUNCTIONS, **ATTENTION})
def test_functions(program: Program, arguments: Arguments) -> None:
    check(program, arguments, SEGMENTED, device=DEVICE)


def _cpu_scalar(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    return x * scale, torch.where(x > scale, x, scale)


def _cpu_scalar_made_inside(x: Tensor) -> Tensor:
    return x / torch.tensor(3.0) + torch.tensor(2)


def _both_devices(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.relu() * 2, y.cpu() + x.cpu().sum() if y.is_cuda else y + x.cpu()


def _leaves_the_gpu_and_returns(x: Tensor) -> Tensor:
    return x + (x.cpu() * 2).to(x.device)


MIXED: Cases = {
    "cpu_scalar": (_cpu_scalar, lambda: (sample(4, 3), torch.tensor(0.5, device="cpu"))),
    "cpu_double_scalar": (_cpu_scalar, lambda: (sample(4, 3), torch.tensor(0.5, dtype=torch.float64, device="cpu"))),
    "learned_cpu_scalar": (
        lambda x, scale: x * scale,
        lambda: (sample(4, 3), torch.tensor(0.5, device="cpu", requires_grad=True)),
    ),
    "cpu_scalar_made_inside": (_cpu_scalar_made_inside, lambda: (sample(4, 3),)),
    "operands_on_both_devices": (_both_devices, lambda: (sample(4, 3), sample(4, 3).detach().cpu())),
    "round_trip": (_leaves_the_gpu_and_returns, lambda: (sample(4, 3),)),
}


@table(MIXED)
@pytest.mark.parametrize("plan", PLANS)
def test_cpu_and_gpu_tensors_mix_as_under_eager(plan: str, program: Program, arguments: Arguments) -> None:
    check(program, arguments, plan, device=DEVICE)


def _noisy(x: Tensor) -> Tensor:
    return F.dropout(F.dropout(x, 0.4) + torch.rand_like(x), 0.2) + torch.randn(8, device=x.device)


def test_every_random_operation_draws_what_eager_draws() -> None:
    check(_noisy, lambda: (sample(6, 8),), SEGMENTED, device=DEVICE)


@pytest.mark.parametrize("plan", PLANS)
def test_the_backward_of_dropout_uses_the_mask_of_its_forward(plan: str) -> None:
    x = torch.ones(4096, requires_grad=True, device=DEVICE)
    result = compile_under(plan, lambda x: F.dropout(x * 2, 0.5))(x)
    result.sum().backward()
    assert 0 < int((result == 0).sum()) < 4096
    assert_same(x.grad, result.detach())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_around_a_program(dtype: torch.dtype) -> None:
    def program(x: Tensor, weight: Tensor) -> Tensor:
        return F.layer_norm(F.gelu(x @ weight), (8,)).softmax(-1) + x

    with torch.autocast(DEVICE, dtype=dtype):
        check(program, lambda: (sample(6, 8), sample(8, 8)), SEGMENTED, device=DEVICE)


def _on_a_side_stream(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = run(x)
    torch.cuda.current_stream().wait_stream(stream)
    return result


@pytest.mark.parametrize("plan", PLANS)
def test_a_program_runs_on_the_stream_of_its_caller(plan: str) -> None:
    x = torch.randn(1024, 1024, device=DEVICE)
    compiled = compile_under(plan, lambda x: (x + 1) * 2)
    for _ in range(3):
        torch.testing.assert_close(_on_a_side_stream(compiled, x), (x + 1) * 2)


@pytest.mark.parametrize("plan", PLANS)
def test_shapes_that_do_not_fit_are_refused_and_the_next_call_works(plan: str) -> None:
    compiled = compile_under(plan, lambda x, y: x @ y)
    with pytest.raises(RuntimeError):
        compiled(torch.ones(2, 3, device=DEVICE), torch.ones(2, 3, device=DEVICE))
    assert_same(compiled(torch.ones(2, 3, device=DEVICE), torch.ones(3, 2, device=DEVICE)).sum().item(), 12.0)
