"""A race's entries: the ways to run one whole program that are checked, prepared and timed against each other."""

from __future__ import annotations

from dataclasses import dataclass, field

from fuseplan.errors import OptionError
from fuseplan.plan import Plan


@dataclass(frozen=True)
class RaceEntry:
    """One way to run a whole program: under a plan, under plain `torch.compile` in some `mode`, or with neither, eager.

    Two entries are equal if the same runs under the same name: what is known of them beside that, how it was found and what it
    is thought to take, does not tell them apart, so that a worker finds what it has prepared.

    >>> RaceEntry("inductor", Plan.named("inductor"), default=True) == RaceEntry("inductor", Plan.named("inductor"))
    True
    """

    name: str
    """What the race, its rows and the evidence call it: no two entries of a race have one name."""
    plan: Plan | None = None
    mode: str | None = None
    """Of `torch.compile`, without fuseplan."""
    default: bool = field(default=False, compare=False)
    """Whether nobody has to tune for it: the fastest of these is what a plan has to be better than."""
    offered: bool = field(default=False, compare=False)
    """Whether it won its race elsewhere, or is a neighbour of what did."""
    predicted_us: float | None = field(default=None, compare=False)
    """What a step was predicted to take on the device, where that was asked."""
    searching_s: float = field(default=0.0, compare=False)
    """About how long Inductor looks for kernels, where it does and that is known."""

    def __post_init__(self) -> None:
        if self.plan is not None and self.mode is not None:
            raise OptionError(f"{self.name} has a plan, or a mode of torch.compile, not both")
