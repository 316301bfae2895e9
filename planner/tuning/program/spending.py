"""What measurements cost, and what that counts for where one is chosen: one rule for tuning and for its replay on rows.

What is dear has to be worth more. But what costs next to nothing is not free: a rule that divides by seconds alone asks
what ATen takes all over the program before it compiles anything, and the time is gone before the dear region on which
the plan turns has had its turn. `scripts/bench active --replay` puts this rule beside others.
"""

from __future__ import annotations

from collections.abc import Callable

from fuseplan.executors.known import traits_of
from fuseplan.segment import Choice
from fuseplan.tuning.effort import LEAST_MEASUREMENT_S

Rule = Callable[[float], float]
"""From the seconds that a measurement takes to what its worth is divided by."""


def seconds_for(choice: Choice) -> float:
    """The seconds that a choice takes to be measured, about.

    >>> seconds_for(("aten", "flash")), seconds_for(("inductor", "default")), seconds_for(("inductor", "tuned"))
    (0.3, 2.5, 10.0)
    """
    executor, variant = choice
    return traits_of(executor).seconds_for(variant)


def floored(seconds: float) -> float:
    """What a measurement of so many seconds counts for.

    >>> floored(0.3), floored(2.5)
    (1.5, 2.5)
    """
    return max(seconds, LEAST_MEASUREMENT_S)
