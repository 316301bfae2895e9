"""How plans were judged, as tables for people: how far off each is, what it was allowed, and how that came about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any

from fuseplan.judge.output import JudgedOutput
from fuseplan.looking.words import share, table
from fuseplan.tuning_db.evidence import Raced

HEAD = ("plan", "verdict", "off by", "allowed", "of that", "naturally", "measured by", "output")
NUMBERS = {2, 3, 4, 5}
"""The columns that hold numbers."""


def judged_lines(plans: Sequence[Raced], outputs: int | None = 1) -> Iterator[str]:
    """A table of plans with so many outputs of each, all with None; those judged in one way stand together.

    >>> loss = JudgedOutput("output 0", "largest", 3e-7, 1.2e-6, 6e-7)
    >>> for line in judged_lines([Raced("cut 1", how="beside a run in float64", outputs=(loss,))]):
    ...     print(line)
    judged beside a run in float64:
      plan   verdict  off by  allowed  of that  naturally  measured by  output
      cut 1  right     3e-07  1.2e-06   25.0 %      6e-07  largest      output 0
    """
    for how in dict.fromkeys(one.how for one in plans):
        rows = [row for one in plans if one.how == how for row in _rows(one, outputs)]
        yield f"judged {how}:" if how else "not judged:"
        yield from (f"  {line}" for line in table([HEAD, *rows], right=NUMBERS))


def verdict(status: str) -> str:
    """What a status says of the results.

    >>> verdict("ok"), verdict("wrong"), verdict("timeout")
    ('right', 'wrong', 'timeout')
    """
    return "right" if status == "ok" else status


def off_by(value: float) -> str:
    """An error, as short as it says something.

    >>> off_by(0.000123456), off_by(0.0)
    ('0.000123', '0')
    """
    return f"{value:.3g}"


def output_fields(one: JudgedOutput) -> dict[str, Any]:
    """A judged output as plain data, for JSON."""
    numbers = {"error": one.error, "allowed": one.allowed, "natural": one.natural, "share": one.share}
    known = {name: value if isfinite(value) else None for name, value in numbers.items()}
    return {"name": one.name, "measure": one.measure, **known}


def _rows(one: Raced, outputs: int | None) -> Iterator[tuple[str, ...]]:
    """The lines of one plan; its name and verdict stand in the first. Integers and what is random have no numbers."""
    start = (one.name, verdict(one.status))
    if not one.outputs:
        yield (*start, "-", "-", "-", "-", "-", one.detail)
    for output in one.outputs[:outputs]:
        yield (
            *start, off_by(output.error), off_by(output.allowed), share(output.share), off_by(output.natural),
            output.measure, output.name,
        )  # fmt: skip
        start = ("", "")
