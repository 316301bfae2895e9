"""Running a Graph op by op under ATen, with a look at each value as it is made. For checking, not for speed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from fuseplan.capture.fx.targets import find_target
from fuseplan.capture.fx.to_fx import constant_tensor, torch_value
from fuseplan.graph import Arg, Enum, Graph, Op, Ref, Value


class Touch(Protocol):
    """May replace each value on its way into and out of an op."""

    def read(self, op: Op, name: str, value: Any) -> Any:
        """What `op` gets for the value called `name`."""
        ...

    def inside(self, op: Op) -> AbstractContextManager[None]:
        """What is around while `op` runs."""
        ...

    def made(self, op: Op, value: Value, got: Any) -> Any:
        """What stands for `value`, which `op` made."""
        ...


class _Plain:
    def read(self, op: Op, name: str, value: Any) -> Any:
        return value

    def inside(self, op: Op) -> AbstractContextManager[None]:
        return nullcontext()

    def made(self, op: Op, value: Value, got: Any) -> Any:
        return got


def evaluate(graph: Graph, inputs: Sequence[Any], touch: Touch | None = None) -> list[Any]:
    """Return the outputs of `graph`.

    >>> import torch
    >>> from fuseplan.graph import TensorType
    >>> kind = TensorType("float32", (2,), (1,))
    >>> op = Op("aten.neg.default", (Ref("x"),), (), (Value("y", kind),))
    >>> evaluate(Graph((Value("x", kind),), (op,), (Ref("y"),)), [torch.ones(2)])
    [tensor([-1., -1.])]
    """
    values = {value.name: given for value, given in zip(graph.inputs, inputs, strict=True)}
    values.update({constant.value.name: constant_tensor(constant) for constant in graph.constants})
    last = {name: i for i, op in enumerate(graph.ops) for name in op.reads}
    last.update(dict.fromkeys((arg.name for arg in graph.outputs if isinstance(arg, Ref)), len(graph.ops)))
    touch = touch or _Plain()
    for i, op in enumerate(graph.ops):
        read = {name: touch.read(op, name, values[name]) for name in op.reads}
        kwargs = {key: _value(arg, read) for key, arg in op.kwargs}
        args = [_value(arg, read) for arg in op.args]
        with touch.inside(op):
            result = find_target(op.target)(*args, **kwargs)
        made = result if isinstance(result, (tuple, list)) else [result]
        for value, got in zip(op.outputs, made, strict=True):
            if value.name in last:
                values[value.name] = touch.made(op, value, got)
        for name in op.reads:
            if last[name] == i:
                del values[name]
    return [_value(arg, values) for arg in graph.outputs]


def _value(arg: Arg, values: dict[str, Any]) -> Any:
    if isinstance(arg, Ref):
        return values[arg.name]
    if isinstance(arg, Enum):
        return torch_value(arg)
    if isinstance(arg, tuple):
        return [_value(item, values) for item in arg]
    return arg
