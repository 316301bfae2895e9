"""Large inputs that a CUDA graph reads where they lie.

PyTorch's trees copy to memory of the graph whatever is no parameter and was made by no graph: at each step the gradient that a
program which runs plain gives to one that is captured, which for logits is as large as they are. Most loops have it at the
same place each time, since the allocator is asked for the same in the same order, or at a few in turn: behind an evaluation
they begin elsewhere than behind a step, and who loads batches ahead has two buffers. So a program is captured over each of the
first few places; what comes from more than these is copied.

What a program writes to, such as the keys and values of a cache, is read and written where it lies however small it is: the trees would run
a program plain that writes to anything else than what stays. Whoever has marked it as staying (`torch._dynamo.mark_static_address`)
has it so from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fuseplan.executors.flat import Boxed
from fuseplan.garbage import no_collection

LEAST = 2**20
"""Bytes from which on it matters: less is as quickly copied, or made."""
MOST = 4
"""Over so many places a program is captured beside each other. What has come from as many is copied, once there is another one."""


@dataclass(frozen=True, eq=False)
class _Over:
    """A program, captured."""

    captured: Boxed
    chosen: list[int]
    """Which of its arguments are read in place …"""
    pointers: list[int | None]
    """… and where those are, by the numbers of all arguments."""


class ReadInPlace:
    """A function that is captured at its first call, since it is known then which of its arguments are large, and where they are."""

    def __init__(self, capture: partial[Any], plain: Boxed, copied: Collection[int] = ()) -> None:
        """`capture` tells which arguments always lie where they do, which are not looked at, and which are written to. Nor are those
        looked at that are to be `copied` wherever they lie, since they are passed on: the trees would keep them for good.
        """
        self.capture, self.plain = capture, _undisturbed(plain)
        told = capture.keywords
        self.others = {*told["static_input_idxs"], *copied}
        self.written = set(told["mutated_input_idxs"])
        self.known: list[_Over] = []
        """The one that ran last comes first."""
        self.settles = True
        """What lies at many places is not known yet."""

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        before = self.known  # kept until this call is over: the trees end with the last function that they know
        if not before or not _lies(args, before[0]):
            self._look_further(args)
        try:
            return self.known[0].captured(args)
        finally:
            del before

    def _stays(self, place: int, one: Any) -> bool:
        """Whether an argument may be read where it lies: what is written to, and what is large."""
        return _is_large(one) or (place in self.written and isinstance(one, Tensor) and one.layout is torch.strided)

    def _look_further(self, args: list[Any]) -> None:
        for one in self.known[1:]:
            if _lies(args, one):
                self.known.remove(one)
                self.known.insert(0, one)
                return
        if not self.known:
            chosen = [i for i, one in enumerate(args) if i not in self.others and self._stays(i, one)]
        elif len(self.known) < MOST and self.settles:
            chosen = self.known[0].chosen
        else:
            still = [i for i in self.known[0].chosen if {one.pointers[i] for one in self.known} == {args[i].data_ptr()}]
            chosen, self.known, self.settles = still if self.settles else [], [], False
        pointers = {i: args[i].data_ptr() for i in chosen}
        static = (*self.capture.keywords["static_input_idxs"], *chosen)
        captured = self.capture(self.plain, static_input_idxs=static)
        self.known.insert(0, _Over(captured, chosen, [pointers.get(i) for i in range(len(args))]))


def _undisturbed(plain: Boxed) -> Boxed:
    """What the trees call to record it: nearly all that Python does while CUDA records. Were garbage collected meanwhile, and
    another graph in it, CUDA would refuse to destroy that, and the process end.
    """

    def call(args: list[Any]) -> Sequence[Any]:
        with no_collection():
            return plain(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _lies(args: list[Any], one: _Over) -> bool:
    return not one.chosen or lie_at(args, one.pointers, one.chosen)


def _is_large(one: Any) -> bool:
    return isinstance(one, Tensor) and one.layout is torch.strided and one.nbytes >= LEAST


def lie_at(args: list[Any], pointers: Sequence[int | None], chosen: list[int]) -> bool:
    """Whether the chosen ones of `args` lie where they should; a step of training has hundreds of them."""
    found: Callable[..., bool] = torch._C._tensors_data_ptrs_at_indices_equal
    return found(args, pointers, chosen)
