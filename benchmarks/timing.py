"""Device time and host time of calls, apart, several candidates side by side in short shuffled blocks."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.harness import print_lines
from fuseplan.measure.clocks import clock_for
from fuseplan.measure.race import Clock, LaneError, RaceResult, Rule, Sample, race
from fuseplan.noise import bounds
from fuseplan.runtime.capture_place import SETTLING

ROUNDS = (9, 31)
LOOP_S = 0.1
"""Seconds of a loop of steps, twice as long as where tuning races, so that few steps are the first one behind another side's."""
MORE = 16
"""Rounds that a contest gets at a time while it is too noisy."""
QUIET = 0.02
"""The noise at which a contest is good enough."""


class Remembered:
    """A clock whose blocks are kept, so that a race may be run again, with more rounds, from those it had."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.taken: list[Sample | LaneError] = []
        self.next = 0

    def block(self, name: str) -> Sample:
        """The next block: of the race before, while it has any; a race asks for the same ones in the same order."""
        if self.next == len(self.taken):
            try:
                self.taken.append(self.clock.block(name))
            except LaneError as failed:
                self.taken.append(failed)
        self.next += 1
        taken = self.taken[self.next - 1]
        if isinstance(taken, LaneError):
            raise taken
        return taken

    def spent(self) -> float:
        """Seconds that all blocks have taken."""
        return sum(taken.seconds for taken in self.taken if isinstance(taken, Sample))


@dataclass(frozen=True)
class Contest:
    """What each step takes, or why it has failed; the race that said so, unless none ran; and why that was noisy, if it was."""

    rows: dict[str, dict[str, Any]]
    race: RaceResult | None
    noisy: str = ""


def contest(
    steps: Mapping[str, Callable[[], object]],
    device: str,
    seconds: float,
    at: Callable[[str, str], None],
    *,
    more_s: float = 0.0,
    twice: Collection[str] = (),
) -> Contest:
    """All steps against each other, nobody dropped, in as many rounds as the seconds allow; a step that fails is a row.

    The fastest of those named in `twice`, or else the first step that runs, is also run a second time in each round: its
    distance from itself is the noise. While that is too large there are more rounds, for `more_s` seconds at most.
    """
    clock = clock_for(device, steps=True, loop_s=LOOP_S)
    rows: dict[str, dict[str, Any]] = {}
    costs: dict[str, Sample] = {}
    for name, step in steps.items():
        at("warming up", name)
        try:
            clock.add(name, [step], more=SETTLING)
            costs[name] = clock.block(name)
        except LaneError as failed:
            rows[name] = {"failed": f"{failed.status}: {failed.detail}"}
    able = [name for name in steps if name in costs]
    if not able:
        return Contest(rows, None)
    at("measuring", "")
    same = min((name for name in able if name in twice), key=lambda name: costs[name].wall_us, default=able[0])
    cost = sum(one.seconds for one in costs.values())
    result, noisy = rounds_of(able, clock, same, max(ROUNDS[0], min(ROUNDS[1], int(seconds / max(cost, 1e-3)))), more_s)
    for name in able:
        lane = result.lane(name)
        rows[name] = {"failed": f"{lane.status}: {lane.detail}"} if lane.status != "ok" else _summary(lane.samples)
    return Contest({name: rows[name] for name in steps}, result, noisy)


def rounds_of(
    names: Sequence[str], clock: Clock, same: str, rounds: int, more_s: float, hopeless: float = math.inf
) -> tuple[RaceResult, str]:
    """A race of so many rounds, and of more while its noise is too large and time is left; why it still is, if it is. Who is so many times
    as slow as another has two.
    """
    kept = Remembered(clock)
    begun: float | None = None
    while True:
        kept.next = 0
        result = race(names, kept, incumbent=same, rule=Rule(most=rounds, least=rounds, hopeless=hopeless))
        if result.noise <= QUIET:
            return result, ""
        begun = kept.spent() if begun is None else begun
        more = kept.spent() - begun
        if more + MORE * kept.spent() / rounds > more_s:
            return result, _why_noisy(result, more)
        rounds += MORE


def _why_noisy(result: RaceResult, more_s: float) -> str:
    """The noise of a race, and what is known of where it comes from."""
    same = result.lane(result.incumbent).medians
    assert same is not None
    why = f"{result.incumbent} is {result.noise:.1%} from itself after {result.rounds} rounds"
    why += f", {more_s:.0f} s of them more than usual" if more_s >= 1 else ", and no time was left for more"
    ratio = same.device_us / same.wall_us
    return (
        f"{why}; the device works {ratio:.0%} of its time, and the rest it waits for the host" if ratio < 0.9 else why
    )


def paired(result: RaceResult, name: str, to: str) -> float:
    """The wall time of one side as a multiple of another's: the median of the ratios of the blocks beside each other."""
    pairs = zip(result.lane(name).samples, result.lane(to).samples, strict=False)
    return round(median(a.wall_us / b.wall_us for a, b in pairs), 5)


def compared(result: RaceResult, name: str, to: str) -> dict[str, Any]:
    """The wall time of `to` as a multiple of that of `name`, between which bounds, and whether that is beyond noise."""
    if name == to:
        return {"ratio": 1.0, "low": 1.0, "high": 1.0, "beyond noise": False}
    differences = result.differences(to, name)
    ratio, low, high = (round(math.exp(one), 4) for one in (median(differences), *bounds(differences)))
    return {"ratio": ratio, "low": low, "high": high, "beyond noise": result.compared(to, name) == "slower"}


def alternating(names: Iterable[str], blocks: int, block: Callable[[str], float]) -> dict[str, list[float]]:
    """What so many short blocks of each name take; in every round the names are in another order."""
    times: dict[str, list[float]] = {name: [] for name in names}
    order, shuffler = list(times), random.Random(0)
    for _ in range(blocks):
        shuffler.shuffle(order)
        for name in order:
            times[name].append(block(name))
    return times


def _summary(samples: Sequence[Sample]) -> dict[str, float]:
    device = sorted(sample.device_us for sample in samples)
    quarter, middle = len(device) // 4, median(device)
    return {
        "host_us": round(median(sample.host_us for sample in samples), 3),
        "device_us": round(middle, 3),
        "wall_us": round(median(sample.wall_us for sample in samples), 3),
        "spread": round((device[-1 - quarter] - device[quarter]) / 2 / middle, 4) if middle else 0.0,
    }


def print_table(title: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Print measured rows as a table; the last column is the device time against the best."""
    best = min((row["device_us"] for row in rows.values() if "device_us" in row), default=1.0)
    lines: list[tuple[str, ...]] = []
    for name, row in rows.items():
        if "device_us" not in row:
            lines.append((name, str(row.get("failed", ""))))
            continue
        numbers = (f"{row[key]:.1f}" for key in ("device_us", "host_us", "wall_us"))
        lines.append((name, *numbers, f"{row['device_us'] / best:.3f}" if best else "-"))
    print_lines(title, ("", "device µs", "host µs", "wall µs", "× best"), lines, words=("",))
