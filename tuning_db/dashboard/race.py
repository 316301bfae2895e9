"""Races as they are drawn: each plan against one of them, block by block, with an interval that its ratio surely lies in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fuseplan.noise import band, bounds
from fuseplan.tuning_db.dashboard.charts import Figure
from fuseplan.tuning_db.dashboard.formats import percent, times, us
from fuseplan.tuning_db.evidence import Raced

_LONGEST = 42
_MOST_DRAWN = 40
_LINEAR = 3.5
"""Up to so many times as slow as the reference plans are drawn on a linear scale."""


@dataclass(frozen=True)
class RaceLine(Raced):
    """One plan of a race."""

    role: str = "loser"
    """`winner`, `default` or `loser`: how it is drawn."""
    ratio: float | None = None
    """Its time as a multiple of the reference's."""
    low: float | None = None
    high: float | None = None
    ratios: tuple[float, ...] = ()
    """Block by block, as far as both ran."""


def against(lane: RaceLine, reference: RaceLine) -> RaceLine:
    """A lane with its ratio to another one: of blocks that ran side by side, or of the medians where there are none."""
    ratio = lane.ratio_to(reference)
    if ratio is None:
        return lane
    ratios = lane.ratios_to(reference)
    low, high = bounds(ratios)
    surely = (low, high) if math.isfinite(high) else (None, None)
    return replace(lane, ratio=ratio, low=surely[0], high=surely[1], ratios=ratios)


def figure(lanes: Sequence[RaceLine], reference: str, noise: float | None) -> Figure | None:
    """The race as a plot, the fastest on top; None where nothing was timed."""
    timed = sorted((lane for lane in lanes if lane.ratio is not None), key=lambda lane: lane.ratio or 0.0)[:_MOST_DRAWN]
    if not timed:
        return None
    places = list(range(len(timed), 0, -1))
    traces = [
        {
            "type": "scatter", "mode": "markers", "name": "blocks", "showlegend": False, "hoverinfo": "skip",
            "x": [ratio for lane in timed for ratio in lane.ratios],
            "y": [place for lane, place in zip(timed, places, strict=True) for _ in lane.ratios],
            "marker": {"size": 5, "color": "var(--same)", "opacity": 0.45},
        },
        *(_medians(timed, places, role, color) for role, color in _COLORS.items()),
    ]  # fmt: skip
    low, high = band(noise)
    layout = {
        "xaxis": {"title": {"text": f"time as a multiple of {_plain(reference)}: less is faster"}, "ticksuffix": "×", **_axis(timed)},
        "yaxis": {
            "tickmode": "array", "tickvals": places, "ticktext": [_plain(lane.name) for lane in timed],
            "range": [0.4, len(timed) + 0.6], "showgrid": False,
        },
        "shapes": [
            {"type": "rect", "x0": low, "x1": high, "yref": "paper", "y0": 0, "y1": 1, "fillcolor": "var(--band)", "line": {"width": 0}, "layer": "below"},
            {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1, "line": {"color": "var(--muted)", "dash": "dot", "width": 1}},
        ],
        "margin": {"l": 60, "r": 16, "t": 8, "b": 44},
    }  # fmt: skip
    note = "A dot is one block; a line is where the median surely lies (95 %)."
    if noise is not None:
        note += f" The grey band is the noise, ± {percent(noise)}."
    return Figure(
        "race", "The race", [trace for trace in traces if trace["x"]], layout,
        ("plan", "a call", f"of {reference}", "surely between"), [_row(lane) for lane in timed], note,
        height=90 + 30 * len(timed),
    )  # fmt: skip


_COLORS = {"winner": "var(--good-fill)", "default": "var(--series-2)", "loser": "var(--same)"}


def _medians(timed: Sequence[RaceLine], places: Sequence[int], role: str, color: str) -> dict[str, object]:
    own = [(lane, place) for lane, place in zip(timed, places, strict=True) if lane.role == role]
    ratios = [lane.ratio or 0.0 for lane, _ in own]
    return {
        "type": "scatter", "mode": "markers", "name": {"winner": "the plan that runs", "default": "defaults", "loser": "other candidates"}[role],
        "x": ratios, "y": [place for _, place in own], "marker": {"size": 11, "color": color},
        "error_x": {
            "type": "data", "symmetric": False, "color": color, "thickness": 3, "width": 0,
            "array": [max(0.0, (lane.high or ratio) - ratio) for (lane, _), ratio in zip(own, ratios, strict=True)],
            "arrayminus": [max(0.0, ratio - (lane.low or ratio)) for (lane, _), ratio in zip(own, ratios, strict=True)],
        },
        "text": [f"{_plain(lane.name)}<br>{us(lane.wall_us)} a call, {times(lane.ratio)}" for lane, _ in own],
        "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip


def _axis(timed: Sequence[RaceLine]) -> dict[str, object]:
    """The axis of ratios, from the fastest to the slowest median with their intervals; logarithmic where some are many times slower."""
    ratios = [lane.ratio or 1.0 for lane in timed]
    low, high = min(1.0, *ratios), max(1.0, *ratios)
    low = max(0.7 * low, min(lane.low or low for lane in timed), 1e-3)
    high = min(1.4 * high, max(high, *(lane.high or high for lane in timed)))
    if high > _LINEAR:
        room = 0.05 * math.log10(high / low)
        return {"type": "log", "range": [math.log10(low) - room, math.log10(high) + room], "nticks": 8}
    room = 0.06 * max(high - low, 0.1)
    return {"range": [low - room, high + room]}


def _row(lane: RaceLine) -> list[object]:
    sure = f"{times(lane.low)} – {times(lane.high)}" if lane.low is not None else "too few blocks"
    return [lane.name, us(lane.wall_us), times(lane.ratio), sure]


def _plain(name: str) -> str:
    """A name as Plotly shows it: it would take some tags in it for its own."""
    short = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
    return short.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
