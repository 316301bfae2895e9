"""Tensors as memory: what lies behind one, its gaps included, and copies that keep strides and offset."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def is_float(value: Any) -> bool:
    """Whether this is a tensor of floats, complex ones included."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def storage(tensor: Tensor) -> Tensor:
    """All elements behind a tensor."""
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())


def like(tensor: Tensor, flat: Tensor) -> Tensor:
    """The view of `flat` that `tensor` is of its own memory."""
    return flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def twin(value: Any) -> Any:
    """A copy with the same strides, gaps and offset in memory of its own.

    >>> x = torch.arange(6.0)[1:].as_strided((2, 2), (1, 2))
    >>> twin(x).stride(), twin(x).storage_offset(), torch.equal(x, twin(x))
    ((1, 2), 1, True)
    """
    return like(value, storage(value).clone()) if isinstance(value, Tensor) else value


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal everywhere, where NaN equals NaN."""
    return bool(((a == b) | ((a != a) & (b != b))).all())


def same_strides(tensor: Tensor, strides: tuple[int, ...]) -> bool:
    """Equal where it matters: not along dimensions of size one, nor in an empty tensor."""
    pairs = zip(tensor.shape, tensor.stride(), strides, strict=True)
    return tensor.numel() == 0 or all(mine == declared for size, mine, declared in pairs if size > 1)


def spread_out(tensor: Tensor, strides: tuple[int, ...]) -> bool:
    """In the order that `strides` say, with gaps between rows at most.

    >>> spread_out(torch.empty(2, 8)[:, :5], (5, 1)), spread_out(torch.empty(5, 2).t(), (5, 1))
    (True, False)
    """
    pairs = [(m, d) for size, m, d in zip(tensor.shape, tensor.stride(), strides, strict=True) if size > 1]
    order = sorted(pairs, key=lambda pair: pair[1])
    return tensor.numel() == 0 or (all(m >= d for m, d in pairs) and order == sorted(pairs) and order[:1] == [(1, 1)])


def owners(inputs: list[Any], outputs: list[Any]) -> list[tuple[str, int] | None]:
    """For each output, the first input or else the first earlier output in whose memory it lies."""
    known: dict[int, tuple[str, int]] = {}
    for i, value in enumerate(inputs):
        if isinstance(value, Tensor) and value.numel():
            known.setdefault(value.untyped_storage().data_ptr(), ("input", i))
    result: list[tuple[str, int] | None] = []
    for i, value in enumerate(outputs):
        address = value.untyped_storage().data_ptr() if isinstance(value, Tensor) and value.numel() else None
        result.append(None if address is None else known.get(address))
        if address is not None:
            known.setdefault(address, ("output", i))
    return result
