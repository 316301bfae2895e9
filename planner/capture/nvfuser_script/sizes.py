"""Sizes for a script that gives no inputs: those that its ops leave open are chosen, the others follow from them.

A size that is not known yet is stood for by a prime number. Where an op then meets two sizes that it must have equal, the
prime is replaced by the other one, and the script is read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

from fuseplan.capture.nvfuser_script.words import NodeValue, wholes

USUAL = (1024, 128, 16)
"""Sizes of the last dimension, the one before it, and the one before that; more of them are small."""
FEW = 4


class ResizeError(Exception):
    """A size has become known: read again."""


class ChosenSizes:
    """What is known of the sizes that a script leaves open."""

    def __init__(self, taken: frozenset[int] = frozenset()) -> None:
        self._known: dict[tuple[int, int], int] = {}
        self._primes = _primes(taken)
        self._places: dict[int, int] = {}
        """For each prime that stands for a size: the place of that from the last dimension."""

    def of(self, declared: int, number: int, dim: int, rank: int) -> int:
        """The size of a dimension of an input."""
        if declared != -1:
            return declared
        place = (number, dim)
        if place not in self._known:
            stand_in = next(self._primes)
            self._known[place] = stand_in
            self._places[stand_in] = rank - 1 - dim
        return self._known[place]

    def choose(self) -> bool:
        """Choose a size for all that are still open; whether there was one."""
        for prime, place in list(self._places.items()):
            self._set(prime, USUAL[place] if place < len(USUAL) else FEW)
        return bool(self._known)

    def compare(self, op: str, args: Mapping[str, Any]) -> None:
        """Learn from an op what must be equal; raises ResizeError where that is news."""
        for one, other in _equal(op, args):
            for prime, size in ((one, other), (other, one)):
                if one != other and prime in self._places and size > 0:
                    self._set(prime, size)
                    raise ResizeError

    def _set(self, prime: int, size: int) -> None:
        self._known = {place: size if known == prime else known for place, known in self._known.items()}
        del self._places[prime]


def _primes(taken: frozenset[int]) -> Iterator[int]:
    number = 101
    while True:
        if number not in taken and all(number % divisor for divisor in range(2, int(number**0.5) + 1)):
            yield number
        number += 2


def _equal(op: str, args: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Pairs of sizes that an op must have equal."""
    shapes = [tuple(arg.fake.shape) for arg in args.values() if isinstance(arg, NodeValue)]
    if op in ("view", "view_copy") and args.get("new_shape") is not None:
        yield from zip(shapes[0], wholes(args["original_shape"]), strict=False)
    elif op in ("reshape", "view", "view_copy"):
        yield from _reshaped(shapes[0], wholes(args.get("new_shape") or args.get("original_shape")))
    elif op == "broadcast_in_dim":
        wanted, dims = wholes(args["shape"]), wholes(args["broadcast_dims"])
        yield from ((size, wanted[dim]) for size, dim in zip(shapes[0], dims, strict=False) if size != 1)
    elif op == "cat":
        shapes = [tuple(tensor.fake.shape) for tensor in args["tensors"]]
        for shape in shapes[1:]:
            yield from (pair for dim, pair in enumerate(zip(shapes[0], shape, strict=False)) if dim != args.get("dim", 0) % len(shape))  # fmt: skip
    elif op == "slice":
        ends = zip(shapes[0], wholes(args["end_indices"]), strict=False)
        yield from ((size, end) for size, end in ends if end > size)
    elif op == "matmul":
        yield from _product(*shapes)
    elif op == "linear":
        yield shapes[0][-1], shapes[1][-1]
        yield from ((shape[-1], shapes[1][0]) for shape in shapes[2:])
    elif op == "sdpfa_fwd":
        yield from zip(shapes[1][:-1], shapes[2][:-1], strict=False)
        yield from ((shapes[0][dim], shapes[1][dim]) for dim in (0, 1, -1))
    elif op not in _LOOSE:
        for shape in shapes[1:]:
            pairs = zip(reversed(shapes[0]), reversed(shape), strict=False)
            yield from (pair for pair in pairs if 1 not in pair)


_LOOSE = frozenset(
    "gather take_along_axis index_select select scatter embedding_fwd grouped_mm batch_norm sdpfa_bwd".split()
)
"""Ops of several tensors whose sizes are not those of each other."""


def _reshaped(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Of one that is open, what is left for it; where nothing else is known, the sizes in their places."""
    if prod(old) == prod(new) or -1 in new:
        return
    for size in old:
        rest = prod(old) // size if size else 0
        if rest and prod(new) % rest == 0:
            yield size, prod(new) // rest
    if len(old) <= len(new):
        yield from zip(reversed(old), reversed(new), strict=False)
    else:
        yield from zip(old, new, strict=False)


def _product(left: Sequence[int], right: Sequence[int]) -> Iterator[tuple[int, int]]:
    yield left[-1], right[-2 if len(right) > 1 else -1]
    yield from (pair for pair in zip(reversed(left[:-2]), reversed(right[:-2]), strict=False) if 1 not in pair)
