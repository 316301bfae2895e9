"""GELU as an operator of fuseplan's own, which Inductor takes apart otherwise than torch's.

The exact GELU is `x Φ(x)`. Its tail is a bell curve times something that
hardly changes: Φ(-u) = exp(-u²/2) P(1 / (1 + p u)), P a polynomial. That has neither branches nor, for negative numbers, a difference
of two that are nearly equal, and its gradient needs the same exponential once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fuseplan.capture.fx.composites import LIBRARY

DTYPES = (torch.bfloat16, torch.float16)
"""What the formula is accurate enough for; what is given in wider numbers is computed as ever, such as to be judged."""
_SCALE, _POWERS = 0.3757, (0.149333249, 0.15804179, 0.0837881516, 0.199958184, -0.0911337389)
"""p and P, of whose powers the first is 1: no further from Φ than by 2.8e-5 of it, a seventieth of what bfloat16 rounds away."""
_FAR = 16.0
"""Where the tail is zero in float32: further out, infinity times zero would be no number."""

LIBRARY.define("gelu(Tensor self) -> Tensor")
LIBRARY.define("gelu_backward(Tensor grad, Tensor self) -> Tensor")


def gelu_by_tail(x: Tensor) -> Tensor:
    """The exact GELU, as Inductor is to compute it.

    >>> gelu_by_tail(torch.tensor([1.0, -1.0], dtype=torch.bfloat16)).tolist()
    [0.83984375, -0.158203125]
    """
    if x.dtype not in DTYPES:
        return F.gelu(x)
    v = x.float()
    u, _, tail = _tail(v)
    return (v.relu() - u * tail).to(x.dtype)


def gelu_backward_by_tail(grad: Tensor, x: Tensor) -> Tensor:
    """Its gradient."""
    if x.dtype not in DTYPES:
        return torch.ops.aten.gelu_backward(grad, x)  # type: ignore[no-any-return]
    v = x.float()
    _, bell, tail = _tail(v)
    slope = torch.where(v < 0, tail, 1.0 - tail) + v * (bell * (1.0 / math.sqrt(2.0 * math.pi)))
    return (grad.float() * slope).to(x.dtype)


def _tail(v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How far from zero; exp(-u²/2) there, and Φ(-u)."""
    u = v.abs().clamp(max=_FAR)
    t = 1.0 / (1.0 + _SCALE * u)
    found: Any = _POWERS[-1]
    for each in _POWERS[-2::-1]:
        found = found * t + each
    bell = torch.exp2(u * u * (-0.5 * math.log2(math.e)))
    return u, bell, found * t * bell


@cache
def known_to_inductor() -> None:
    """Tell Inductor how these operators are taken apart; torch's own stay as they are."""
    from torch._inductor import decomposition  # it takes seconds

    decomposition.decompositions[torch.ops.fuseplan.gelu.default] = gelu_by_tail
    decomposition.decompositions[torch.ops.fuseplan.gelu_backward.default] = gelu_backward_by_tail
    decomposition.fast_random_decomps.cache_clear()  # a copy of the table


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


def _gelu_backward(grad: Tensor, x: Tensor) -> Tensor:
    return torch.ops.aten.gelu_backward(grad, x)  # type: ignore[no-any-return]


def _save(ctx: Any, inputs: Sequence[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradient(ctx: Any, grad: Tensor) -> Tensor:
    return torch.ops.fuseplan.gelu_backward(grad, *ctx.saved_tensors)  # type: ignore[no-any-return]


_BODIES: dict[str, Callable[..., Tensor]] = {"gelu": _gelu, "gelu_backward": _gelu_backward}
for _name, _body in _BODIES.items():
    LIBRARY.impl(_name, _body, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fuseplan::{_name}", _body, lib=LIBRARY)
torch.library.register_autograd("fuseplan::gelu", _gradient, setup_context=_save, lib=LIBRARY)
