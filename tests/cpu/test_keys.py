"""What the key of a program leaves out and what it holds: devices by their order, and how inputs of one storage lie in torch's cache."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import Graph, GraphModule

import fuseplan
from fuseplan.backend import programs_of
from fuseplan.capture.dynamo.program import Described, program_key
from fuseplan.explain import compiled_by
from fuseplan.plan import CarveOuts, Plan
from fuseplan.segment import Region, Segmentation

MODES = {"autocast": {}, "grad": True, "inference": False, "default": "float32", "deterministic": False}


def key_on(input_of: int, spelled: Any) -> str | None:
    """That of a program whose input is on one GPU, and which makes something on another."""
    graph = Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = Described("tensor torch.float32 [4] [1]", torch.device("cuda", input_of), "0100")
    made = graph.call_function(torch.ones, (4,), {"device": spelled})
    graph.output((graph.call_function(operator.add, (x, made)),))
    return program_key(GraphModule({}, graph), [], MODES).key


@pytest.mark.parametrize("spelled", [lambda i: torch.device("cuda", i), lambda i: f"cuda:{i}"])
def test_a_rank_s_own_device_is_the_same_on_each(spelled: Callable[[int], Any]) -> None:
    first, second = (key_on(i, spelled(i)) for i in (0, 1))
    assert first == second is not None
    assert key_on(0, spelled(1)) == key_on(1, spelled(0)) != first


def doubled(a: Tensor, b: Tensor) -> Tensor:
    a.mul_(2)
    return a + b - 1


def two_of_one(offset: int) -> tuple[Tensor, Tensor]:
    base = torch.arange(8.0)
    return base[:4], base[offset : offset + 4]


def test_what_torch_keeps_of_parts_that_are_apart_is_not_what_overlapping_ones_run() -> None:
    """torch.compile alone gives the one's code to the other: its key has no place of an input within its storage."""
    first = fuseplan.compile(doubled, plan="aten")
    first(*two_of_one(4))
    (program,) = programs_of(compiled_by(first))
    graph = program.graphs[0].graph
    assert graph is not None
    plan = Plan("aten", carve_outs=(CarveOuts("inference", graph.key, Segmentation((Region((1, 2), "inductor"),))),))
    for offset in (4, 2):
        torch._dynamo.reset()
        compiled = fuseplan.compile(doubled, plan=plan)
        if offset == 4:
            assert compiled(*two_of_one(offset)).tolist() == doubled(*two_of_one(offset)).tolist()
            continue
        with pytest.raises(Exception, match="PlanError: the plan was made for inference graph"):
            compiled(*two_of_one(offset))
