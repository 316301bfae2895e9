"""The overview: whether tuning paid, by how much, and where to look next."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from markupsafe import Markup

from fuseplan.noise import Comparison, band, compared
from fuseplan.tuning_db.dashboard.ask import Ask
from fuseplan.tuning_db.dashboard.charts import Figure
from fuseplan.tuning_db.dashboard.formats import NONE, times, us
from fuseplan.tuning_db.dashboard.page import Page
from fuseplan.tuning_db.dashboard.parts import histogram, ratio
from fuseplan.tuning_db.dashboard.queries.slots import BEST, DEFAULTS, STANDINGS, Slot, slots
from fuseplan.tuning_db.dashboard.reader import Reader
from fuseplan.tuning_db.dashboard.table import ShownColumn

_SHOWN = 8
"""Programs in each of the two lists."""
_BINS_PER_DOUBLING = 8
_FINE, _COARSE = (
    (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4),
    (0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 32),
)
_LEAST, _MOST = -3.0, 5.0
"""Doublings that the distribution shows; what lies beyond is counted in its last bin."""


@dataclass(frozen=True)
class DefaultGain:
    """How much faster than one default, over all programs that were timed under both."""

    default: str
    programs: int
    geomean: float | None = None
    noise: float | None = None
    """By how much the geomean may be off, relative: the noise of each race, as if they were independent."""
    median: float | None = None
    low: float | None = None
    high: float | None = None
    """What a tenth of the programs stay below, and above."""
    faster: int = 0
    same: int = 0
    slower: int = 0
    bins: tuple[int, ...] = ()

    @property
    def verdict(self) -> Comparison:
        """Whether the plans are faster on the whole."""
        return compared(1.0, self.geomean, self.noise)


def _between(gain: DefaultGain) -> str:
    return f"{times(gain.low)} – {times(gain.high)}" if gain.programs else NONE


def _lost(gain: DefaultGain) -> Markup:
    return Markup('<span class="{}">{}</span>').format("regression" if gain.slower else "", gain.slower)


GAINS: tuple[ShownColumn[DefaultGain], ...] = (
    ShownColumn("default", "Default", "text", lambda gain: "best of them" if gain.default == BEST else gain.default),
    ShownColumn("geomean", "Geomean", "html", lambda gain: ratio(gain.geomean, gain.noise), right=True),
    ShownColumn("median", "Median", "times", lambda gain: gain.median),
    ShownColumn("between", "P10 – P90", "html", _between, right=True),
    ShownColumn("faster", "Faster", "count", lambda gain: gain.faster),
    ShownColumn("same", "Same", "count", lambda gain: gain.same),
    ShownColumn("slower", "Slower", "html", _lost, right=True),
    ShownColumn("plans", "Plans", "count", lambda gain: gain.programs),
    ShownColumn("distribution", "Distribution", "html", lambda gain: histogram(gain.bins)),
)
SLOTS: tuple[ShownColumn[Slot], ...] = (
    ShownColumn(
        "program", "Program", "link", lambda slot: slot.title, to=lambda slot: ("program", {"key": slot.program})
    ),
    ShownColumn("launch", "Launch", "text", lambda slot: slot.launched),
    ShownColumn("best", "Best default", "html", lambda slot: _named(slot.best_us, slot.best), right=True),
    ShownColumn("plan", "Plan", "us", lambda slot: slot.plan_us),
    ShownColumn("speedup", "Speed-up", "html", lambda slot: ratio(slot.speedup(), slot.noise), right=True),
)


def _named(time: float | None, name: str | None) -> Markup:
    return Markup('{} <span class="noise">{}</span>').format(us(time), name)


@dataclass(frozen=True)
class Saved:
    """Calls times the difference to the best default."""

    seconds: float | None
    noise_s: float
    of_s: float
    """What those calls take under the best default."""
    programs: int
    calls: int


@dataclass(frozen=True)
class Overview:
    """All that the page shows."""

    slots: int
    programs: int
    environments: tuple[str, ...]
    standings: Mapping[str, int]
    stale: int
    gains: tuple[DefaultGain, ...]
    saved: Saved
    noise: float | None
    """The median of the races' noise floors."""
    noise_p90: float | None
    unmeasured_noise: int
    best: tuple[Slot, ...]
    worst: tuple[Slot, ...]
    figures: tuple[Figure, ...]

    columns = GAINS
    slot_columns = SLOTS


def load(reader: Reader, ask: Ask) -> Overview:
    """Read the slots that the filters let through, and sum them up."""
    return summed(reader.remembered(("slots", ask.filters), lambda connection: slots(connection, ask.filters)))


def summed(found: Sequence[Slot]) -> Overview:
    """The overview of some slots. What is gained, and lost, is told of those whose plans were chosen by time."""
    timed = [slot for slot in found if slot.for_time]
    raced = [(ratio, place) for place, slot in enumerate(timed) if (ratio := slot.speedup()) is not None]
    ranked = [timed[place] for _, place in sorted(raced)]
    gains = tuple(gain(default, timed) for default in (BEST, *DEFAULTS))
    noises = [slot.noise for slot in ranked if slot.noise is not None]
    standings = Counter(slot.standing for slot in found)
    return Overview(
        len(found), len({slot.program for slot in found}),
        tuple(sorted({f"{slot.device}, torch {slot.torch}" for slot in found})),
        {name: standings[name] for name in STANDINGS}, sum(slot.stale for slot in found), gains, saved(timed),
        median(noises) if noises else None, share_below(noises, 0.9), len(ranked) - len(noises),
        tuple(slot for slot in reversed(ranked[-_SHOWN:]) if slot.verdict == "good"),
        tuple(slot for slot in ranked[:_SHOWN] if slot.verdict == "regression"), _figures(gains, ranked),
    )  # fmt: skip


def gain(default: str, found: Iterable[Slot]) -> DefaultGain:
    """The gain over one default."""
    timed = [(ratio, slot) for slot in found if (ratio := slot.speedup(default)) is not None]
    if not timed:
        return DefaultGain(default, 0)
    ratios = sorted(ratio for ratio, _ in timed)
    noise = math.hypot(*(slot.noise or 0.0 for _, slot in timed)) / len(timed)
    counts = Counter(slot.compared(default) for _, slot in timed)
    return DefaultGain(
        default, len(timed), math.exp(math.fsum(map(math.log, ratios)) / len(timed)), noise, median(ratios),
        share_below(ratios, 0.1), share_below(ratios, 0.9), counts["faster"], counts["same"], counts["slower"], _bins(ratios),
    )  # fmt: skip


def saved(found: Iterable[Slot]) -> Saved:
    """What all recorded calls save. A program that was tuned for both launches is run under the faster one."""
    fastest: dict[tuple[str, str, str], Slot] = {}
    for slot in found:
        if slot.saved_s is None:
            continue
        place = (slot.program, slot.environment, slot.sizes)
        if place not in fastest or (slot.plan_us or 0.0) < (fastest[place].plan_us or 0.0):
            fastest[place] = slot
    chosen = list(fastest.values())
    return Saved(
        math.fsum(slot.saved_s or 0.0 for slot in chosen) if chosen else None,
        math.sqrt(math.fsum(slot.saved_noise_s**2 for slot in chosen)),
        math.fsum(slot.calls * (slot.best_us or 0.0) for slot in chosen) / 1e6,
        len({slot.program for slot in chosen}), sum(slot.calls for slot in chosen),
    )  # fmt: skip


def share_below(values: Sequence[float], share: float) -> float | None:
    """The value that this share of them stay below.

    >>> share_below([1.0, 2.0, 3.0, 4.0, 5.0], 0.9)
    4.6
    """
    if len(values) < 2:
        return values[0] if values else None
    return quantiles(values, n=10, method="inclusive")[round(share * 10) - 1]


def _bins(ratios: Iterable[float]) -> tuple[int, ...]:
    """How many lie in each bin of an eighth of a doubling; one bin has 1× in its middle."""
    last = round((_MOST - _LEAST) * _BINS_PER_DOUBLING)
    counted = [0] * (last + 1)
    for one in ratios:
        place = math.log2(one) if one > 0 else _LEAST
        counted[round((min(max(place, _LEAST), _MOST) - _LEAST) * _BINS_PER_DOUBLING)] += 1
    return tuple(counted)


def bin_middle(index: int) -> float:
    """The ratio in the middle of a bin."""
    return float(2 ** (_LEAST + index / _BINS_PER_DOUBLING))


def _figures(gains: Sequence[DefaultGain], ranked: Sequence[Slot]) -> tuple[Figure, ...]:
    if not ranked:
        return ()
    return (_distribution(gains), _sorted(ranked))


def _distribution(gains: Sequence[DefaultGain]) -> Figure:
    shown = [one for one in gains if one.programs]
    used = [index for one in shown for index, times in enumerate(one.bins) if times]
    span = range(min(used), max(used) + 1)
    middles = [bin_middle(index) for index in span]
    traces = [_bars(one, f"var(--series-{number + 1})") for number, one in enumerate(shown)]
    first = [bin_middle(index) for index, times in enumerate(shown[0].bins) if times]
    ticks = _FINE if max(first) <= 4 * min(first) else _COARSE
    most = max(max(one.bins) for one in shown)
    layout = {
        "barmode": "group", "bargap": 0.06,
        "xaxis": {"type": "log", "title": {"text": "speed-up"}, "tickvals": ticks, "ticktext": [f"{tick:g}×" for tick in ticks]},
        "yaxis": {"title": {"text": "plans"}, "rangemode": "tozero", "dtick": 1 if most < 6 else None},
        "shapes": [{"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1, "line": {"color": "var(--muted)", "dash": "dot", "width": 1}}],
    }  # fmt: skip
    rows = [
        [f"{middle:.2f}×", *(one.bins[index] for one in shown)] for index, middle in zip(span, middles, strict=True)
    ]
    return Figure(
        "distribution", "Distribution of the speed-up", traces, layout, ["about", *(f"over {title(one.default)}" for one in shown)],
        rows, "Click a default in the legend to show or hide it.",
    )  # fmt: skip


def _bars(one: DefaultGain, color: str) -> dict[str, Any]:
    """Bars of one default's bins, from the first to the last that holds anything."""
    used = [index for index, times in enumerate(one.bins) if times]
    span = range(used[0], used[-1] + 1)
    middles = [bin_middle(index) for index in span]
    return {
        "type": "bar", "name": f"over {title(one.default)}", "x": middles, "y": [one.bins[index] for index in span],
        "width": [middle * 0.08 for middle in middles], "visible": True if one.default == BEST else "legendonly",
        "marker": {"color": color}, "hovertemplate": "about %{x:.2f}×: %{y}<extra></extra>",
    }  # fmt: skip


def _sorted(ranked: Sequence[Slot]) -> Figure:
    """Every program from slowest to fastest. Of many, every so-manieth: the eye sees no more than a few hundred."""
    step = max(1, len(ranked) // 400)
    chosen = [*ranked[::step], ranked[-1]]
    places = [100 * index / max(1, len(chosen) - 1) for index in range(len(chosen))]
    ratios = [slot.speedup() or 0.0 for slot in chosen]
    low, high = zip(*(band(slot.noise) for slot in chosen), strict=True)
    traces: list[dict[str, Any]] = [
        {"type": "scatter", "x": places, "y": high, "mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"},
        {"type": "scatter", "x": places, "y": low, "mode": "lines", "line": {"width": 0}, "fill": "tonexty", "fillcolor": "var(--band)", "name": "noise", "hoverinfo": "skip"},
        {"type": "scatter", "x": places, "y": ratios, "mode": "lines+markers" if len(ratios) < 60 else "lines", "name": "over the best default", "line": {"color": "var(--series-1)", "width": 2}, "text": [slot.title[:80] for slot in chosen], "hovertemplate": "%{y:.2f}×<br>%{text}<extra></extra>"},
    ]  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": "share of plans"}, "ticksuffix": " %", "range": [0, 100]},
        "yaxis": {"type": "log", "title": {"text": "speed-up"}, "ticksuffix": "×", "tickformat": ".3~g", "nticks": 6},
    }  # fmt: skip
    tenths = [min(len(ranked) - 1, round(tenth * (len(ranked) - 1) / 10)) for tenth in range(11)]
    rows = [[f"{10 * number} %", f"{ranked[index].speedup() or 0.0:.2f}×"] for number, index in enumerate(tenths)]
    return Figure(
        "sorted", "Every program over its best default, from slowest to fastest", traces, layout,
        ["share of plans", "speed-up"], rows, "Within the grey band a difference is noise.",
    )  # fmt: skip


def title(default: str) -> str:
    """What a default is called in a sentence."""
    return "the best default" if default == BEST else default


PAGE = Page("overview", "Overview", "overview.html", load, nav="Overview")
