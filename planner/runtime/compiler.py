"""Whether Inductor can compile for the devices of a program on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch.fx import GraphModule


def missing_compiler(gm: GraphModule, example_inputs: Sequence[Any]) -> str | None:
    """Return None where Inductor has a compiler for every device of the program, else what is missing."""
    found = (_missing(device) for device in sorted({device.type for device in devices_of(gm, example_inputs)}))
    return next((reason for reason in found if reason is not None), None)


def devices_of(gm: GraphModule, example_inputs: Sequence[Any]) -> list[torch.device]:
    """All devices of a program, in the order of their first use."""
    tensors = [value for value in example_inputs if isinstance(value, torch.Tensor)]
    made = [node.meta.get("example_value") for node in gm.graph.nodes if node.op != "placeholder"]
    tensors += [value for value in made if isinstance(value, torch.Tensor)]
    return list(dict.fromkeys(tensor.device for tensor in tensors))


@cache
def _missing(device: str) -> str | None:
    if device not in ("cpu", "cuda", "xpu"):
        return None
    from fuseplan.executors.inductor import toolchain

    return toolchain.missing(device)
