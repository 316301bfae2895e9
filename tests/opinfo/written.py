"""The backend `written`: every graph is written as JSON, read, built again as FX and run, so that what a Graph says is
what the program does. A graph that cannot be written down is an error here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import make_boxed_compiler, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

from fuseplan.capture.fx.composites import composites_kept
from fuseplan.capture.fx.from_fx import capture_fx
from fuseplan.capture.fx.to_fx import to_fx
from fuseplan.graph import Graph

UNWRITABLE = "GraphError: cannot be written down"  # what Graph.to_json says of an opaque graph


def written(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """A Dynamo backend, as fuseplan's `aten` plan but by way of the written form."""
    backend = aot_autograd(
        fw_compiler=make_boxed_compiler(_by_way_of_json),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    with composites_kept():
        return backend(gm, list(example_inputs))


def register() -> None:
    """Make the backend known to Dynamo by its name."""
    torch._dynamo.register_backend(written, name="written")


def _by_way_of_json(gm: GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
    captured = capture_fx(gm)
    captured.graph.validate()
    text = captured.graph.to_json()
    graph = Graph.from_json(text)
    if graph.to_json() != text or graph.key != captured.graph.key:
        raise AssertionError("the graph read is not the graph written")
    again = to_fx(graph)
    placeholders = len(gm.graph.find_nodes(op="placeholder"))
    large = [getattr(gm, str(captured.values[value.name].target)) for value in graph.inputs[placeholders:]]
    return lambda *args: again(*args, *large)
