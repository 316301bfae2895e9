"""From an FX graph, some of whose nodes are compiled regions, to one flat Python function.

The function takes its inputs in a list that it empties, calls each operator or region once, and drops each value after
its last use. There is no interpreter and no module call between two operators: that is where host time goes.
"""

from __future__ import annotations

import heapq
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule, Node

from fuseplan.errors import PlanError
from fuseplan.executors.bindings import binding

Boxed = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True, eq=False)
class RegionCall:
    """A compiled region in place of some nodes: which values it reads and gives, by position.

    Without a call, nobody needs what the nodes do, and they do not run.
    """

    nodes: frozenset[Node]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    call: Boxed | None


Unit = Node | RegionCall


def flatten(gm: GraphModule, regions: Sequence[RegionCall] = (), edges: Iterable[tuple[Node, Node]] = ()) -> Boxed:
    """Return a boxed callable that does what `gm` does, with `regions` in place of their nodes.

    `edges` are pairs of nodes, first and later, whose order data flow alone does not hold.
    """
    units: Sequence[Unit] = _schedule(gm, regions, edges) if regions else _own_order(gm)
    return _Emitter(gm).emit(units)


def _own_order(gm: GraphModule) -> list[Node]:
    return [node for node in gm.graph.nodes if node.op != "placeholder"]


def _schedule(gm: GraphModule, regions: Sequence[RegionCall], edges: Iterable[tuple[Node, Node]]) -> list[Unit]:
    """All units in an order that respects data flow and `edges`, as near to the graph's own as can be."""
    owner: dict[Node, Unit] = {node: region for region in regions for node in region.nodes}
    waits: dict[Unit, set[Unit]] = {}
    start: dict[Unit, int] = {}
    for i, node in enumerate(_own_order(gm)):
        waits.setdefault(owner.get(node, node), set())
        start.setdefault(owner.get(node, node), i)
    wakes: dict[Unit, set[Unit]] = {unit: set() for unit in waits}

    def after(before: Node, unit: Unit) -> None:
        first = owner.get(before, before)
        if first is not unit:
            waits[unit].add(first)
            wakes[first].add(unit)

    for unit in waits:
        for read in _reads(unit):  # a region may read less than its nodes do, if it computes a value again for itself
            if read.op != "placeholder":
                after(read, unit)
    for before, node in edges:
        after(before, owner.get(node, node))
    return _topological(start, waits, wakes)


def _topological(start: dict[Unit, int], waits: dict[Unit, set[Unit]], wakes: dict[Unit, set[Unit]]) -> list[Unit]:
    heap = [(start[unit], unit) for unit in waits if not waits[unit]]
    heapq.heapify(heap)
    result = []
    while heap:
        _, unit = heapq.heappop(heap)  # starts are distinct, so units are never compared
        result.append(unit)
        for woken in wakes[unit]:
            waits[woken].discard(unit)
            if not waits[woken]:
                heapq.heappush(heap, (start[woken], woken))
    if len(result) != len(waits):
        raise PlanError("the regions of this plan wait for each other; check the segmentation before compiling it")
    return result


class _Emitter:
    """Writes the source of one flat function and the names that it needs."""

    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm
        self.namespace: dict[str, Any] = {}
        self.names: dict[Node, str] = {}
        self.lines: list[str] = []

    def emit(self, units: Sequence[Unit]) -> Boxed:
        last_use = {value: i for i, unit in enumerate(units) for value in _reads(unit)}
        placeholders = self.gm.graph.find_nodes(op="placeholder")
        self._unpack(placeholders)
        unused = [p for p in placeholders if p not in last_use]
        self._drop(unused)
        for i, unit in enumerate(units):
            if isinstance(unit, RegionCall):
                self._region(unit)
            elif unit.op == "output":
                self.lines.append(f"return {self._literal(_as_list(unit.args[0]))}")
                break
            else:
                self._node(unit)
            written = unit.outputs if isinstance(unit, RegionCall) else (unit,)
            dead = [v for v in dict.fromkeys(_reads(unit)) if last_use[v] == i]
            self._drop([*dead, *(v for v in written if v not in last_use)])
        source = "def call(args):\n    " + "\n    ".join(self.lines) + "\n"
        exec(compile(source, "<fuseplan>", "exec"), self.namespace)
        call: Boxed = self.namespace["call"]
        call._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd's mark for the list convention
        call.source = source  # type: ignore[attr-defined]
        return call

    def _unpack(self, placeholders: Sequence[Node]) -> None:
        names = [self._name(p) for p in placeholders]
        if names:
            self.lines.append(", ".join(names) + (", = args" if len(names) == 1 else " = args"))
        self.lines.append("args.clear()")

    def _node(self, node: Node) -> None:
        if node.op == "get_attr":
            self.namespace[self._name(node)] = _attribute(self.gm, str(node.target))
            return
        name = self._name(node)
        if node.target is operator.getitem:
            self.lines.append(f"{name} = {self._literal(node.args[0])}[{self._literal(node.args[1])}]")
            return
        function = self._constant(binding(node))
        args = [self._literal(a) for a in node.args]
        args += [f"{key}={self._literal(value)}" for key, value in node.kwargs.items()]
        self.lines.append(f"{name} = {function}({', '.join(args)})")

    def _region(self, region: RegionCall) -> None:
        if region.call is None:
            return
        function = self._constant(region.call)
        outputs = ", ".join(self._name(v) for v in region.outputs)
        inputs = ", ".join(self._name(v) for v in region.inputs)
        comma = "," if len(region.outputs) == 1 else ""
        self.lines.append(f"{outputs}{comma} = {function}([{inputs}])" if outputs else f"{function}([{inputs}])")

    def _drop(self, values: Iterable[Node]) -> None:
        names = [self._name(v) for v in values if v.op != "get_attr"]
        if names:
            self.lines.append("del " + ", ".join(names))

    def _name(self, node: Node) -> str:
        return self.names.setdefault(node, f"v{len(self.names)}")

    def _constant(self, value: object) -> str:
        name = f"c{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def _literal(self, value: Any) -> str:
        if isinstance(value, Node):
            return self._name(value)
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
            items = ", ".join(self._literal(v) for v in value)
            if isinstance(value, list):
                return f"[{items}]"
            return f"({items},)" if len(value) == 1 else f"({items})"
        if isinstance(value, slice):
            return f"slice({self._literal(value.start)}, {self._literal(value.stop)}, {self._literal(value.step)})"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{k!r}: {self._literal(v)}" for k, v in value.items()) + "}"
        if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
            return repr(value)
        return self._constant(value)


def _reads(unit: Unit) -> Sequence[Node]:
    return unit.inputs if isinstance(unit, RegionCall) else unit.all_input_nodes


def _as_list(value: Any) -> Any:
    return list(value) if isinstance(value, (list, tuple)) else value


def _attribute(gm: GraphModule, path: str) -> Any:
    value: Any = gm
    for part in path.split("."):
        value = getattr(value, part)
    return value
