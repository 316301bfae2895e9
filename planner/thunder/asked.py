"""What is measured of some ops of a trace, before anybody knows whether they become a region: the answer of the tuning database.

They are captured as Dynamo captures a region, and nothing is run. Thunder's traces know no strides, so that the program which is asked
for has contiguous inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from thunder.core.devices import to_torch_device
from thunder.core.dtypes import to_torch_dtype
from thunder.core.proxies import NumberProxy, Proxy, TensorProxy
from torch._dynamo.exc import TorchDynamoException
from torch.fx import GraphModule

from fuseplan.backend import looked_up
from fuseplan.lookup import Chosen
from fuseplan.noise import relative
from fuseplan.thunder.region import Call, outside
from fuseplan.tuning_db import StoredPlan


@dataclass(frozen=True)
class Answer:
    """What the database knows of some ops: the plan that has won there, if they were measured; and why it is that one, or none."""

    why: str
    key: str | None = None
    stored: StoredPlan | None = None

    @property
    def us(self) -> float | None:
        """What they take under that plan, in µs."""
        return None if self.stored is None else self.stored.wall_us

    @property
    def noise(self) -> float:
        """By what share that may be off, as its race was."""
        return relative(self.stored.noise_us, self.stored.wall_us) or 0.0 if self.stored is not None else 0.0


def ask(call: Call, inputs: Sequence[Proxy], options: Mapping[str, Any]) -> Answer:
    """Ask the tuning database of a function of torch; with option `tune` it is tuned now, or put into the queue."""
    examples = [_example(one) for one in inputs]
    if any(one is None for one in examples):
        return Answer("it is given what is no tensor")
    found: list[tuple[str | None, Chosen]] = []

    def backend(gm: GraphModule, example_inputs: Sequence[Any]) -> Call:
        _, lookup = looked_up(gm, example_inputs, options)
        found.append((lookup.identity.key, lookup.choose(leaves_small=False)))
        lookup.complain()
        given = [None] * len(gm.graph.output_node().args[0])  # type: ignore[arg-type]
        return lambda *_: given

    try:
        outside(torch.compile(call, backend=backend, fullgraph=True, dynamic=False))(*examples)
    except TorchDynamoException as error:
        return Answer(f"it cannot be captured: {str(error).splitlines()[0]}")
    if not found:
        return Answer("there is nothing in it to compile")
    key, chosen = found[0]
    return Answer(chosen.why, key, chosen.stored)


def _example(proxy: Proxy) -> Any:
    """Something that looks like what this will be; None for what nobody knows how to make."""
    if isinstance(proxy, NumberProxy):
        return proxy.value
    if not isinstance(proxy, TensorProxy):
        return None
    shape = [int(size.value if isinstance(size, NumberProxy) else size) for size in proxy.shape]
    return torch.empty(shape, dtype=to_torch_dtype(proxy.dtype), device=to_torch_device(proxy.device))
