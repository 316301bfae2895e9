"""A convolution in a Dynamo graph, however it is called: of what, and how its kernel goes over that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.fx import Node

from fuseplan.rewrites.reading import argument, name_of
from fuseplan.rewrites.special import example

_NAMES = {"conv1d": 1, "conv2d": 2, "conv3d": 3}
"""By what they are called, over how many dimensions."""


@dataclass(frozen=True)
class Convolved:
    """A convolution of a batch, with a number for each dimension."""

    call: Node
    kernel: tuple[int, ...]
    stride: tuple[Any, ...]
    padding: tuple[Any, ...]
    """The word `same` in the place of each, where there is more of it on one side than on the other."""
    dilation: tuple[Any, ...]
    groups: Any

    @staticmethod
    def of(node: Node) -> Convolved | None:
        """None for any other op, and where the size of the kernel is not known."""
        dims = _NAMES.get(name_of(node)) if node.op == "call_function" else None
        if dims is None:
            return None
        x, weight = argument(node, 0, "input"), argument(node, 1, "weight")
        if not all(isinstance(one, Node) and isinstance(example(one), Tensor) for one in (x, weight, node)):
            return None
        kernel = tuple(example(weight).shape[2:])
        if example(x).dim() != dims + 2 or not all(type(size) is int for size in kernel):
            return None
        stride, padding, dilation = (
            _each(argument(node, place, name, default=usual), dims)
            for place, name, usual in ((3, "stride", 1), (4, "padding", 0), (5, "dilation", 1))
        )
        if padding == ("same",) * dims:
            padding = _as_wide(kernel, dilation) or padding
        return Convolved(node, kernel, stride, padding, dilation, argument(node, 6, "groups", default=1))

    @property
    def given(self) -> Any:
        """What is known of its image."""
        return example(argument(self.call, 0, "input"))

    @property
    def weight(self) -> Any:
        """What is known of its weights."""
        return example(argument(self.call, 1, "weight"))

    @property
    def result(self) -> Any:
        """What is known of what it gives."""
        return example(self.call)


def _as_wide(kernel: tuple[int, ...], dilation: tuple[Any, ...]) -> tuple[int, ...] | None:
    """The padding with which an image stays as large as it is, where that is as much on both sides.

    >>> _as_wide((3, 5), (1, 2)), _as_wide((3, 4), (1, 1))
    ((1, 4), None)
    """
    if any(type(one) is not int for one in dilation):
        return None
    both = [step * (size - 1) for size, step in zip(kernel, dilation, strict=True)]
    return None if any(one % 2 for one in both) else tuple(one // 2 for one in both)


def _each(given: Any, dims: int) -> tuple[Any, ...]:
    """A number for each dimension."""
    if given == "valid":
        given = 0
    found: tuple[Any, ...] = tuple(given) if isinstance(given, list | tuple) else (given,)
    return found * dims if len(found) == 1 else found
