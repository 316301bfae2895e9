"""Graphs of one device as another would have captured them: some operators give other types there."""

from __future__ import annotations

from dataclasses import replace

from torch.fx.experimental.proxy_tensor import make_fx

from fuseplan.capture.fx.from_fx import from_fx
from fuseplan.capture.fx.to_fx import fake_inputs, to_fx
from fuseplan.errors import GraphError
from fuseplan.executors.inductor.api import fake_mode
from fuseplan.graph import Graph, Ref, TensorType, Value

_HALF = ("bfloat16", "float16")
_STATISTICS = {"aten.native_layer_norm_backward.default": (3, 4), "aten.native_group_norm_backward.default": (2, 3)}
"""Which arguments are means and the like: a GPU keeps them in float32, a CPU in the type of the input."""


def moved_to(graph: Graph, device: str) -> Graph:
    """The graph on another device, such as `cuda:0`, which need not be there: types are found with fake tensors."""
    text = graph.to_json()
    for old in graph.devices:
        text = text.replace(f'"{old}"', f'"{device}"')
    moved = _with_statistics(Graph.from_json(text))
    try:
        gm = to_fx(moved)
    except GraphError:
        return moved  # a torch without that device has no fake of some operator: its types stay
    with fake_mode(gm):
        traced = make_fx(gm)(*fake_inputs(gm))
    found = from_fx(traced)
    found.validate()
    return found


def _with_statistics(graph: Graph) -> Graph:
    names = set()
    for op in graph.ops:
        for place in _STATISTICS.get(op.target, ()):
            arg = op.args[place]
            if isinstance(arg, Ref):
                names.add(arg.name)
    return replace(graph, inputs=tuple(_wide(value) if value.name in names else value for value in graph.inputs))


def _wide(value: Value) -> Value:
    if isinstance(value.type, TensorType) and value.type.dtype in _HALF:
        return replace(value, type=replace(value.type, dtype="float32"))
    return value
