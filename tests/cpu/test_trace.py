"""Traces: a program written down, carried away and captured again is the same program."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from agreement import assert_same
from fuseplan.capture.program import program_key
from fuseplan.capture.trace import Trace, load_trace, write_trace

Scope = Callable[[], AbstractContextManager[Any]]


def traces_of(call: Callable[..., Any], *args: Any, scope: Scope = nullcontext, **kwargs: Any) -> list[Trace]:
    """The traces of all that Dynamo captures of one call, each after a way through JSON."""
    traces: list[Trace] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        traces.append(Trace.from_json(write_trace(gm, example_inputs, "test").to_json()))
        return gm.forward

    with scope():
        torch.compile(call, backend=backend)(*args, **kwargs)
    torch._dynamo.reset()
    return traces


def assert_round_trips(trace: Trace) -> None:
    """Captured again, it is one graph of the same key, and what Dynamo runs gives what the module gives."""
    keys: list[str | None] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        keys.append(program_key(gm, example_inputs).key)
        return gm.forward

    loaded = load_trace(trace)
    captured = loaded.run(torch.compile(loaded.module, backend=backend))
    assert keys == [trace.key]
    assert_same(captured, loaded.run())


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Dropout(0.2), nn.Linear(16, 4))


SCOPES: dict[str, Scope] = {
    "training": nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES)
def test_a_module_in_each_mode_is_captured_again_as_the_same_program(scope: Scope) -> None:
    (trace,) = traces_of(mlp(), torch.randn(3, 8), scope=scope)
    assert_round_trips(trace)


def test_the_trained_module_has_gradients_for_all_its_parameters() -> None:
    (trace,) = traces_of(mlp(), torch.randn(3, 8))
    gradients = {name: value for name, value in load_trace(trace).run().items() if name.startswith("gradient")}
    assert len(gradients) == 6
    assert all(isinstance(value, Tensor) and value.abs().sum() > 0 for value in gradients.values())
