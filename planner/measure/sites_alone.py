"""What a program is captured to be where nothing is cut: its key and its sites, of which the Dynamo graph tells without being traced."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from torch.fx import GraphModule

from fuseplan.capture.dynamo.program import program_key
from fuseplan.capture.gradients import goes_back
from fuseplan.measure.jobs import CapturedProgram
from fuseplan.rewrites.sites import Sites, missed_places
from fuseplan.rewrites.special import example


def sites_alone(
    gm: GraphModule, example_inputs: Sequence[Any], kinds: Collection[str] | None = None, traced_s: float = 0.0
) -> CapturedProgram:
    """The program of a settled Dynamo graph, with the sites of these kinds, else of all, and without its graphs."""
    sites, missed = Sites.of(gm, kinds).told(), missed_places(gm, kinds)
    key = program_key(gm, example_inputs).key
    return CapturedProgram(key, (), tuple(sites), traced_s=traced_s, missed=missed, trains=has_backward(gm))


def has_backward(gm: GraphModule) -> bool:
    """Whether a Dynamo graph gives anything that gradients go back from."""
    outputs = next(iter(gm.graph.find_nodes(op="output"))).all_input_nodes
    return any(goes_back(example(node)) for node in outputs)
