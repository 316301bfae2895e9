"""At the sizes that people use, each layer keeps one attention call, decoders are proven causal, and the proven ones are as right
as eager's, beside the model in float32."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from benchmarks.zoo import CASES, Case, Inputs, step_of
from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by
from fuseplan.graph import Graph
from fuseplan.rewrites.attention.calls import AttentionCall, attention_calls

LAYERS = {"bert": 12, "gpt2": 12, "llama": 8, "vit-b": 12}
FACTOR, ULPS = 4.0, 8.0
"""What is granted as in the tests: a multiple of eager's own error, and some units in the last place."""


def kept(found: dict[str, Any], attention: str) -> set[int]:
    """How many attention operators stand in each graph of the program."""
    return {sum(operators.values()) for operators in found[attention]["operators"].values()}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["bert 32x128", "bert 32x128 train", "gpt2 8x1024", "llama 4x2048"])
def test_one_attention_a_layer_and_the_proven_variant_is_right(name: str) -> None:
    model = name.split()[0]
    found = measure_one(name)
    assert kept(found, "as-is") == kept(found, "proven") == {LAYERS[model]} == {found["calls"]}
    assert found["proven"]["passes"], found["proven"]
    assert found["as-is"]["passes"], found["as-is"]
    if model in ("gpt2", "llama"):
        assert found["proofs"] == {"causal": LAYERS[model]}
        assert found["variants"]["auto+causal"] == found["variants"]["flash+causal"] == LAYERS[model]
    else:
        assert found["proofs"] == {"hides nothing": LAYERS[model]}


def measure_one(name: str, device: str | None = None) -> dict[str, Any]:
    """One model; `passes` says whether its results under the proven plan are as accurate as eager's."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    case = CASES[name]
    model, inputs = case.load(device)
    calls = _calls(case, model, inputs)
    exact = _results(case, *_in_float32(model, inputs))
    eager = _results(case, model, inputs)
    found: dict[str, Any] = {"calls": len(calls), **_proofs(calls)}
    for attention in ("as-is", "proven"):
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="fuseplan", options={"plan": "aten", "attention": attention})
        accuracy = _accuracy(_results(case, model, inputs, compiled), eager, exact)
        found[attention] = {"operators": _operators(compiled), **accuracy}
    return found


def _calls(case: Case, model: nn.Module, inputs: Inputs) -> list[AttentionCall]:
    """The calls of attention in the program as Dynamo sees it."""
    calls: list[AttentionCall] = []

    def look(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        calls.extend(attention_calls(gm))
        for call in calls:
            call.variants  # noqa: B018 - computed now, while the fake tensors of tracing are there
        return gm.forward

    torch._dynamo.reset()
    step_of(torch.compile(model, backend=look), model, inputs, case.train)()
    return calls


def _proofs(calls: Sequence[AttentionCall]) -> dict[str, Any]:
    verdicts = {"causal": "causal", "all": "hides nothing", None: "unproven"}
    offered = Counter(variant for call in calls for variant in call.variants)
    return {"proofs": dict(Counter(verdicts[call.proof.verdict] for call in calls)), "variants": dict(offered)}


def _operators(compiled: object) -> dict[str, dict[str, int]]:
    """The attention operators in each ATen graph, by its role."""
    records = [record for program in programs_of(compiled_by(compiled)) for record in program.graphs]
    return {record.role: _attention_in(record.graph) for record in records}


def _attention_in(graph: Graph) -> dict[str, int]:
    return dict(Counter(op.target for op in graph.ops if "scaled_dot_product" in op.target or "sdpa" in op.target))


def _results(case: Case, model: nn.Module, inputs: Inputs, call: Callable[..., Any] | None = None) -> dict[str, Tensor]:
    """What one step gives: the outputs, or the loss and the gradients; on the CPU, where there is room."""
    given = step_of(model if call is None else call, model, inputs, case.train)()
    if not case.train:
        return {key: value.cpu() for key, value in given.items() if isinstance(value, Tensor)}
    gradients = {key: value.grad.cpu() for key, value in model.named_parameters() if value.grad is not None}
    return {"loss": given.detach().cpu(), **gradients}


def _in_float32(model: nn.Module, inputs: Inputs) -> tuple[nn.Module, Inputs]:
    """The same numbers, computed with more digits."""
    wide = {name: value.float() if value.is_floating_point() else value for name, value in inputs.items()}
    return copy.deepcopy(model).float(), wide


def _accuracy(actual: dict[str, Tensor], eager: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, Any]:
    """The largest error of any result relative to its largest value, eager's, and whether each is about as accurate."""
    errors, errors_of_eager, passes = [0.0], [0.0], True
    for key, want in exact.items():
        scale = float(want.abs().max()) or 1.0
        error, allowed = (float((side[key].float() - want).abs().max()) / scale for side in (actual, eager))
        errors.append(error)
        errors_of_eager.append(allowed)
        passes &= error <= FACTOR * allowed + ULPS * torch.finfo(actual[key].dtype).eps
    return {
        "error": max(errors),
        "error of eager": max(errors_of_eager),
        "passes": passes and set(actual) == set(exact),
    }
