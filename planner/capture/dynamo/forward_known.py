"""What AOTAutograd knows of the forward that it has compiled last in the program of now.

Torch keeps one for a program of Dynamo's, where a backward looks that is compiled later. Who compiles a program more than once
says which of them it is that runs.
"""

from __future__ import annotations

from typing import Any

from torch._guards import TracingContext


def forward_known() -> Any:
    """Torch's own metadata of the forward; None outside of a program."""
    context = TracingContext.try_get()
    return None if context is None else context.fw_metadata


def runs_forward(known: Any) -> None:
    """Say that the forward runs of which this was known."""
    context = TracingContext.try_get()
    if context is not None:
        context.fw_metadata = known
