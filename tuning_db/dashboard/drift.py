"""How fast a plan was in production, over time: the chart and the table of what guards saw."""

from __future__ import annotations

from collections.abc import Sequence

from fuseplan.tuning_db.dashboard.charts import Figure
from fuseplan.tuning_db.dashboard.formats import percent, times, us, when
from fuseplan.tuning_db.dashboard.queries.drift import DriftRow

MOST_LISTED = 50
_HEADER = ("when", "times as fast", "noise", "plan", "default", "calls until then")


def figure(seen: Sequence[DriftRow]) -> Figure | None:
    """How many times as fast as the default, with the noise of each look; None where nobody has looked."""
    if not seen:
        return None
    traces = [
        {
            "type": "scatter", "mode": "lines+markers", "name": "times as fast as the default",
            "x": [one.measured_at for one in seen],
            "y": [one.speedup for one in seen],
            "error_y": {"type": "data", "array": [one.speedup * one.noise for one in seen], "thickness": 1, "width": 3, "color": "var(--muted)"},
            "marker": {"size": 7, "color": [_color(one) for one in seen]},
            "line": {"color": "var(--same)", "width": 1},
            "hovertemplate": "%{y:.3f}×<extra></extra>", "showlegend": False,
        },
    ]  # fmt: skip
    layout = {
        "xaxis": {"type": "date"},
        "yaxis": {"title": {"text": "times as fast as the default"}, "ticksuffix": "×"},
        "shapes": [
            {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1, "line": {"color": "var(--muted)", "dash": "dot", "width": 1}}
        ],
    }  # fmt: skip
    rows = [
        (when(one.measured_at), times(one.speedup), percent(one.noise), us(one.plan_us), us(one.default_us), one.calls)
        for one in reversed(seen[-MOST_LISTED:])
    ]
    note = "Each dot is what a guard saw of the calls before it, with its noise: some ran the plan, some the default."
    return Figure("drift", "In production", traces, layout, _HEADER, rows, note)


def _color(one: DriftRow) -> str:
    return {"faster": "var(--good-fill)", "slower": "var(--bad-fill)"}.get(one.comparison, "var(--same)")
