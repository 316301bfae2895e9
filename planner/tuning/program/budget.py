"""The budget of tuning one program: how much of the time of its effort is left, and what for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from time import monotonic

from fuseplan.measure.jobs import PLAN_RULE, Outcome
from fuseplan.measure.pool import COMPILING
from fuseplan.tuning.effort import (
    BLOCK_S,
    BLOCK_STEPS,
    FAIR_SHARE,
    JUDGING_SHARE,
    KEEPING_S,
    LATE,
    LEAST_JUDGING_S,
    LEAST_LIMIT_S,
    LEAST_MEASUREMENT_S,
    LEAST_RACE_S,
    LEAST_REGION_S,
    LONG_S,
    LONG_STEPS,
    PREPARED,
    PROFILE_SHARE,
    RACE_SHARE,
    REGION_SHARE,
    RESERVE,
    STARTING_S,
    Effort,
)

DEFAULTS = 4
"""Plans of one launch that race beside the segmented ones, about."""


@dataclass
class Budget:
    """Accounts for the time of one run. Stages ask it what they may do, and tell it what they did."""

    effort: Effort
    on_gpu: bool
    started: float = field(default_factory=monotonic)
    launches: int = field(default=1, init=False)
    """How many launches race, each with defaults of its own."""
    traced_s: float = field(default=0.0, init=False)
    """What tracing the program once takes: about so long does compiling a plan whose code is in caches."""
    judged_s: float = field(default=0.0, init=False)
    """The time that went by in judging whether results are right."""
    device_s: float = field(default=0.0, init=False)
    """The time that measuring had the device to itself."""
    default_s: float | None = field(default=None, init=False)
    """What compiling torch.compile's default took, once it is known."""
    kept_s: float = field(default=0.0, init=False)
    """What one more whole plan takes, and the race with it: regions are measured for such a plan, and must leave time for it."""
    _regions: int = field(default=0, init=False)
    _regions_s: float = field(default=0.0, init=False)
    """How many regions were measured, and what that took."""
    _unprepared: int = field(default=0, init=False)
    """Plans that are right, and that the racer has to compile once more all the same."""

    # What was done

    def traced(self, seconds: float) -> None:
        """Note what tracing the program takes."""
        self.traced_s = seconds

    def races_launches(self, launches: int) -> None:
        """Note how many launches race."""
        self.launches = launches

    def default_took(self, seconds: float | None) -> None:
        """Note what compiling torch.compile's default took; all that has passed, if it came to nothing."""
        if self.default_s is None:
            self.default_s = self.elapsed_s if seconds is None else seconds

    def measured(self, outcomes: Iterable[Outcome]) -> None:
        """Count what had the device to itself."""
        self.device_s += sum(outcome.seconds for outcome in outcomes)

    def keep(self, seconds: float) -> None:
        """Note what one more whole plan takes, and the race with it."""
        self.kept_s = seconds

    def regions_took(self, regions: int, seconds: float) -> None:
        """Note what measuring so many regions took."""
        self._regions += regions
        self._regions_s += seconds

    def checked(self, outcomes: Iterable[Outcome]) -> None:
        """Count the whole plans that are right without being compiled for their race."""
        self._unprepared += sum(outcome.ok and not outcome.prepared for outcome in outcomes)

    def judged(self, seconds: float) -> None:
        """Count what was judged, and nothing beside it."""
        self.judged_s += seconds

    def raced(self, plans: int, outcome: Outcome) -> None:
        """Count a race of so many whole plans, which keeps nothing for the next."""
        self.measured([outcome])
        self._unprepared = plans

    # What is left

    @property
    def elapsed_s(self) -> float:
        """Seconds of wall time since the run began."""
        return monotonic() - self.started

    @property
    def left_s(self) -> float:
        """Seconds of wall time that are left: all of them, or those that each effort has, while that compiles which would be compiled anyway."""
        beyond_s = 0.0 if self.default_s is None else self.elapsed_s - self.default_s
        if self.effort.over_default:
            return self.effort.wall_s - beyond_s
        return max(self.effort.wall_s - self.elapsed_s, self.effort.least_over_s - beyond_s)

    @property
    def is_beside_default(self) -> bool:
        """Whether what is begun now compiles beside torch.compile's default, which takes as long, and counts for nothing."""
        waits = self.effort.over_default or self.effort.least_over_s > 0
        return waits and self.default_s is None

    @property
    def device_left_s(self) -> float:
        """Seconds of measuring that are left."""
        return self.effort.device_s - self.device_s

    @property
    def judging_left_s(self) -> float:
        """Seconds that judging may still take: what does not fit is judged by fewer runs. Each has some, since what stays in doubt is
        kept as wrong.
        """
        return max(LEAST_JUDGING_S, JUDGING_SHARE * self.effort.wall_s - self.judged_s)

    @property
    def prepares(self) -> bool:
        """Whether the racer compiles its plans while others are vetted; a CPU has its cores for one."""
        return self.on_gpu and not self.keeps

    @property
    def keeps(self) -> bool:
        """Whether plans are timed in the workers that have vetted them: no time is lost on compiling them once more."""
        return not self.effort.cuts

    def may_profile(self, compile_s: float) -> bool:
        """Whether a default that took so long to compile may be compiled once more to be profiled: nearly as long does that take."""
        return compile_s <= min(PROFILE_SHARE * self.effort.wall_s, self.left_s / 2)

    @property
    def profile_limit_s(self) -> float:
        """How long a worker may be silent that profiles."""
        return max(LEAST_LIMIT_S, LATE * PROFILE_SHARE * self.effort.wall_s)

    @property
    def region_s(self) -> float:
        """How long a worker may be silent over one region: one that hangs must leave time for the others."""
        return max(LEAST_REGION_S, REGION_SHARE * self.effort.wall_s)

    def may_measure(self, beside: float = 0.0) -> bool:
        """Whether more regions may be measured, with time kept for whole plans, and this share of all beside that."""
        return self.regions_in_time(beside) > 0

    def regions_in_time(self, beside: float = 0.0) -> int:
        """How many more there is time for, by what those took that were measured."""
        plans, all_s = self.effort.plans, self.effort.wall_s
        share = beside + (PREPARED if self.prepares else RESERVE)
        begun_s = plans * self.traced_s + self.starting_s(plans + DEFAULTS * self.launches)
        over_s = self.left_s - max(share * all_s, begun_s, beside * all_s + self.kept_s)
        each_s = self._regions_s / self._regions if self._regions else LEAST_MEASUREMENT_S
        return 0 if over_s < 0 or self.device_left_s <= 0 else int(over_s / max(each_s, 1e-3))

    # What whole plans take

    def starting_s(self, plans: int) -> float:
        """Seconds that a race of so many plans, which were vetted, takes until its first block: some are compiled once more, but for
        those that workers keep.
        """
        again = 0 if self.keeps else min(plans, self._unprepared) if self.prepares else plans
        return again * self.traced_s + STARTING_S * plans

    def race_s(self, plans: int) -> float:
        """Seconds that a race of so many plans may take for its blocks now."""
        return max(LEAST_RACE_S, min(RACE_SHARE * self.effort.device_s, self._left_to_race_s(plans)))

    def longest_race_s(self, plans: int) -> float:
        """Seconds that it may take while it is in doubt: what is left for it, and of measuring."""
        return min(self._left_to_race_s(plans), self.device_left_s)

    def _left_to_race_s(self, plans: int) -> float:
        return self.left_s - self.starting_s(plans) - KEEPING_S

    def fair_race_s(self, plans: int, step_us: float | None) -> float:
        """Seconds for the rounds that a race of so many plans has at least, the incumbent's duplicate among them; a step of
        the program takes about `step_us`. A CPU has short blocks.
        """
        step_s = (step_us or 0.0) / 1e6
        steps = BLOCK_STEPS if step_s < LONG_S else LONG_STEPS
        block_s = BLOCK_S + steps * step_s if self.on_gpu else step_s
        rounds_s = self.least_blocks * (plans + 1) * block_s
        return max(self.effort.fair_race_s, min(FAIR_SHARE * self.effort.wall_s, rounds_s))

    @property
    def least_blocks(self) -> int:
        """The rounds of a race of whole plans before anything is decided."""
        return min(PLAN_RULE.least, self.effort.plan_blocks)

    def left_beside_s(
        self,
        racing: int,
        more: int,
        compile_s: float,
        step_us: float | None,
        again_s: float | None = None,
        *,
        preparing: int = 0,
        prepare_s: float = 0.0,
    ) -> float:
        """Seconds that are left beside compiling and checking so many more plans at once, each of which takes about `compile_s`,
        and a fair race of all with those that are `racing` already; `again_s` is what those take whose code is there. The racer is
        yet to prepare `preparing` others, in `prepare_s` each.
        """
        # a cut one compiles about as much as all at once
        checking = max(2 * self.traced_s, compile_s) if again_s is None else again_s
        checking *= 0.0 if self.is_beside_default else max(1.0, more / COMPILING)  # beyond these the cores are taken
        prepare_s = max(self.traced_s, prepare_s)
        racer_s = 0.0 if self.keeps else preparing * prepare_s + more * (prepare_s if again_s is None else again_s)
        racing_s = self.starting_s(racing) + self.fair_race_s(racing + more, step_us)
        return self.left_s - LATE * (checking + racer_s) - racing_s
