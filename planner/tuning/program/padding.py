"""The padded plan of a box of sizes, which races once: one CUDA graph serves all of the box."""

from __future__ import annotations

from fuseplan.capture.trace.format import Trace
from fuseplan.measure.entry import RaceEntry
from fuseplan.plan import Plan
from fuseplan.tuning.program.problem import Problem
from fuseplan.tuning.traces import calls_that_came
from fuseplan.tuning_db import Environment

PADDED = "inductor, padded"
"""What it is called in a race."""


def varies_among_calls(trace: Trace) -> bool:
    """Whether calls of several sizes of its box were counted: one size alone does not tell what padding costs."""
    return len({str(one.sizes) for one in calls_that_came(trace)}) > 1


def padded_entries(problem: Problem, here: Environment) -> list[RaceEntry]:
    """The program as torch.compile has it at the edge of its box, under CUDA graphs; nothing where no size varies in the box, where the
    program is trained, or where there are no CUDA graphs.
    """
    spans = problem.program.sizes.spans
    varies = any(low < high for _, low, high in spans)
    if not varies or problem.trains or here.device == "cpu" or here.version("inductor") is None:
        return []
    return [RaceEntry(PADDED, Plan("inductor", launch="cudagraph", padded=spans))]
