"""What a cost is: the times of one call, measured or predicted, and how sure they are."""

from __future__ import annotations

import math
from dataclasses import dataclass

NINE_OF_TEN = 1.645
"""So many standard deviations either way hold nine of ten."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What it costs to run something once. What failed has a status other than `ok`, and no times."""

    device_us: float = math.inf
    host_us: float = math.inf
    spread: float = 0.0
    """One standard deviation of the logarithm of the device time: 0.1 is about ten percent either way. What was measured has none."""
    fails: float = 0.0
    """How likely it is not to run at all, or to compute something else."""
    near_best: float | None = None
    """How likely it is within 3 % of the best there is for its region; None from a model that does not say."""
    unsure: bool = False
    """Unlike what was learnt from: measure it rather than believe this."""
    status: str = "ok"

    @property
    def times(self) -> tuple[float, float]:
        """Host and device µs, as the two clocks take them."""
        return self.host_us, self.device_us

    @property
    def low_us(self) -> float:
        """The lower end of what holds nine times of ten.

        >>> round(Cost(100.0, 5.0, 0.1).low_us), round(Cost(100.0, 5.0, 0.1).high_us)
        (85, 118)
        """
        return self.device_us * math.exp(-NINE_OF_TEN * self.spread)

    @property
    def high_us(self) -> float:
        """The upper end of it."""
        return self.device_us * math.exp(NINE_OF_TEN * self.spread)

    def lowered(self, spreads: float) -> Cost:
        """The same with both times lowered by so many spreads.

        >>> Cost(100.0, 5.0).lowered(1.5) == Cost(100.0, 5.0)
        True
        >>> round(Cost(100.0, 5.0, 0.1).lowered(1.0).device_us, 1)
        90.5
        """
        if spreads == 0.0 or self.spread == 0.0:
            return self
        less = math.exp(-spreads * self.spread)
        device, host = self.device_us * less, self.host_us * less
        return Cost(device, host, self.spread, self.fails, self.near_best, self.unsure, self.status)
