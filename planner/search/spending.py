"""What measurements cost, and what that counts for where one is chosen: one rule for tuning and for its replay on rows.

What is dear has to be worth more. But what costs next to nothing is not free: a rule that divides by seconds alone asks
what ATen takes all over the program before it compiles anything, and the time is gone before the dear region on which
the plan turns has had its turn. `scripts/bench active --replay` puts this rule beside others.
"""

from __future__ import annotations

from collections.abc import Callable

Choice = tuple[str, str]
"""An executor and one of its variants."""
Rule = Callable[[float], float]
"""From the seconds that a measurement takes to what its worth is divided by."""
COST_S = {"aten": 0.3, "inductor": 2.5, "nvfuser": 1.5}
"""What compiling, checking and timing a region take, about; only how they compare counts."""
OTHER_S, TUNED_S = 2.0, 10.0
"""The same for executors that are not named, and for a variant that searches by itself."""
LEAST_S = 1.5
"""What every measurement counts for at least: the cheaper of the compilers."""


def cost_of(choice: Choice) -> float:
    """The seconds that a choice takes to be measured, about.

    >>> cost_of(("aten", "flash")), cost_of(("inductor", "default")), cost_of(("inductor", "tuned"))
    (0.3, 2.5, 10.0)
    """
    executor, variant = choice
    return COST_S.get(executor, OTHER_S) if variant != "tuned" else TUNED_S


def floored(seconds: float) -> float:
    """What a measurement of so many seconds counts for.

    >>> floored(0.3), floored(2.5)
    (1.5, 2.5)
    """
    return max(seconds, LEAST_S)
