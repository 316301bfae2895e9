"""Graphs and how they are cut, drawn as SVG. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping

from fuseplan.drawing.paint import paint
from fuseplan.drawing.picture import picture
from fuseplan.drawing.style import color_word, colors, style, variables
from fuseplan.graph import Graph
from fuseplan.graph.words import counted
from fuseplan.segment import Segmentation, check_segmentation

__all__ = ["color_word", "colors", "style", "svg", "variables"]

_NO_LABELS: Mapping[int, str] = {}


def svg(
    graph: Graph, segmentation: Segmentation | None, *, title: str = "", labels: Mapping[int, str] = _NO_LABELS
) -> str:
    """A graph as a self-contained SVG, with each region of `segmentation` as a hull in the colour of its executor.

    Without a segmentation the islands are shown, within which ops may be fused. `labels` are texts on regions by their
    place in the segmentation, such as their times. A large graph is drawn so that it can be read: what comes several
    times in a row is drawn once, and large regions are closed. Hovering over a box or an arrow shows all of it.

    >>> from fuseplan.graph import Graph, Op, Ref, TensorType, Value
    >>> from fuseplan.segment import Region
    >>> x, y = (Value(name, TensorType("float32", (8,), (1,))) for name in "xy")
    >>> graph = Graph((x,), (Op("aten.relu.default", (Ref("x"),), (), (y,)),), (Ref("y"),))
    >>> drawn = svg(graph, Segmentation((Region((0,), "nvfuser"),)), title="a relu", labels={0: "1.5 µs"})
    >>> drawn.startswith("<svg"), "1.5 µs" in drawn
    (True, True)
    """
    if segmentation is not None:
        check_segmentation(graph, segmentation)
    known = {"op": graph.ops, "input": graph.inputs, "output": graph.outputs}
    facts = ", ".join(counted(len(there), what) for what, there in known.items())
    return paint(picture(graph, segmentation, labels), title, facts)
