"""What a verdict on a program rests on: of each output how far it was off, and what was allowed. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

WIDER = 2.0
"""How much further off than what moved runs of eager show torch.compile's default may be."""


@dataclass(frozen=True)
class JudgedOutput:
    """What was found of one output: its error in the way in which it is the worst, and how that came to be allowed."""

    name: str
    measure: str
    error: float
    allowed: float
    natural: float
    """What the perturbed runs of eager are off by, in the same way."""

    @property
    def share(self) -> float:
        """The error as a share of what is allowed: beyond 1 it is wrong."""
        return self.error / self.allowed if self.allowed else inf if self.error else 0.0


@dataclass(frozen=True)
class Fault:
    """The part of a program that torch.compile gets wrong."""

    op: str
    """What is called at its end."""
    ops: int
    """How many ops it has."""
    problem: str
    script: str
    """Python that shows it without fuseplan."""
    trace: str
    """The part as a trace."""
