"""Writes the calls of a fusion into an FX graph, and runs each on fake tensors, so that shapes and dtypes are torch's own."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, Node

from fuseplan.capture.nvfuser_script.words import NodeValue, Number
from fuseplan.graph.limits import MAX_RANK

Function = Callable[..., Any]

DEVICE = torch.device("cpu")
"""Where a fusion is while it is read: a torch without CUDA cannot so much as slice a fake tensor of it."""
MAX_CALLS = 20_000


class ProgramBuilder:
    """The graph of one fusion, as it grows."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.mode = FakeTensorMode()
        self.inputs: list[NodeValue] = []
        self.indices: dict[int, int] = {}
        """For each input that is an index: how many there are to choose from."""
        self._calls = 0

    def input(self, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> NodeValue:
        """One more input, laid out so."""
        with self.mode:
            fake = torch.empty_strided(list(shape), list(stride), dtype=dtype, device=DEVICE)
        number = len(self.inputs)
        self.inputs.append(NodeValue(self.graph.placeholder(f"input_{number}"), fake, number))
        return self.inputs[-1]

    def call(self, target: Function, *args: Any, **kwargs: Any) -> Any:
        """The result of a function of torch: a tensor, or a tuple of such."""
        fakes, named = self._faked(args), self._faked(kwargs)
        with self.mode:
            fake = target(*fakes, **named)
        return self._result(self.graph.call_function(target, _of(args, _node), _of(kwargs, _node)), fake)

    def method(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """The result of a method of a tensor, which is the first of the arguments."""
        fakes, named = self._faked(args), self._faked(kwargs)
        with self.mode:
            fake = getattr(fakes[0], name)(*fakes[1:], **named)
        return self._result(self.graph.call_method(name, _of(args, _node), _of(kwargs, _node)), fake)

    def elementwise(self, target: Function, *args: Any) -> Any:
        """The result of a function of each element; of numbers alone, a number."""
        if any(isinstance(arg, NodeValue) for arg in args):
            return self.call(target, *self.promoted(args))
        numbers = [_number(arg) for arg in args]
        result = target(*(None if n is None else torch.tensor(n.value, dtype=n.dtype) for n in numbers))
        return Number(result.item(), result.dtype)

    def promoted(self, args: Sequence[Any]) -> Sequence[Any]:
        """Integers that meet a number with a fraction take its dtype, be that double: torch's rule is another."""
        numbers = [known.dtype for arg in args if (known := _number(arg)) and not _is_exact(known.dtype)]
        tensors = [arg.fake.dtype for arg in args if isinstance(arg, NodeValue)]
        if not numbers or not all(map(_is_exact, tensors)):
            return args
        dtype = reduce(torch.promote_types, numbers, torch.get_default_dtype())
        return [self.method("to", arg, dtype) if isinstance(arg, NodeValue) else arg for arg in args]

    def tensor(self, number: Any, beside: Any = None) -> NodeValue:
        """A number as a tensor, for the functions of torch that take no number there: `beside` is what it meets."""
        if isinstance(number, NodeValue):
            return number
        known = _number(number)
        assert known is not None
        dtype = known.dtype
        met = beside.fake.dtype if isinstance(beside, NodeValue) else torch.get_default_dtype()
        if dtype == torch.float64 and not _is_exact(met) and met not in (torch.float64, torch.complex128):
            dtype = torch.get_default_dtype()  # or the result of float tensors would be double
        result: NodeValue = self.call(torch.full, [], known.value, dtype=dtype, device=DEVICE)
        return result

    def same_elements(self, value: NodeValue, of: NodeValue) -> NodeValue:
        """Note that a result has the elements of another tensor, moved or repeated."""
        return NodeValue(value.node, value.fake, of.source)

    def index(self, value: NodeValue, count: int) -> None:
        """Note that a tensor holds numbers of elements, of which there are so many."""
        if value.source is not None:
            self.indices[value.source] = min(count, self.indices.get(value.source, count))

    def _faked(self, args: Any) -> Any:
        self._calls += 1
        if self._calls > 2 * MAX_CALLS:
            raise ValueError(f"a fusion of more than {MAX_CALLS} ops")
        return _of(args, lambda value: value.fake)

    def _result(self, node: Node, fake: Any) -> Any:
        if isinstance(fake, FakeTensor):
            if fake.dim() > MAX_RANK:
                raise ValueError(f"a tensor of {fake.dim()} dimensions")
            return NodeValue(node, fake)
        parts = []
        for i, part in enumerate(fake):
            if isinstance(part, FakeTensor):
                parts.append(self._result(self.graph.call_function(operator.getitem, (node, i)), part))
            else:
                parts.append(part)
        return tuple(parts)


def _number(arg: Any) -> Number | None:
    """A number of the fusion or of Python's; None for anything else."""
    if isinstance(arg, (bool, int, float, complex)):
        return Number.of(arg)
    return arg if isinstance(arg, Number) else None


def _is_exact(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex)


def _node(value: NodeValue) -> Node:
    return value.node


def _of(arg: Any, make: Callable[[NodeValue], Any]) -> Any:
    """Arguments with each tensor of the fusion replaced by what `make` gives, and each number by its value."""
    if isinstance(arg, NodeValue):
        return make(arg)
    if isinstance(arg, Number):
        return arg.value
    if isinstance(arg, (list, tuple)):
        return type(arg)(_of(item, make) for item in arg)
    if isinstance(arg, dict):
        return {name: _of(item, make) for name, item in arg.items()}
    return arg
