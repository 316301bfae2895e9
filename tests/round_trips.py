"""Programs that are written down, and captured again from that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from agreement import assert_same
from fuseplan.capture.dynamo.program import program_key
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.key import key_of
from fuseplan.capture.trace.load import load_trace
from fuseplan.capture.trace.write import write_trace

Scope = Callable[[], AbstractContextManager[Any]]


def traces_of(
    call: Callable[..., Any], *args: Any, scope: Scope = nullcontext, dynamic: bool | None = None, **kwargs: Any
) -> list[Trace]:
    """The traces of all that Dynamo captures of one call, each after a way through JSON."""
    traces: list[Trace] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        traces.append(Trace.from_json(write_trace(gm, example_inputs, "test").to_json()))
        return gm.forward

    with scope():
        torch.compile(call, backend=backend, dynamic=dynamic)(*args, **kwargs)
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
    assert key_of(trace.fields) == trace.key
    assert_same(captured, loaded.run())


def matrix(*shape: int, grad: bool = False) -> Tensor:
    return torch.randn(shape or (4, 4), requires_grad=grad)
