"""How much a run of tuning may spend: words, not knobs."""

from __future__ import annotations

import math
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
    rewrites: int
    """How many race that differ from what is preferred in how one decision is written."""
    rivals_us: float
    """How long a step may take in which other kernels race too for what is rewritten: it matters where little else is done."""
    region_blocks: int
    """The most blocks of calls that one candidate of a race of regions gets."""
    plan_blocks: int
    """The same in the race of whole plans, which decides."""
    fair_race_s: float
    """What a race should have for its blocks at least, if plans beside the defaults are to be in it."""
    least_over_s: float = 0.0
    """What is left at least once torch.compile's default is compiled, however long that took."""
    doubt_blocks: int = 0
    """How many more that race may have, where the fastest is not surely so."""
    cuts: bool = True
    """Whether programs are looked into: captured, profiled and cut. Without, it is whole programs alone that race."""
    offers: int = 0
    """How many plans race that won elsewhere, on another machine or under other releases, …"""
    neighbours: int = 0
    """… and how many that differ from the best of these in one choice."""
    profiles: bool = False
    """Whether the default is profiled after the race, if it was not before: it is compiled once more for that."""
    over_default: bool = False
    """Whether its seconds are those beyond what compiling the program takes torch, who would have it compiled anyway."""

    @property
    def measures(self) -> bool:
        """Whether anything runs; without, a plan is predicted only and stays unverified."""
        return self.plan_blocks > 0

    def within(self, seconds: float) -> Effort:
        """The same effort, with no more than so many seconds to spend.

        >>> QUICK.within(40.0).device_s
        15.0
        """
        if seconds >= self.wall_s:
            return self
        return self.times(seconds / self.wall_s)

    def times(self, factor: float) -> Effort:
        """The same effort with so many times its budget of seconds.

        >>> QUICK.times(2.0).wall_s
        160.0
        """
        less = min(1.0, factor)
        return replace(
            self, wall_s=self.wall_s * factor, device_s=self.device_s * factor, fair_race_s=self.fair_race_s * less,
            least_over_s=self.least_over_s * less,
        )  # fmt: skip

    @property
    def harder(self) -> tuple[str, ...]:
        """The words for this effort and for those that try more, whatever the seconds that it is given here.

        >>> QUICK.harder
        ('quick', 'full')
        """
        words = [effort.name for effort in EFFORTS]
        harder = tuple(words[words.index(self.name) :]) if self.name in words else (self.name,)
        return (*harder, RERACE.name) if INSTANT.name in harder else harder

    @staticmethod
    def named(name: str) -> Effort:
        """Return the effort that a word stands for; OptionError for another word.

        >>> Effort.named("quick").wall_s
        80.0
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
    rewrites=0,
    rivals_us=0.0,
    region_blocks=0,
    plan_blocks=0,
    fair_race_s=0.0,
)
INSTANT = replace(
    NONE, name="instant", device_s=8.0, plan_blocks=6, doubt_blocks=6, fair_race_s=3.0, cuts=False, over_default=True,
    offers=1,
)  # fmt: skip
QUICK = Effort(
    "quick",
    wall_s=80.0,
    device_s=30.0,
    rounds=3,
    regions_per_round=24,
    k=8,
    prices=(0.0, 0.5, 1.0),
    optimism=1.0,
    coarse=4,
    plans=4,
    rewrites=4,
    rivals_us=4000.0,
    region_blocks=12,
    plan_blocks=24,
    fair_race_s=8.0,
    least_over_s=20.0,
    offers=2,
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
    rewrites=12,
    rivals_us=math.inf,
    region_blocks=24,
    plan_blocks=60,
    fair_race_s=11.0,
    least_over_s=20.0,
    offers=4,
)
EFFORTS = (NONE, INSTANT, QUICK, FULL)
RERACE = replace(
    INSTANT, name="rerace", wall_s=30.0, device_s=20.0, plan_blocks=24, doubt_blocks=0, fair_race_s=6.0, neighbours=2,
    profiles=True,
)  # fmt: skip
"""Of `instant`, what a program gets whose plan is stale: a longer race, with neighbours of the plan in it, and a profile to compare."""

# The constants of time, beside the words: shares are of what an effort grants, seconds are the same for all.

# Measuring regions
RESERVE = 0.45
"""The share of the time that is kept for whole plans: compiling, checking and racing them."""
PREPARED = 0.3
"""The same where they are compiled for their race while others are checked."""
COARSE_SHARE = 0.1
"""The share of the time that is kept for regions across anchors, after the rounds over islands."""
LEAST_MEASUREMENT_S = 1.5
"""What every measurement counts for at least where its worth is weighed: the cheaper of the compilers."""
LEAST_REGION_S = 20.0
"""How long a worker may be silent over one region at least …"""
REGION_SHARE = 0.25
"""… and of the wall time of an effort, what one step with one region may take."""

# Checking whole plans
KERNEL_SEARCH_S = 160.0
"""Seconds that Inductor's own search among kernels takes for each product that is like no other, on one core. On an H200's host
eight threads took 16 to 23 s for each, of transformers and a ResNet, in inference and training."""
JUDGING_SHARE = 0.2
"""The most of the time that is granted which may go by before no more runs are begun that say how far results move by rounding."""
GREEDY_SHARE = 1 / 3
"""Of the wall time of an effort, what compiling a default of ours may take: nvFuser needs
seconds for each region that is not like another. Torch's own are waited for, whatever they take."""
LEAST_JUDGING_S = 2.0
"""What judging one plan or region may take at least, whatever others have taken."""
LATE = 1.2
"""So many times as long as is expected may a plan take to be compiled and checked."""
PROFILE_SHARE = 0.25
"""Of the wall time of an effort, what compiling a default once more may take to see where its time goes."""
DEFAULT_PROFILE_S, DEFAULT_PROFILE_TIMES = 60.0, 3.0
"""How long a worker may be silent that profiles a default because somebody asked for that, …; and so many times what it took to compile."""
LEAST_LIMIT_S = 20.0
"""How long a plan that is no default may keep a worker silent at least, however little of the budget is left."""
PATIENCE_S = 3600.0
"""How long a plan that somebody has named may keep a worker silent: none is left out for want of time."""

# Racing whole plans
RACE_SHARE = 0.4
"""Of the time with the device that an effort grants, what a race of whole plans may take at most."""
FAIR_SHARE = 0.4
"""Of the wall time, what is kept for the rounds of a race at most: where steps take long, few are better than no race."""
LEAST_RACE_S = 3.0
"""What a race gets, however little is left."""
BLOCK_S = 0.06
"""What a block of one plan takes on a GPU, and so many of its steps more; fewer, where one of them is as long as a loop of steps lasts."""
BLOCK_STEPS, LONG_STEPS, LONG_S = 5.0, 3.0, 0.05
STARTING_S = 0.5
"""What a race takes for each plan beside its blocks: the first calls, and one to see how much memory it takes."""
KEEPING_S = 2.0
"""What is left to do when a race has ended, its last round among it."""
FOLLOWING_BLOCKS = 12
"""Blocks of each plan in a race against the same plan under another launch at most: the two are much alike."""

# Many programs
LEAST_PROGRAM_S = 45.0
"""Less than this is of no use to a program: it is better spent on those that come first."""
USUAL_SHARE = {"cpu": 0.6, "cuda": 0.9}
"""Of the time that an effort grants, what a program takes where none was tuned yet."""
PREDICTED_S = 3.0
"""What a program takes that is only predicted. Most of it is capturing, which the times of earlier runs leave out."""
