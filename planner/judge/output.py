"""What a verdict on a program rests on: of each output how far it was off, and what was allowed. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf

WIDER = 2.0
"""How much further off than what moved runs of eager show torch.compile's default may be."""
ROUNDING_MOST = 2.0
"""How many times of that it may be off if each of its parts is right by itself, so that it is rounding everywhere: eight times the
furthest run of eager on moved values, less than one digit. No right result is known that was off by as much as it is allowed, and what
is beyond this is wrong whatever its parts are."""
Wider = Mapping[str, float]
"""How many times further off than what such runs allow an output may be, by its name; one that is not named as what stands under
`OTHERS`, or not at all."""
OTHERS = ""


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


def wider_for(wider: Wider | float, name: str) -> float:
    """How many times further off one output may be.

    >>> wider_for({"output 0": 1.5}, "output 0"), wider_for({"output 0": 1.5}, "output 1"), wider_for({OTHERS: 2.0}, "output 1")
    (1.5, 1.0, 2.0)
    """
    return wider.get(name, wider.get(OTHERS, 1.0)) if isinstance(wider, Mapping) else wider


def widened_by(outputs: Iterable[JudgedOutput]) -> dict[str, float]:
    """How much further off each output may be since torch.compile's own result is, which was allowed `WIDER` times as much.

    >>> widened_by([JudgedOutput("a", "mean", 3.0, 4.0, 1.0), JudgedOutput("b", "mean", 1.0, 4.0, 1.0)])
    {'a': 1.5}
    """
    found = {one.name: min(WIDER, WIDER * one.share) for one in outputs}
    return {name: factor for name, factor in found.items() if factor > 1.0}


def told_wider(wider: Wider) -> str:
    """What a verdict says of it.

    >>> told_wider({}), told_wider({OTHERS: 2.0}), told_wider({"a": 1.25, "b": 1.5})
    ('', ', allowed 2 times as much', ', 2 outputs allowed up to 1.5 times as much')
    """
    if not wider:
        return ""
    most = f"{max(wider.values()):.3g} times as much"
    if OTHERS in wider:
        return f", allowed {most}"
    return f", {len(wider)} output{'s' if len(wider) > 1 else ''} allowed up to {most}"


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
    reproduced: bool = True
    """Whether the script has shown it where it was found."""

    @property
    def told(self) -> str:
        """Where it is, in a few words.

        >>> Fault("cumsum", 5, "output 0 is off", "", "", reproduced=False).told
        '5 ops that end in cumsum (not reproduced by its script)'
        """
        ops = f"{self.ops} op{'s' if self.ops != 1 else ''} that end{'s' if self.ops == 1 else ''} in {self.op}"
        return ops if self.reproduced else f"{ops} (not reproduced by its script)"


@dataclass(frozen=True)
class Inquiry:
    """What is wrong with torch.compile's own result: a fault, or rounding everywhere, or neither is known."""

    fault: Fault | None = None
    rounding: int = 0
    """How many parts were judged each by itself, of which not one is wrong; 0 where that was not asked, or not found."""
    detail: str = ""
    """Why neither is known."""
