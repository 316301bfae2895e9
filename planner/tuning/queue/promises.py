"""Sizes that a caller promised to vary further than the plan of a program would hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuseplan.capture.dynamo.program import program_key
from fuseplan.capture.dynamo.promised import EVERY, promised_sizes
from fuseplan.capture.trace.format import Trace
from fuseplan.errors import FuseplanError
from fuseplan.tuning.traces import box_of


def refuse_promises(gm: Any, example_inputs: Sequence[Any], trace: Trace) -> None:
    """FuseplanError where a plan of this program would not be used for what was promised."""
    promised = promised_sizes(gm, example_inputs, program_key(gm, example_inputs).symbols)
    for name, low, high in box_of(trace).spans:
        promise = promised.get(name, EVERY)
        if promise != EVERY and not low <= promise[0] <= promise[1] <= high:
            raise FuseplanError(
                f"{name} was promised to vary over {promise[0]}..{promise[1]}, and a plan tuned here is for {low}..{high}"
            )
