"""Traces that come from elsewhere: of another torch, of another device, or no traces at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cpu.test_trace import assert_round_trips, matrix, traces_of
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.key import at_home, native
from fuseplan.capture.trace.load import load_trace
from fuseplan.capture.trace.write import write_trace
from fuseplan.errors import GraphError

# what another torch wrote


GOLDEN = sorted((Path(__file__).parent / "golden_traces").glob("*.json"))


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
def test_a_trace_of_another_torch_is_captured_again_under_this_one(file: Path) -> None:
    trace = Trace.from_json(file.read_text(encoding="utf-8"))
    here = at_home(trace)
    assert here.fields == trace.fields
    assert_round_trips(here)


def test_golden_traces_are_of_the_oldest_torch_and_of_the_newest() -> None:
    assert {Trace.from_json(file.read_text()).fields["torch"].split("+")[0] for file in GOLDEN} == {"2.10.0", "2.13.0"}


def test_what_this_torch_does_not_have_is_named(small: Any) -> None:
    newer = _changed(_changed(small, ["torch"], "2.99.0"), ["nodes", 0, "target"], "torch.nn.functional.fold_space")
    newer["nodes"][0]["op"] = "function"
    with pytest.raises(GraphError) as refusal:
        at_home(Trace.from_json(json.dumps(newer)))
    assert "'torch.nn.functional.fold_space' is a function that" in str(refusal.value)
    assert f"torch {torch.__version__} does not have" in str(refusal.value)
    assert "written under torch 2.99.0" in str(refusal.value)


def test_a_size_that_stands_there_twice_is_of_an_older_fuseplan() -> None:
    x = torch.ones(5, 4)
    torch._dynamo.mark_dynamic(x, 0)
    (trace,) = traces_of(lambda x: x * x.shape[0], x)
    assert at_home(trace) == trace
    size = next(item for item in trace.fields["inputs"] if item["kind"] == "size")
    fields = {**trace.fields, "inputs": [*trace.fields["inputs"], size]}
    with pytest.raises(GraphError, match="record it again"):
        at_home(replace(trace, fields=fields))


def test_what_binds_a_program_to_its_device_is_named() -> None:
    (trace,) = traces_of(lambda x: (x @ x).to("cpu") + 1, matrix())
    moved, reasons = native(trace, "cuda")
    assert reasons == ["call 1 (to) names the device 'cpu' itself, which a native run may keep"]
    assert moved.key != trace.key
    assert at_home(moved) == moved


# what is refused


def test_what_cannot_be_written_is_named() -> None:
    refusals: list[str] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        with pytest.raises(GraphError) as refusal:
            write_trace(gm, example_inputs, "mine")
        refusals.append(str(refusal.value))
        return gm.forward

    torch.compile(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), backend=backend)(matrix(3))
    torch._dynamo.reset()
    assert refusals == ["cond is a higher-order operator, which a trace cannot hold"]


_CHECKPOINT = "torch.utils.checkpoint.checkpoint"
_ATTENTION = "torch.nn.attention"


@pytest.fixture(scope="module")
def small() -> Mapping[str, Any]:
    """A trace as JSON holds it, to be spoilt."""
    (trace,) = traces_of(lambda x: x.exp() + 1, matrix(3))
    return json.loads(trace.to_json())  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (["format"], "fuseplan trace 0", "its format is not"),
        (["key"], 3, "the key is 3"),
        (["extra"], 3, "unknown field 'extra'"),
        (["format"], "fuseplan trace 2", "which a newer fuseplan wrote"),
        (["calls"], {}, "the calls are a dict"),
        (["calls"], [{"sizes": {}, "calls": 0, "seconds": 0}], "item 0 counts 0 calls"),
        (["calls"], [{"sizes": {"s0": 3}, "calls": 1, "seconds": 0}], "not those of the program"),
        (["calls"], [{"sizes": {}, "calls": 1, "seconds": -1}], "took -1 seconds"),
        (["inputs", 0, "kind"], "file", "of the kind 'file'"),
        (["inputs", 0, "stride"], [], "1 sizes and 0 strides"),
        (["inputs", 0, "shape", 0], -4, "has the size -4"),
        (["nodes", 0, "args", 0], {"ref": 1}, "refers to 1"),
        (["nodes", 0, "args", 0], {"pickle": "x"}, "no kind of argument"),
        (["nodes", 0, "op"], "module", "of the kind 'module'"),
        (["nodes", 0], {"op": "block", "inputs": 1, "nodes": [], "output": [{"ref": 1}]}, "refers to 1"),
        (["output"], [{"ref": -1}], "refers to -1"),
    ],
)
def test_garbage_is_refused_in_one_line(small: Any, path: list[Any], value: Any, complaint: str) -> None:
    with pytest.raises(GraphError) as refusal:
        Trace.from_json(json.dumps(_changed(small, path, value)))
    assert complaint in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("node", "complaint"),
    [
        ({"op": "function", "target": "builtins.eval", "args": ["1"]}, "'builtins.eval' is a function"),
        ({"op": "function", "target": "torch.os.system", "args": ["true"]}, "'torch.os.system' is a function"),
        ({"op": "function", "target": "torch.load", "args": ["f"]}, "'torch.load' is a function"),
        ({"op": "function", "target": "torch.from_file", "args": ["f"]}, "'torch.from_file' is a function"),
        ({"op": "function", "target": "ops.aten.from_file", "args": ["f"]}, "'ops.aten.from_file' is a function"),
        ({"op": "function", "target": "ops.load_library", "args": ["f"]}, "'ops.load_library' is a function"),
        ({"op": "function", "target": "ops.nobody.knows", "args": []}, "has no operator 'ops.nobody.knows'"),
        ({"op": "function", "target": "builtins.getattr", "args": [{"ref": 0}, "__class__"]}, "may not see"),
        ({"op": "function", "target": _CHECKPOINT, "args": [{"function": "operator.add"}]}, "no block of its own"),
        ({"op": "function", "target": _CHECKPOINT, "args": [{"ref": 0}, 1]}, "no block of its own"),
        ({"op": "method", "target": "__reduce_ex__", "args": [{"ref": 0}, 2]}, "'__reduce_ex__' is a method"),
        ({"op": "method", "target": "exp(); import os; x", "args": [{"ref": 0}]}, "is a method"),
        ({"op": "method", "target": "exp", "args": [{"dtype": "load"}]}, "has no dtype 'load'"),
        ({"op": "method", "target": "exp", "args": [{"device": "a b"}]}, "'a b' is no device"),
        (
            {"op": "function", "target": "torch.amp.autocast_mode._enter_autocast", "args": [{"ref": 0}]},
            "arguments that are none of it",
        ),
        (
            {"op": "function", "target": f"{_ATTENTION}._backend_from_string", "args": ["__class__"]},
            "that there is not",
        ),
        (
            {"op": "function", "target": f"{_ATTENTION}._sdpa_kernel", "args": [["MATH"], False]},
            "arguments that are none",
        ),
        ({"op": "function", "target": f"{_ATTENTION}._sdpa_kernel", "args": [[], False]}, "never exits a block"),
    ],
)
def test_a_trace_calls_nothing_but_functions_of_tensors(small: Any, node: Any, complaint: str) -> None:
    with pytest.raises(GraphError) as refusal:
        load_trace(Trace.from_json(json.dumps(_changed(small, ["nodes", 0], node))))
    assert complaint in str(refusal.value)
    assert "\n" not in str(refusal.value)


def _changed(document: Any, path: list[Any], value: Any) -> Any:
    copied = json.loads(json.dumps(document))
    part = copied
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    return copied
