"""The moves of a plan as they are stored, one a line, read back for a table: what each was worth, and where."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE = re.compile(
    r"(?:(inference|forward|backward): )?(?:(\d{1,7}) × )?(?:([+\-−]\d[\d,]*(?:\.\d+)?) µs: )?(.*)", re.DOTALL
)
MOST = 400


@dataclass(frozen=True)
class Move:
    """One step from the cut of those who always fuse to the plan."""

    role: str
    times: int
    change_us: float | None
    """How it changes the predicted time of the program, all of its places together; less than nothing is a gain."""
    text: str


def moves_of(text: str) -> tuple[Move, ...]:
    """The moves of a plan, the worthiest first; those of unknown worth stand last.

    >>> moves_of("forward: 12 × -3.5 µs: peel-head op 7, and the like")[0]
    Move(role='forward', times=12, change_us=-42.0, text='peel-head op 7, and the like')
    """
    found = [_move(line) for line in text.splitlines()[:MOST] if line.strip()]
    return tuple(sorted(found, key=lambda move: (move.change_us is None, move.change_us or 0.0)))


def _move(line: str) -> Move:
    match = _LINE.fullmatch(line)
    if match is None:
        return Move("", 1, None, line)
    role, often, change, rest = match.groups()
    count = int(often or 1)
    # Each of the equal moves was priced alike.
    worth = None if change is None else count * float(change.replace("−", "-").replace(",", ""))
    return Move(role or "", count, worth, rest)
