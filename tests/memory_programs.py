"""Small programs that change, share or lay out memory in ways that a caller can see; for the CPU and the GPU.

What makes their arguments makes them on the default device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from observing import Arguments, Cases


def _ramp(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    count = int(torch.Size(shape).numel())
    return (torch.arange(count, dtype=torch.float64) / 7 - 1).to(dtype).reshape(shape).requires_grad_(grad)


def _args(*makers: Callable[[], Any]) -> Arguments:
    return lambda: tuple(make() for make in makers)


def _square() -> Tensor:
    return _ramp(3, 3)


def _learned() -> Tensor:
    return _ramp(3, 3, grad=True)


# --- in-place -------------------------------------------------------------------------------------------------------


def _mutate_and_use(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


def _mutate_view(x: Tensor) -> Tensor:
    x[0].mul_(3)
    return x.sum()


def _mutate_transposed(x: Tensor, y: Tensor) -> Tensor:
    x.t().add_(y)
    return x - y


def _mutate_one_read_other(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return y + 1


def _write_by_index(x: Tensor) -> Tensor:
    x[torch.tensor([0, 2], device=x.device)] = 5.0
    x[:, 1] = x[:, 0]
    return x.relu()


def _write_out(x: Tensor, y: Tensor) -> Tensor:
    torch.add(x, x, out=y)
    return y * x


def _mutate_detached(x: Tensor) -> Tensor:
    y = x * 2
    y.detach().mul_(3)
    return y + x


def _mutate_intermediate_view(x: Tensor) -> Tensor:
    y = x.sin()
    y[1:].mul_(x[1:])
    return y.exp()


def _mutate_without_grad(x: Tensor, state: Tensor) -> Tensor:
    with torch.no_grad():
        state.lerp_(x, 0.1)
    return (x * state.clone()).sum()


def _mutate_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    before = x.clone()
    x.add_(1)
    middle = x * before
    x.mul_(middle)
    return before, middle


def _overlapping_windows() -> tuple[Tensor, Tensor]:
    base = _ramp(8)
    return base[:5], base[3:]


def _same_tensor_twice() -> tuple[Tensor, Tensor]:
    x = _square()
    return x, x


IN_PLACE: Cases = {
    "input": (_mutate_and_use, _args(_square)),
    "input_that_is_returned": (lambda x: x.add_(1), _args(_square)),
    "view_of_input": (_mutate_view, _args(_square)),
    "transposed_input": (_mutate_transposed, _args(_square, _square)),
    "non_contiguous_input": (_mutate_and_use, lambda: (_square().t(),)),
    "input_beside_an_overlapping_input": (_mutate_one_read_other, _overlapping_windows),
    "input_that_is_passed_twice": (_mutate_one_read_other, _same_tensor_twice),
    "indexed_rows_and_columns": (_write_by_index, _args(_square)),
    "out_argument": (_write_out, _args(_square, _square)),
    "detached_intermediate": (_mutate_detached, _args(_learned)),
    "view_of_intermediate": (_mutate_intermediate_view, _args(_learned)),
    "state_without_grad": (_mutate_without_grad, _args(_learned, _square)),
    "input_twice_with_reads_between": (_mutate_twice, _args(_square)),
    "shape_of_input": (lambda x: x.t_().add(1), lambda: (_ramp(2, 3),)),
}


# --- aliasing -------------------------------------------------------------------------------------------------------


def _views_of_one_intermediate(x: Tensor) -> tuple[Tensor, ...]:
    y = x + 1
    return y, y.view(-1), y[1:], y


def _mutated_and_its_view(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x.mul_(2)
    return x, x[0], x + 1


ALIASING: Cases = {
    "input_itself": (lambda x: (x, x * 2), _args(_square)),
    "input_twice": (lambda x: (x, x, x.sin()), _args(_square)),
    "flattened_input": (lambda x: (x.view(-1), x.sin()), _args(_square)),
    "slice_and_transpose_of_input": (lambda x: (x[1:], x.t(), x.cos()), _args(_square)),
    "learned_input_and_its_view": (lambda x: (x.view(-1), x.sin()), _args(_learned)),
    "detached_input": (lambda x: (x.detach(), x * 3), _args(_learned)),
    "expanded_input": (lambda x: (x.expand(4, 3, 3), x + 1), _args(_square)),
    "views_of_one_intermediate": (_views_of_one_intermediate, _args(_square)),
    "views_of_one_learned_intermediate": (_views_of_one_intermediate, _args(_learned)),
    "chunks": (lambda x: (x * 2).chunk(3), _args(_square)),
    "chunks_of_input": (lambda x: (*x.unbind(), x.exp()), _args(_square)),
    "mutated_input_and_its_view": (_mutated_and_its_view, _args(_square)),
    "no_alias_after_clone": (lambda x: (x.clone(), x.contiguous(), x * 1), _args(_square)),
    "contiguous_of_transposed": (lambda x: (x.t().contiguous(), x.t()), _args(_square)),
}


# --- layout ---------------------------------------------------------------------------------------------------------


def _image() -> Tensor:
    return _ramp(2, 3, 4, 5)


def _channels_last() -> Tensor:
    return _image().to(memory_format=torch.channels_last)


def _conv(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.conv2d(x, weight, padding=1).relu()


def _kernel() -> Tensor:
    return _ramp(4, 3, 3, 3, grad=True)


STRIDES: Cases = {
    "channels_last_pointwise": (lambda x: x * 2 + 1, _args(_channels_last)),
    "channels_last_convolution": (_conv, _args(_channels_last, _kernel)),
    "made_channels_last": (lambda x: (x + 1).to(memory_format=torch.channels_last), _args(_image)),
    "permuted_output": (lambda x: (x * 2).permute(2, 0, 3, 1), _args(_image)),
    "permuted_input": (lambda x: (x.sin(), x + x), lambda: (_image().permute(3, 1, 0, 2),)),
    "mixed_layouts": (lambda x, y: x + y, _args(_channels_last, _image)),
    "expanded_output": (lambda x: (x.sum(0, keepdim=True)).expand(6, 3), _args(_square)),
    "sliced_output": (lambda x: (x + 1)[:, ::2], _args(_image)),
    "sparse_strides": (lambda x: torch.empty_strided((3, 3), (7, 2), device=x.device).copy_(x) + 0, _args(_square)),
    "learned_and_permuted": (lambda x: (x * 2).t(), _args(_learned)),
    "matmul_of_transposed": (lambda x: (x.t() @ x, x @ x.t()), _args(_learned)),
}


def _overlap() -> Tensor:
    return _ramp(6).as_strided((4, 3), (1, 1))


SHAPES: Cases = {
    "zero_dimensional": (lambda x, y: (x * y, x.sum() + 1, y.item() > 0), lambda: (_ramp(), _ramp(3)[0])),
    "zero_dimensional_beside_larger": (lambda x, y: x * y, lambda: (_ramp(3), torch.tensor(2.5, dtype=torch.float64))),
    "zero_dimensional_integer": (lambda x, y: x + y, lambda: (_ramp(3), torch.tensor(2))),
    "empty": (lambda x: (x * 2, x.sum(), torch.cat([x, x])), lambda: (_ramp(0, 3),)),
    "empty_matmul": (lambda x, y: x @ y, lambda: (_ramp(2, 0, grad=True), _ramp(0, 3, grad=True))),
    "non_contiguous": (lambda x: x.exp().sum(0), lambda: (_ramp(4, 6)[::2, 1::2],)),
    "expanded": (lambda x: (x * 2, x.sum(0)), lambda: (_ramp(1, 3).expand(4, 3),)),
    "expanded_and_learned": (lambda x: (x * 2).sum(0), lambda: (_ramp(1, 3).expand(4, 3).clone().requires_grad_(),)),
    "overlapping_windows": (lambda x: x.relu() @ x.t(), lambda: (_overlap(),)),
    "integers_and_booleans": (lambda x: (x // 2, x > 3, x << 1, ~(x == 2)), lambda: (torch.arange(6),)),
    "half_precision": (lambda x: (x.softmax(-1), x.sum()), lambda: (_ramp(3, 4, dtype=torch.bfloat16),)),
}


def _phasors(*, grad: bool = False) -> Tensor:
    return torch.polar(_ramp(3, 4).abs() + 0.5, _ramp(3, 4)).requires_grad_(grad)


COMPLEX: Cases = {
    "arithmetic": (lambda x: (x * x.conj(), x.abs(), x / 2j), _args(_phasors)),
    "conjugate_output": (lambda x: (x.conj(), (x + 1).conj()), _args(_phasors)),
    "real_view": (lambda x: (torch.view_as_real(x), x.imag + 1), _args(_phasors)),
    "transform": (lambda x: torch.fft.ifft(torch.fft.fft(x) * 2), _args(_phasors)),
    "gradient": (lambda x: (x * x).abs().sum(), lambda: (_phasors(grad=True),)),
    "matmul": (lambda x: x @ x.mH, lambda: (_phasors(grad=True),)),
}
