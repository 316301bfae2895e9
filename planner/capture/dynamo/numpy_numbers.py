"""Numbers that NumPy computes in the middle of a program, such as `np.sqrt(q.shape[-1])`: known when it is captured, and written as what they are.

Dynamo writes the call, and what it gives as a tensor without a shape. No trace can hold that, and where a number is what a tensor is
multiplied by, it is the same with the number.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch._numpy as tnp
from torch import Tensor
from torch._dynamo.utils import numpy_method_wrapper, numpy_operator_wrapper, numpy_to_tensor_wrapper
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from fuseplan.capture.dynamo.copied import as_captured, node_copied

_WRAPPED = (numpy_to_tensor_wrapper, numpy_method_wrapper, numpy_operator_wrapper)
_OPERATORS = frozenset("add sub mul truediv floordiv mod pow neg pos abs".split())
_METHODS = frozenset({"item", "astype"})
_OF_NUMBERS = (torch.sym_int, torch.sym_float)
"""What Dynamo leaves where Python makes a number of what NumPy gave."""
_READERS: tuple[Any, ...] = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.iadd, operator.isub, operator.imul, operator.itruediv,
    torch.add, torch.sub, torch.mul, torch.div,
    "add", "sub", "mul", "div", "add_", "sub_", "mul_", "div_",
)  # fmt: skip
"""What gives the same for a tensor and a number as for a tensor and one without a shape."""


def without_numpy(gm: GraphModule) -> GraphModule:
    """The program with the numbers that NumPy computes; `gm`, which stays as it is, where it computes none.

    >>> import numpy as np
    >>> def backend(gm, example_inputs):
    ...     print([(node.target.__name__, node.args[1]) for node in without_numpy(gm).graph.nodes if node.op == "call_function"])
    ...     return gm.forward
    >>> _ = torch.compile(lambda x: x * (1 / np.sqrt(x.shape[-1])), backend=backend)(torch.ones(2, 4))
    [('mul', 0.5)]
    """
    known = numbers_of(gm)
    gone: set[Node] = set()
    for node in reversed(known):
        if all(user in gone or _reads(user, node) for user in node.users):
            gone.add(node)
    if not gone:
        return gm
    graph, copies = Graph(), dict[Node, Any]()
    for node in gm.graph.nodes:
        if node in gone:
            copies[node] = _plain(known[node])
        else:
            copies[node] = node_copied(graph, node, copies.__getitem__)
    return as_captured(gm, graph)


def numbers_of(gm: GraphModule) -> dict[Node, Any]:
    """The numbers that NumPy computes of numbers, in order; some are tensors without a shape. None where one is written to."""
    known = dict[Node, Any]()
    for node in gm.graph.nodes:
        if _is_pure(node) and all(one in known for one in node.all_input_nodes):
            before = [repr(_plain(one)) for one in known.values()]
            value = _number(node.target, *map_arg((node.args, node.kwargs), known.__getitem__))
            if [repr(_plain(one)) for one in known.values()] != before:
                return {}
            if value is not None:
                known[node] = value
    return known


def is_numpys(node: Node) -> bool:
    """Whether a node is a call of NumPy's."""
    return isinstance(node.target, _WRAPPED)


def _is_pure(node: Node) -> bool:
    """Whether it computes a number of numbers, and does nothing else."""
    target: Any = node.target
    if node.op != "call_function":
        return False
    if isinstance(target, numpy_to_tensor_wrapper):  # not of the module of random numbers
        return getattr(tnp, getattr(target.f, "__name__", ""), None) is target.f
    if isinstance(target, numpy_operator_wrapper):
        return target.op.__module__ == "_operator" and target.op.__name__ in _OPERATORS
    if isinstance(target, numpy_method_wrapper):
        return target.method in _METHODS
    return target in _OF_NUMBERS


def _number(target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a call gives: a real number, or a tensor that is one; None where it is something else."""
    try:
        found = target(*args, **kwargs)
    except Exception:  # noqa: BLE001 -- it will say so where it runs
        return None
    if isinstance(found, Tensor):
        return found if found.dim() == 0 and not found.is_complex() and found.device.type == "cpu" else None
    return found if type(found) in (int, float) else None


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def _reads(user: Node, number: Node) -> bool:
    """Whether a node gives the same with a plain number: one tensor of floats, with a shape, takes part, and says what comes out."""
    others = [one for one in user.args if one is not number]
    if user.target not in _READERS or user.kwargs or len(user.args) != 2 or len(others) != 1:
        return False
    value = others[0].meta.get("example_value") if isinstance(others[0], Node) else None
    return isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 0
