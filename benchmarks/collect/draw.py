"""Draws of made-up programs: sizes, tensors, layouts and cheap operators, views at every place."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

MOST_BYTES = 2**30
"""Of all inputs and outputs together."""
DTYPES = (torch.bfloat16, torch.float32)
INNER = (
    1, 2, 3, 7, 8, 16, 31, 32, 64, 77, 96, 128, 197, 255, 256, 384, 511, 512, 768, 1000, 1024, 1536, 2048, 2816, 3072,
    4096, 5120, 8192, 11008, 16384, 32000, 50257,
)  # fmt: skip
"""Lengths of the last dimension: those that models have, powers of two, and some that nothing divides."""


class Draw:
    """Draws sizes, tensors and operators of one program."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.dtype = chance.choice(DTYPES)

    def elements(self) -> int:
        """How many elements the largest tensor has, about: evenly spread over the orders of magnitude."""
        return round(2 ** self.chance.uniform(9, 27.5))

    def rows(self, inner: int | None = None) -> tuple[int, int]:
        """A matrix: its last dimension from the list."""
        elements = self.elements()
        inner = inner or self.chance.choice([n for n in INNER if n <= elements])
        rows = max(1, elements // inner)
        return (rows if self.chance.random() < 0.3 or rows < 16 else 1 << rows.bit_length() - 1), inner

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        """Any shape: a matrix whose rows are cut up into more dimensions."""
        rows, inner = self.rows()
        rank = rank or self.chance.choice((1, 2, 2, 3, 3, 4))
        if rank == 1:
            return (rows * inner,)
        outer: list[int] = []
        for _ in range(rank - 2):
            divisors = [d for d in (2, 3, 4, 6, 8, 12, 16, 32, 64) if rows % d == 0]
            chosen = self.chance.choice(divisors) if divisors else 1
            outer.append(chosen)
            rows //= chosen
        return (*outer, rows, inner) if self.chance.random() < 0.5 else (rows, *outer, inner)

    def tensor(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """An input."""
        return torch.empty(shape, dtype=dtype or self.dtype)

    def laid(self, *shape: int) -> Tensor:
        """An input that may not be contiguous: transposed, or a slice of a wider one."""
        way = self.chance.random()
        if way < 0.15 and len(shape) > 1:
            order = self.chance.sample(range(len(shape)), len(shape))
            back = sorted(range(len(shape)), key=order.__getitem__)
            return self.tensor(*(shape[d] for d in order)).permute(back)
        if way < 0.25 and shape[-1] > 1:
            return self.tensor(*shape[:-1], shape[-1] * 2)[..., : shape[-1]]
        return self.tensor(*shape)

    def some(self, most: int) -> int:
        """A small number, small ones more often."""
        return min(most, 1 + int(self.chance.expovariate(0.6)))

    def pick(self, choices: Sequence[Any]) -> Any:
        """One of several."""
        return self.chance.choice(list(choices))

    def maybe(self, share: float = 0.5) -> bool:
        """Yes, in so many cases."""
        return self.chance.random() < share


UNARY: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.relu, F.gelu, torch.sigmoid, torch.tanh, torch.exp, F.silu, torch.neg, torch.abs, torch.square,
    lambda x: x * 0.5, lambda x: x + 1.0, lambda x: F.gelu(x, approximate="tanh"), lambda x: x.float().to(x.dtype),
    lambda x: torch.clamp(x, -1.0, 1.0), lambda x: torch.rsqrt(x.abs() + 1.0),
)  # fmt: skip
BINARY: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    torch.add, torch.mul, torch.sub, torch.maximum, lambda a, b: a / (b.abs() + 1.0),
    lambda a, b: torch.where(a > b, a, b * 0.1), lambda a, b: F.silu(a) * b, lambda a, b: torch.add(a, b, alpha=0.5),
)  # fmt: skip
Made = tuple[Callable[..., Any], list[Tensor]]


def view(draw: Draw, x: Tensor) -> Tensor:
    """One view, of any kind."""
    shape = list(x.shape)
    ways = ["flatten", "split", "permute", "unsqueeze"]
    way = draw.pick(ways)
    if way == "permute" and len(shape) > 1:
        a, b = draw.chance.sample(range(len(shape)), 2)
        return x.transpose(a, b)
    if way == "split":
        for d in draw.chance.sample(range(len(shape)), len(shape)):
            for part in (64, 16, 12, 8, 4, 2):
                if shape[d] % part == 0 and shape[d] > part:
                    return x.reshape(*shape[:d], shape[d] // part, part, *shape[d + 1 :])
    if way == "unsqueeze" and len(shape) < 5:
        return x.unsqueeze(draw.chance.randrange(len(shape) + 1))
    return x.reshape(-1) if len(shape) > 1 and draw.maybe(0.3) else x.reshape(-1, shape[-1])


def chain(draw: Draw, x: Tensor, length: int, others: Sequence[Tensor] = ()) -> Tensor:
    """Cheap ops one after another; views in between where the draw says so."""
    views = draw.pick((0.0, 0.0, 0.2, 0.4))
    left = list(others)
    for _ in range(length):
        if draw.maybe(views):
            x = view(draw, x)
        if left and draw.maybe(0.6):
            other = left.pop()
            if other.numel() == x.numel():
                other = other.reshape(x.shape)
            elif other.dim() > x.dim() or other.shape[-1] != x.shape[-1]:
                continue
            x = draw.pick(BINARY)(x, other)
        else:
            x = draw.pick(UNARY)(x)
    return view(draw, x) if draw.maybe(views) else x


def again_of(draw: Draw) -> Callable[[], Draw]:
    """The function is called more than once, when it is traced: each time with the same draws."""
    state, dtype = draw.chance.getstate(), draw.dtype

    def fresh() -> Draw:
        again = Draw(random.Random())
        again.chance.setstate(state)
        again.dtype = dtype
        return again

    return fresh


def cheap(draw: Draw, x: Tensor, times: int) -> Tensor:
    """So many drawn operators of one operand, one after another."""
    for _ in range(times):
        x = draw.pick(UNARY)(x)
    return x


def with_others(draw: Draw, x: Tensor, others: Sequence[Tensor], operators: int = 4) -> Tensor:
    """Each of the others joined to x by one of the first operators of two operands."""
    for other in others:
        x = draw.pick(BINARY[:operators])(x, other)
    return x
