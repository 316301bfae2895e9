"""The padded plan of a box of sizes, which races once: one CUDA graph serves all of the box."""

from __future__ import annotations

from fuseplan.measure.entry import RaceEntry
from fuseplan.plan import Plan
from fuseplan.tuning.program.problem import Problem
from fuseplan.tuning_db import Environment

PADDED = "inductor, padded"
"""What it is called in a race."""


def padded_entries(problem: Problem, here: Environment) -> list[RaceEntry]:
    """The program as torch.compile has it at the edge of its box, under CUDA graphs; nothing where no size varies in the box, where the
    program is trained, or where there are no CUDA graphs.
    """
    spans = problem.program.sizes.spans
    varies = any(low < high for _, low, high in spans)
    if not varies or problem.trains or here.device == "cpu" or here.version("inductor") is None:
        return []
    return [RaceEntry(PADDED, Plan("inductor", launch="cudagraph", padded=spans))]
