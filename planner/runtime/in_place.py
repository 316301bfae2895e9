"""Large inputs that a CUDA graph reads where they lie, as long as they lie there at each call.

PyTorch's trees copy to memory of the graph whatever is no parameter and was made by no graph: at each step the gradient that a
program which runs plain gives to one that is captured, which for logits is as large as they are. Most loops have it at the
same place each time, since the allocator is asked for the same in the same order. Where one comes from elsewhere, the program
is captured anew: the first time over the new place, as where the allocator had to settle, and then without that one, which is
copied from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fuseplan.executors.flat import Boxed
from fuseplan.garbage import no_collection

LEAST = 2**20
"""Bytes from which on it matters: less is as quickly copied, or made."""
PATIENCE = 3
"""The third time that some have moved, all are copied."""


class ReadInPlace:
    """A function that is captured at its first call, since it is known then which of its arguments are large, and where they are."""

    def __init__(self, capture: partial[Any], plain: Boxed, copied: Collection[int] = ()) -> None:
        """`capture` tells which arguments always lie where they do, and which are written to: these are not looked at, nor are
        those that are to be `copied` wherever they lie, since they are passed on: the trees would keep them for good.
        """
        self.capture, self.plain = capture, _undisturbed(plain)
        told = capture.keywords
        self.others = {*told["static_input_idxs"], *told["mutated_input_idxs"], *copied}
        self.captured: Boxed | None = None
        self.chosen: list[int] = []
        """Which are read in place …"""
        self.pointers: list[int | None] = []
        """… and where those are, by the numbers of all arguments."""
        self.moves = 0

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        before = self.captured  # kept until this call is over: the trees end with the last function that they know
        if before is None:
            self._captured_over(args, [i for i, one in enumerate(args) if i not in self.others and _is_large(one)])
        elif self.chosen and not lie_at(args, self.pointers, self.chosen):
            self.moves += 1
            still = [i for i in self.chosen if self.moves == 1 or args[i].data_ptr() == self.pointers[i]]
            self._captured_over(args, still if self.moves < PATIENCE else [])
        assert self.captured is not None
        try:
            return self.captured(args)
        finally:
            del before

    def _captured_over(self, args: list[Any], chosen: list[int]) -> None:
        pointers = {i: args[i].data_ptr() for i in chosen}
        self.chosen, self.pointers = chosen, [pointers.get(i) for i in range(len(args))]
        static = (*self.capture.keywords["static_input_idxs"], *chosen)
        self.captured = self.capture(self.plain, static_input_idxs=static)


def _undisturbed(plain: Boxed) -> Boxed:
    """What the trees call to record it. Were garbage collected meanwhile, and another graph in it, CUDA would refuse to destroy
    that while it records, and the process end.
    """

    def call(args: list[Any]) -> Sequence[Any]:
        with no_collection():
            return plain(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _is_large(one: Any) -> bool:
    return isinstance(one, Tensor) and one.layout is torch.strided and one.nbytes >= LEAST


def lie_at(args: list[Any], pointers: Sequence[int | None], chosen: list[int]) -> bool:
    """Whether the chosen ones of `args` lie where they should; a step of training has hundreds of them."""
    found: Callable[..., bool] = torch._C._tensors_data_ptrs_at_indices_equal
    return found(args, pointers, chosen)
