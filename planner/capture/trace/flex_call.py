"""flex_attention as a trace calls it: with the tensors that its functions read as arguments, and not as what these close over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_FLEX = torch.ops.higher_order.flex_attention
MASK_BUFFERS, BLOCK_MASK = 8, 4
"""Where flex_attention is given the tensors that its mask reads, and the blocks that the mask leaves."""


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score: Callable[..., Tensor],
    blocks: tuple[Any, ...],
    scale: float,
    options: dict[str, Any],
    score_buffers: tuple[Any, ...] = (),
    mask_buffers: tuple[Any, ...] = (),
) -> Any:
    """What Dynamo has written down, run as it is; while Dynamo looks, as it wants it written.

    >>> x = torch.randn(1, 1, 2, 16)
    >>> every = (2, 2, *(None,) * 12, 2, 2, lambda b, h, q, k: q >= k)
    >>> given = flex_attention(x, x, x, lambda score, b, h, q, k, bias: score + bias, every, 0.25, {}, (torch.ones(()),))
    >>> torch.allclose(given[0], torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True), atol=1e-6)
    True
    """
    if not torch.compiler.is_dynamo_compiling():
        return _FLEX(query, key, value, score, blocks, scale, options, score_buffers, mask_buffers)
    mask = blocks[-1]

    def score_of(one: Tensor, *places: Tensor) -> Tensor:
        return score(one, *places, *score_buffers)

    def mask_of(*places: Tensor) -> Any:
        return mask(*places, *mask_buffers)

    return _FLEX(query, key, value, score_of, (*blocks[:-1], mask_of), scale, options)


def let_through(mode: type[TorchDispatchMode], read: Callable[[Any, Any], Any] = lambda mode, value: value) -> None:
    """Have flex_attention and its backward run below modes of this class, which know operators alone; `read` gives what a mode
    makes of an argument.
    """
    for operator in (_FLEX, torch.ops.higher_order.flex_attention_backward):

        def below(given: Any, *args: Any, _operator: Any = operator, **kwargs: Any) -> Any:
            return _operator(*(read(given, arg) for arg in args), **kwargs)

        operator.py_impl(mode)(below)
