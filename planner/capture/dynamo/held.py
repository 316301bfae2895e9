"""Tensors that a program holds and works on, among its inputs: the weights and the state of an optimizer whose step is compiled.

Dynamo makes attributes of them, as of constants. Whoever writes the program down would have their values for a part of it, and
the same step of another process would be another program. So they are inputs that the program is given behind all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from fuseplan.capture.dynamo.copied import as_captured, node_copied


class Held:
    """What a program holds, looked up anew at each call: where it is let go of, nobody else keeps it."""

    def __init__(self, gm: GraphModule, paths: Sequence[str]) -> None:
        self._places = [_place(gm, path) for path in paths]

    def __call__(self) -> list[Any]:
        """All of it, in its order."""
        return [owner[name] for owner, name in self._places]


def without_held(gm: GraphModule) -> tuple[GraphModule, Held | None]:
    """The program with what it holds among its inputs, and what that is; the program itself where it holds nothing.

    >>> import torch
    >>> found = []
    >>> def backend(gm, example_inputs):
    ...     lifted, held = without_held(gm)
    ...     found.append([len(example_inputs), held and [type(one).__name__ for one in held()]])
    ...     return gm.forward
    >>> weight = nn.Parameter(torch.ones(2))
    >>> weight.grad = torch.ones(2)
    >>> optimizer = torch.optim.SGD([weight])
    >>> torch.compile(lambda: optimizer.step(), backend=backend)()
    >>> torch.compile(lambda x: x * torch.tensor(2.0), backend=backend)(torch.ones(2))
    tensor([2., 2.])
    >>> found
    [[1, ['Parameter']], [1, None]]
    """
    nodes = [node for node in gm.graph.find_nodes(op="get_attr") if _is_held(gm, node)]
    if not nodes:
        return gm, None
    sources = getattr(gm, "_param_name_to_source", {})
    graph, copies = Graph(), dict[Node, Node]()
    for node in gm.graph.find_nodes(op="placeholder"):
        copies[node] = node_copied(graph, node, copies.__getitem__)
    lifted: dict[str, Node] = {}
    for node in nodes:
        path = str(node.target)
        if path not in lifted:
            lifted[path] = graph.placeholder(f"held_{len(lifted)}")
            lifted[path].meta = dict(node.meta)
            static = getattr(attribute(gm, path), "_dynamo_static_input_type", None)
            lifted[path].meta["tensor_dict"] = {} if static is None else {"_dynamo_static_input_type": static}
            lifted[path]._dynamo_source = sources.get(path)
        copies[node] = lifted[path]
    for node in gm.graph.nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return as_captured(gm, graph), Held(gm, list(lifted))


def attribute(gm: nn.Module, path: str) -> Any:
    """What a module has at a path."""
    owner, name = _place(gm, path)
    return owner[name]


def is_held(value: Any) -> bool:
    """Whether a tensor is a weight, or one that stays from call to call: no constant of a program, whose values are a part of it."""
    stays = getattr(value, "_dynamo_static_input_type", None) is not None
    return isinstance(value, Tensor) and (stays or isinstance(value, nn.Parameter))


def _is_held(gm: GraphModule, node: Node) -> bool:
    return is_held(attribute(gm, str(node.target))) and isinstance(node.meta.get("example_value"), Tensor)


def _place(gm: nn.Module, path: str) -> tuple[Mapping[str, Any], str]:
    """The table in which a module has something, and under which name."""
    *before, name = path.split(".")
    owner: Any = gm
    for part in before:
        owner = getattr(owner, part)
    tables: Sequence[Mapping[str, Any]] = (owner._parameters, owner._buffers, owner._modules, vars(owner))
    return next(table for table in tables if name in table), name
