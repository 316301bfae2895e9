"""A graph as the Python that it is, in the order in which its plan runs it, with a block for each region."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fuseplan.drawing.fold import Hulled, units_of
from fuseplan.graph import Graph
from fuseplan.graph.printing import op_line
from fuseplan.graph.words import counted
from fuseplan.segment import Segmentation


def marked(graph: Graph, segmentation: Segmentation | None, notes: Mapping[int, str]) -> str:
    """The listing of a graph with its regions marked; `notes` are words on regions, by their place.

    >>> from fuseplan.graph import Op, Ref, TensorType, Value
    >>> from fuseplan.segment import Region
    >>> x, y = (Value(name, TensorType("float32", (8,), (1,))) for name in "xy")
    >>> graph = Graph((x,), (Op("aten.relu.default", (Ref("x"),), (), (y,)),), (Ref("y"),))
    >>> print(marked(graph, Segmentation((Region((0,), "nvfuser"),)), {0: "1.5 µs"}))
    def graph(
        x,  # cpu float32[8]
    ):
        with nvfuser:  # region 0, 1 op: 1.5 µs
            y = aten.relu.default(x)  # cpu float32[8]
        return y
    """
    lines = str(graph).split("\n")
    if segmentation is None or not segmentation.regions:
        return "\n".join(lines)
    first = len(lines) - 1 - len(graph.ops)  # one line an op, and the last returns
    body = [line for unit in units_of(graph, segmentation) for line in _unit(graph, unit, notes)]
    return "\n".join([*lines[:first], *body, lines[-1]])


def _unit(graph: Graph, unit: Hulled, notes: Mapping[int, str]) -> Iterator[str]:
    if unit.number is None:
        yield f"    {op_line(graph.ops[unit.ops[0]])}"
        return
    who = unit.executor if unit.variant == "default" else f'{unit.executor}("{unit.variant}")'
    note = notes.get(unit.number, "")
    many = counted(len(unit.ops), "op")
    yield f"    with {who}:  # region {unit.number}, {many}{': ' + note if note else ''}"
    for op in unit.drawn:
        yield f"        {op_line(graph.ops[op])}" + ("; computed once more here" if op in unit.again else "")
