"""Running a Graph op by op under ATen. For checking, not for speed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuseplan.capture.fx.targets import find_target
from fuseplan.capture.fx.to_fx import constant_tensor, torch_value
from fuseplan.graph import Arg, Enum, Graph, Ref


def evaluate(graph: Graph, inputs: Sequence[Any]) -> list[Any]:
    """Return the outputs of `graph`.

    >>> import torch
    >>> from fuseplan.graph import Op, TensorType, Value
    >>> kind = TensorType("float32", (2,), (1,))
    >>> op = Op("aten.neg.default", (Ref("x"),), (), (Value("y", kind),))
    >>> evaluate(Graph((Value("x", kind),), (op,), (Ref("y"),)), [torch.ones(2)])
    [tensor([-1., -1.])]
    """
    values = {value.name: given for value, given in zip(graph.inputs, inputs, strict=True)}
    values.update({constant.value.name: constant_tensor(constant) for constant in graph.constants})
    last = {name: i for i, op in enumerate(graph.ops) for name in op.reads}
    last.update(dict.fromkeys((arg.name for arg in graph.outputs if isinstance(arg, Ref)), len(graph.ops)))
    for i, op in enumerate(graph.ops):
        kwargs = {key: _value(arg, values) for key, arg in op.kwargs}
        result = find_target(op.target)(*[_value(arg, values) for arg in op.args], **kwargs)
        made = result if isinstance(result, (tuple, list)) else [result]
        for value, got in zip(op.outputs, made, strict=True):
            if value.name in last:
                values[value.name] = got
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
