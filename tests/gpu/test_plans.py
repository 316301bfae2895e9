"""Five models under every default and under a mixed plan written by hand, launched plain and through CUDA graphs."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest
import torch

from fuseplan.backend import programs_of
from fuseplan.executors import executors
from fuseplan.explain import compiled_by
from fuseplan.graph import Graph
from fuseplan.plan import CarveOuts, Plan
from fuseplan.segment import Region, Segmentation, extract, maximal_regions
from plans import compile_under
from running import check_forward, check_training
from zoo import TIMM, TRANSFORMERS, Entry

MODELS = ("gpt2", "bert", "llama", "resnet", "vit")
ENTRIES = {**{name: TRANSFORMERS[name] for name in MODELS}, "resnet50": TIMM["resnet50"]}
LAUNCHES = ("plain", "cudagraph")


def _bf16() -> Any:
    return torch.autocast("cuda", dtype=torch.bfloat16)


def mixed(entry: Entry, *, train: bool) -> Plan:
    """A plan that gives the regions between anchors to nvFuser, Inductor and ATen in turn, and pads odd matmuls."""
    model, inputs = entry.build(dropout=0.0)
    model, inputs = model.cuda().train(train), {name: value.cuda() for name, value in inputs.items()}
    with torch.set_grad_enabled(train), _bf16():
        compiled = compile_under("aten", model)
        result = compiled(**inputs)
        if train:
            result.loss.backward()
    parts = [
        CarveOuts(record.role, record.graph.key, _cut(record.graph))
        for program in programs_of(compiled_by(compiled))
        for record in program.graphs
    ]
    torch._dynamo.reset()
    return Plan("aten", carve_outs=tuple(parts))


def _cut(graph: Graph) -> Segmentation:
    known = executors()
    takes = [known["nvfuser"].supports(op, graph) is None for op in graph.ops]
    turns = cycle(("nvfuser", "inductor", "aten"))
    regions = [
        Region(region.ops, next(turns), recompute=region.recompute)
        for region in maximal_regions(graph, takes, "nvfuser").regions
    ]
    for i in range(len(graph.ops)):
        variants = known["aten"].variants(extract(graph, (i,)))
        if "padded" in variants:
            regions.append(Region((i,), "aten", "padded"))
    return Segmentation(tuple(regions))


@pytest.mark.parametrize("launch", LAUNCHES)
@pytest.mark.parametrize("plan", ["inductor", "nvfuser-greedy", "mixed"])
@pytest.mark.parametrize("name", ENTRIES)
def test_inference(name: str, plan: str, launch: str) -> None:
    entry = ENTRIES[name]
    check_forward(entry, mixed(entry, train=False) if plan == "mixed" else plan, "cuda", _bf16, launch=launch)


@pytest.mark.parametrize("launch", LAUNCHES)
@pytest.mark.parametrize("plan", ["inductor", "nvfuser-greedy", "mixed"])
@pytest.mark.parametrize("name", ENTRIES)
def test_training(name: str, plan: str, launch: str) -> None:
    entry = ENTRIES[name]
    check_training(entry, mixed(entry, train=True) if plan == "mixed" else plan, "cuda", _bf16, launch=launch)


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", ENTRIES)
def test_eager_is_eager(name: str, train: bool) -> None:
    (check_training if train else check_forward)(ENTRIES[name], "eager", "cuda", _bf16)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_one_attention_call_per_layer(name: str) -> None:
    model, inputs = TRANSFORMERS[name].build(dropout=0.0)
    model, inputs = model.cuda().eval(), {key: value.cuda() for key, value in inputs.items()}
    with torch.no_grad(), _bf16():
        compiled = compile_under("aten", model)
        compiled(**inputs)
    graphs = [record.graph for program in programs_of(compiled_by(compiled)) for record in program.graphs]
    targets = [op.target for graph in graphs for op in graph.ops]
    whole = [target for target in targets if "scaled_dot_product" in target or target.startswith("fuseplan.sdpa")]
    assert len(whole) == model.config.num_hidden_layers
    assert not any("softmax" in target for target in targets if target != "aten._log_softmax.default")


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("launch", LAUNCHES)
@pytest.mark.parametrize("plan", ["aten", "inductor", "nvfuser-greedy"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_proven_masks_are_dropped(name: str, plan: str, launch: str, train: bool) -> None:
    check = check_training if train else check_forward
    check(TRANSFORMERS[name], plan, "cuda", _bf16, launch=launch, attention="proven")
