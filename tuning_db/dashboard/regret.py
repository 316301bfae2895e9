"""Regret: what is lost by stopping a run after so many measurements and taking what is known or thought by then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from fuseplan.tuning_db.dashboard.queries.model import Foretold


@dataclass(frozen=True)
class Regret:
    """The regret after a number of measurements, over the runs that made more than none: relative to the best."""

    spent: int
    median: float
    low: float
    high: float
    """A quarter of the runs stay below the one, and above the other."""


def regrets(found: Sequence[Foretold], points: int = 60) -> tuple[Regret, ...]:
    """The curve of all runs; `found` is in the order of measuring. A run that is over stays where it was."""
    runs: dict[int, list[Foretold]] = {}
    for one in found:
        if one.run:
            runs.setdefault(one.run, []).append(one)
    curves = [curve for curve in map(_curve, runs.values()) if curve]
    if not curves:
        return ()
    longest = max(map(len, curves)) - 1
    places = sorted({round(index * longest / max(1, points - 1)) for index in range(points)})
    return tuple(_at(curves, place) for place in places)


def _at(curves: Sequence[Sequence[float]], place: int) -> Regret:
    values = [curve[min(place, len(curve) - 1)] for curve in curves]
    low, _, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return Regret(place, median(values), low, high)


def _curve(measured: Sequence[Foretold]) -> list[float]:
    """The regret of one run before its first measurement, after it, and so on; nothing where there was no choice."""
    regions: dict[int, dict[tuple[str, str], Foretold]] = {}
    for one in measured:
        regions.setdefault(one.region, {})[one.executor, one.variant] = one
    chosen = {region: ways for region, ways in regions.items() if len(ways) > 1}
    if not chosen:
        return []
    best = sum(min(way.device_us for way in ways.values()) for ways in chosen.values())
    known: dict[int, set[tuple[str, str]]] = {region: set() for region in chosen}
    lost = {region: _lost(ways, known[region]) for region, ways in chosen.items()}
    total = sum(lost.values())
    curve = [total / best]
    for one in measured:
        if one.region in chosen:
            known[one.region].add((one.executor, one.variant))
            now = _lost(chosen[one.region], known[one.region])
            total += now - lost[one.region]
            lost[one.region] = now
        curve.append(max(0.0, total / best))
    return curve


def _lost(ways: dict[tuple[str, str], Foretold], known: set[tuple[str, str]]) -> float:
    """What the way costs that seems best, beyond the one that is."""

    def seems(choice: tuple[str, str]) -> float:
        return ways[choice].device_us if choice in known else ways[choice].predicted_us

    taken = min(sorted(ways), key=seems)
    return ways[taken].device_us - min(way.device_us for way in ways.values())
