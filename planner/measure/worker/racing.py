"""A race inside the worker: candidates on one clock, each with its row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch

from fuseplan.measure.failures import COMPILE, RUN
from fuseplan.measure.jobs import OutcomeRow
from fuseplan.measure.memory import Peak
from fuseplan.measure.race import LaneError
from fuseplan.measure.worker.workplace import Workplace


def enter(
    clock: Any,
    row: OutcomeRow,
    calls: Sequence[Callable[[], object]],
    device: torch.device,
    more: int = 0,
    turns: int = 1,
) -> OutcomeRow:
    """Add a candidate to a clock, with so many calls `more` to warm up than others, and so many in one of its `turns`; its row says how much
    memory its first calls took, or what they raised.
    """
    begin, peak = perf_counter(), Peak(device)
    try:
        clock.add(row.name, calls, COMPILE if row.compile_s is None else RUN, more, turns)
        spent = (row.compile_s or 0.0) + perf_counter() - begin
        peak.settle()
        clock.block(row.name)
    except LaneError as error:
        return replace(row, status=error.status, detail=error.detail)
    return replace(row, peak_bytes=peak.bytes(), compile_s=round(spent, 6))


def enter_again(clock: Any, name: str, calls: Sequence[Callable[[], object]], more: int, turns: int) -> OutcomeRow:
    """Add a candidate to a clock of whose first calls vetting has told already: whoever waits for the race does not wait for that once more."""
    try:
        clock.add(name, calls, RUN, more, turns)
    except LaneError as error:
        return OutcomeRow(name, error.status, error.detail)
    return OutcomeRow(name)


@dataclass(frozen=True)
class Announced:
    """A clock that says whose block is next, so that the parent knows who was at it when all ends."""

    clock: Any
    place: Workplace

    def block(self, name: str) -> Any:
        """One block, announced."""
        self.place.at(name, "timing")
        return self.clock.block(name)
