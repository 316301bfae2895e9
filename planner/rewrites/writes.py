"""What is written where in a Dynamo graph: what was read may be read at another place only if nothing is written to it in between."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from fuseplan.rewrites.special import example, memory_of

_IN_PLACE = frozenset(
    {operator.setitem, operator.delitem, *(getattr(operator, f"i{name}") for name in
     "add and concat floordiv lshift matmul mod mul or pow rshift sub truediv xor".split() if hasattr(operator, f"i{name}"))}
)  # fmt: skip
_OWN_MODULES = ("torch", "operator", "_operator", "math", "builtins")
_FIRST = ("input", "self", "tensor", "tensors", "x", "a")
"""What functions call their first argument, where it may be given by name."""
_STATISTICS = ("batch_norm", "instance_norm", "moving_avg_obs")
"""In the names of what may keep running statistics, in tensors that it is given, though its schema may not say so."""


@dataclass(frozen=True)
class Writes:
    """The places of a graph's nodes, and what is written at some of them."""

    places: Mapping[Node, int]
    written: Sequence[tuple[int, set[int]]]
    """By place, what memory."""

    @staticmethod
    def of(graph: Graph) -> Writes:
        """Those of a graph."""
        written = list[tuple[int, set[int]]]()
        for place, node in enumerate(graph.nodes):
            if into := written_by(node):
                written.append((place, set[int]().union(*(memory_of(example(each)) for each in into))))
        return Writes({node: place for place, node in enumerate(graph.nodes)}, written)

    def apart(self, calls: Sequence[Node], read: Iterable[Node]) -> Iterator[list[Node]]:
        """The calls, in their order, apart where something is written between them to what is read."""
        own = set[int]().union(*(memory_of(example(node)) for node in read))
        cuts = [place for place, memory in self.written if own & memory]
        stretch: list[Node] = []
        for call in sorted(calls, key=lambda call: self.places[call]):
            if stretch and any(self.places[stretch[-1]] < cut <= self.places[call] for cut in cuts):
                yield stretch
                stretch = []
            stretch.append(call)
        if stretch:
            yield stretch


def memory(node: Node) -> set[int]:
    """What the tensors of a node lie in: equal for those that share memory."""
    return memory_of(node.meta.get("example_value"))


def written_after(values: Collection[Node], start: Node | None = None) -> bool:
    """Whether anything that comes after `start`, or after they were made, may write into the memory of these values."""
    (graph,) = {value.graph for value in values}
    looked_at = set[int]()
    for node in graph.nodes:
        if looked_at and any(looked_at & memory(each) for each in written_by(node)):
            return True
        if node is start:
            looked_at = set[int]().union(*map(memory, values))
        elif start is None and node in values:
            looked_at |= memory(node)
    return False


def may_write(node: Node) -> bool:
    """Whether a node may write into one of its inputs."""
    return bool(written_by(node))


def written_by(node: Node) -> list[Node]:
    """The inputs that a node may write into: all of them, where it is not known to be harmless."""
    if node.op == "call_method":
        name = str(node.target)
        dunder = name.startswith(("__i", "__set")) and name != "__invert__"
        return _first(node) if _ends_in_place(name) or dunder else []
    if node.op != "call_function":
        return node.all_input_nodes if node.op == "call_module" else []
    target: Any = node.target
    if isinstance(target, HigherOrderOperator):
        return node.all_input_nodes if _may_write_within(node) else []
    if target in _IN_PLACE:
        return _first(node)
    name = getattr(target, "__name__", "_")
    if isinstance(target, OpOverload):
        writes = target._schema.is_mutable or any(word in name for word in _STATISTICS)
        return node.all_input_nodes if writes else []
    if not is_torchs(target) or _writes_by_its_arguments(node, name):
        return node.all_input_nodes
    return _first(node) if _ends_in_place(name) else []


def _may_write_within(node: Node) -> bool:
    """Whether a function of graphs, such as a checkpointed block, has anything in these that writes; or has none that can be seen."""
    owner = node.graph.owning_module
    targets = [one.target for one in node.all_input_nodes if one.op == "get_attr"]
    found = [getattr(owner, str(target), None) for target in targets]
    nested = [one for one in found if isinstance(one, GraphModule)]
    return not nested or None in found or any(may_write(one) for each in nested for one in each.graph.nodes)


def _first(node: Node) -> list[Node]:
    """The first argument, or each tensor of a list that it is. What takes further lists may write to these, too."""
    given: Any = node.args[0] if node.args else next((node.kwargs[one] for one in _FIRST if one in node.kwargs), None)
    if isinstance(given, list | tuple) and not getattr(node.target, "__name__", "").startswith("_foreach_"):
        return node.all_input_nodes
    found: dict[Node, None] = {}
    map_arg(given, lambda each: found.setdefault(each, None))
    return list(found) or node.all_input_nodes


def _writes_by_its_arguments(node: Node, name: str) -> bool:
    """Whether the arguments of a function may say that it writes into one of them."""
    given = _arguments(node)
    if given is None or given.get("inplace", False) is not False or given.get("out") is not None:
        return True
    if any(word in name for word in _STATISTICS):
        keeps = given.get("training", given.get("use_input_stats", True))
        return keeps is not False and given.get("running_mean", node) is not None
    return given.get("max_norm") is not None


def _arguments(node: Node) -> Mapping[str, Any] | None:
    """The arguments of a function by their names, those included that it has if none is given, where one may tell it to write; else
    those that are given by name. None where they are not such as it takes.
    """
    signature = _signature(node.target)
    if signature is None:
        return node.kwargs
    try:
        bound = signature.bind(*node.args, **node.kwargs)
    except TypeError:
        return None
    bound.apply_defaults()
    return bound.arguments


@cache
def _signature(target: Callable[..., Any]) -> inspect.Signature | None:
    """That of a function which may be told by place to write; a function that is written in C++ has none."""
    try:
        found = inspect.signature(target)
    except (TypeError, ValueError):
        return None
    return found if not found.parameters.keys().isdisjoint(("inplace", "out", "max_norm", "running_mean")) else None


def is_torchs(target: Any) -> bool:
    """Whether a function is one of PyTorch's or Python's own, with no state of its own."""
    if isinstance(target, (OpOverload, OpOverloadPacket, HigherOrderOperator)):
        return isinstance(target, OpOverload) and target.namespace in ("aten", "prims")
    module = getattr(target, "__module__", None) or "torch"  # torch's bindings say nothing of where they live
    if module.startswith("torch._dynamo"):  # what stands for a call of NumPy, which may write to what it is given
        return False
    return module.split(".")[0] in _OWN_MODULES and hasattr(target, "__name__")


def _ends_in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")
