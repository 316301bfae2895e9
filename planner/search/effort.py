"""How much a run of tuning may spend: words, not knobs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fuseplan.errors import OptionError


@dataclass(frozen=True)
class Effort:
    """The budget of one program. When it ends, the best plan that is proven so far stands."""

    name: str
    wall_s: float
    """How long the run may take, compiling included."""
    device_s: float
    """How much of that may be spent with the device to itself, measuring."""
    rounds: int
    """How often the costs that were measured go back into the search; 0 measures no regions."""
    regions_per_round: int
    """How many of the regions that the best plans need are measured before the search looks again."""
    k: int
    """How many alternatives the search keeps of each island, and of the whole."""
    prices: tuple[float, ...]
    """The prices of host time under which islands are solved: 0 for a device that is behind, 1 for one that waits."""
    optimism: float
    """By how many spreads a prediction is lowered before it is measured: more looks further."""
    coarse: int
    """How many regions that hold anchors are measured, after the rounds."""
    plans: int
    """How many whole plans race, beside the defaults."""
    region_blocks: int
    """The most blocks of calls that one candidate of a race of regions gets."""
    plan_blocks: int
    """The same in the race of whole plans, which decides."""

    @property
    def measures(self) -> bool:
        """Whether anything runs; without, a plan is predicted only and stays unverified."""
        return self.plans > 0

    def within(self, seconds: float) -> Effort:
        """The same effort, with no more than so many seconds to spend.

        >>> QUICK.within(60.0).device_s
        20.0
        """
        if seconds >= self.wall_s:
            return self
        return self.times(seconds / self.wall_s)

    def times(self, factor: float) -> Effort:
        """The same effort with so many times its budget of seconds.

        >>> QUICK.times(2.0).wall_s
        240.0
        """
        return replace(self, wall_s=self.wall_s * factor, device_s=self.device_s * factor)

    @property
    def harder(self) -> tuple[str, ...]:
        """The words for this effort and for those that try more, whatever the seconds that it is given here.

        >>> QUICK.harder
        ('quick', 'full')
        """
        words = [effort.name for effort in EFFORTS]
        return tuple(words[words.index(self.name) :]) if self.name in words else (self.name,)

    @staticmethod
    def named(name: str) -> Effort:
        """Return the effort that a word stands for; OptionError for another word.

        >>> Effort.named("quick").wall_s
        120.0
        >>> Effort.named("none").measures
        False
        """
        for effort in EFFORTS:
            if effort.name == name:
                return effort
        raise OptionError(f"there is no effort {name!r}; known are {', '.join(effort.name for effort in EFFORTS)}")


NONE = Effort(
    "none",
    wall_s=20.0,
    device_s=0.0,
    rounds=0,
    regions_per_round=0,
    k=8,
    prices=(0.0, 0.5, 1.0),
    optimism=0.0,
    coarse=0,
    plans=0,
    region_blocks=0,
    plan_blocks=0,
)
QUICK = Effort(
    "quick",
    wall_s=120.0,
    device_s=40.0,
    rounds=3,
    regions_per_round=24,
    k=8,
    prices=(0.0, 0.5, 1.0),
    optimism=1.0,
    coarse=4,
    plans=4,
    region_blocks=12,
    plan_blocks=24,
)
FULL = Effort(
    "full",
    wall_s=480.0,
    device_s=200.0,
    rounds=8,
    regions_per_round=48,
    k=24,
    prices=(0.0, 0.25, 0.5, 0.75, 1.0),
    optimism=1.5,
    coarse=24,
    plans=10,
    region_blocks=24,
    plan_blocks=60,
)
EFFORTS = (NONE, QUICK, FULL)
