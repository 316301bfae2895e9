"""Device time and host time of calls, apart, several candidates side by side in short shuffled blocks."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.harness import print_lines
from fuseplan.measure.clocks import GpuClock, clock_for
from fuseplan.measure.race import LaneError, RaceResult, Rule, Sample, race
from fuseplan.noise import bounds

ROUNDS = (9, 31)


def contest(
    steps: Mapping[str, Callable[[], object]], device: str, seconds: float, at: Callable[[str, str], None]
) -> tuple[dict[str, dict[str, Any]], RaceResult | None]:
    """All steps against each other, nobody dropped, in as many rounds as the seconds allow; a step that fails is a row.

    The first step that runs is also run a second time in each round: its distance from itself is the noise.
    """
    clock = clock_for(device, steps=True)
    rows: dict[str, dict[str, Any]] = {}
    cost = 0.0
    for name, step in steps.items():
        at("warming up", name)
        try:
            clock.add(name, [step])
            cost += clock.block(name).seconds
        except LaneError as failed:
            rows[name] = {"failed": f"{failed.status}: {failed.detail}"}
    able = [name for name in steps if name not in rows]
    if not able:
        return rows, None
    least, most = ROUNDS
    rounds = max(least, min(most, int(seconds / max(cost, 1e-3))))
    at("measuring", "")
    result = race(able, clock, incumbent=able[0], rule=Rule(most=rounds, least=rounds, hopeless=math.inf))
    for name in able:
        lane = result.lane(name)
        rows[name] = {"failed": f"{lane.status}: {lane.detail}"} if lane.status != "ok" else _summary(lane.samples)
    return {name: rows[name] for name in steps}, result


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


def side_by_side(
    candidates: Mapping[str, Callable[[], object]], blocks: int = 15, calls: int = 20
) -> dict[str, dict[str, float]]:
    """Return the medians over `blocks` of the time per call, in µs: host (to enqueue), device (queued), wall (free).

    The clock is the one that tuning measures with; nobody is dropped. `spread` is half the distance between the
    quartiles of the device time, over the median. What a candidate raises, it raises here.
    """
    clock, shuffler = GpuClock(calls), random.Random(0)
    samples: dict[str, list[Sample]] = {name: [] for name in candidates}
    order = list(candidates)
    try:
        for name, call in candidates.items():
            clock.add(name, [call])
        for _ in range(blocks):
            shuffler.shuffle(order)
            for name in order:
                samples[name].append(clock.block(name))
    except LaneError as failed:
        raise failed.__cause__ or failed from None
    return {name: _summary(taken) for name, taken in samples.items()}


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
