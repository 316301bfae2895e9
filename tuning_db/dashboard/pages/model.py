"""The cost model: what it said of regions and plans before they were measured, and what that was worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from fuseplan.drawing import color_word
from fuseplan.models.cost import NINE_OF_TEN
from fuseplan.tuning_db.dashboard.ask import Ask
from fuseplan.tuning_db.dashboard.charts import Figure
from fuseplan.tuning_db.dashboard.formats import percent, us
from fuseplan.tuning_db.dashboard.page import Page
from fuseplan.tuning_db.dashboard.queries import model as query
from fuseplan.tuning_db.dashboard.queries.model import AuditRow, ExecutorTally, Foretold, PlanForetold, RunError
from fuseplan.tuning_db.dashboard.reader import Reader
from fuseplan.tuning_db.dashboard.regret import Regret, regrets

_DRAWN = 1500
"""Points of one executor."""


@dataclass(frozen=True)
class PredictionErrors:
    """How far off the predictions of one executor's regions were; of all, where `executor` is empty."""

    executor: str
    number: int
    median: float
    """Half of them were off by less, relative."""
    p90: float
    bias: float
    """The median of predicted over measured, less one: above nothing where it expects too much time."""
    told: int
    """How many came with an interval …"""
    within: int
    """… and how many of those measurements lay within its bounds for nine of ten."""

    @property
    def coverage(self) -> float | None:
        """The share of those."""
        return self.within / self.told if self.told else None


@dataclass(frozen=True)
class ModelPage:
    """All that the page shows."""

    errors: tuple[PredictionErrors, ...]
    tallies: tuple[ExecutorTally, ...]
    plans: int
    plan_median: float | None
    plan_p90: float | None
    regrets: tuple[Regret, ...]
    runs: tuple[RunError, ...]
    figures: tuple[Figure, ...]
    audit: AuditRow
    most: int = query.MOST

    @property
    def halved(self) -> int | None:
        """After how many measurements half of the regret that there was is gone."""
        if not self.regrets or not self.regrets[0].median:
            return None
        return next((one.spent for one in self.regrets if one.median <= self.regrets[0].median / 2), None)


def load(reader: Reader, ask: Ask) -> ModelPage:
    """Read the latest measurements and evidence, and sum them up."""
    found = reader.remembered(("foretold", ask.filters), lambda connection: query.foretold(connection, ask.filters))
    tallies = reader.read(lambda connection: query.tallies(connection, ask.filters))
    plans = reader.read(lambda connection: query.plans_foretold(connection, ask.filters))
    runs = reader.read(lambda connection: query.run_errors(connection, ask.filters))
    executors = sorted({one.executor for one in found})
    errors = [_errors("", found)] if found else []
    errors += [_errors(executor, [one for one in found if one.executor == executor]) for executor in executors]
    off = sorted(abs(one.predicted_us / one.wall_us - 1) for one in plans)
    curve = regrets(found)
    figures = [
        *([_scatter(found, executors)] if found else []),
        *([_plans(plans)] if plans else []),
        *([_regret(curve)] if curve else []),
        *([_runs(runs)] if len(runs) > 1 else []),
    ]
    return ModelPage(
        tuple(errors), tuple(tallies), len(plans), median(off) if off else None, _at(off, 0.9) if off else None, curve,
        tuple(runs), tuple(figures), reader.read(lambda connection: query.audit(connection, ask.filters)),
    )  # fmt: skip


def _errors(executor: str, found: Sequence[Foretold]) -> PredictionErrors:
    off = sorted(abs(one.predicted_us / one.device_us - 1) for one in found)
    told = [one for one in found if one.spread]
    within = sum(abs(math.log(one.device_us / one.predicted_us)) <= NINE_OF_TEN * (one.spread or 0.0) for one in told)
    bias = median(one.predicted_us / one.device_us for one in found) - 1
    return PredictionErrors(executor, len(found), median(off), _at(off, 0.9), bias, len(told), within)


def _at(ordered: Sequence[float], share: float) -> float:
    """The value that this share of them stays at or below."""
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def _scatter(found: Sequence[Foretold], executors: Sequence[str]) -> Figure:
    traces = []
    for executor in executors:
        own = [one for one in found if one.executor == executor]
        own = own[:: max(1, len(own) // _DRAWN)]
        traces.append({
            "type": "scattergl" if len(own) > 500 else "scatter", "mode": "markers", "name": _plain(executor),
            "marker": {"color": f"var(--{color_word(executor)})", "size": 6, "opacity": 0.6},
            "x": [one.device_us for one in own], "y": [one.predicted_us for one in own],
            "text": [_plain(one.title) for one in own], "hovertemplate": "%{text}<br>measured %{x:.3~g} µs, predicted %{y:.3~g} µs<extra></extra>",
        })  # fmt: skip
    rows = [
        (one.executor or "all", one.number, percent(one.median), percent(one.p90))
        for one in (_errors(e, [o for o in found if o.executor == e]) for e in executors)
    ]
    return Figure(
        "regions", "Regions, predicted against measured", traces, _diagonal([(one.device_us, one.predicted_us) for one in found], "measured, µs on the device"),
        ("executor", "measured", "median error", "P90"), rows, "A prediction counts as it was before the region was measured. The grey band is a factor of two either way.", 380,
    )  # fmt: skip


def _plans(plans: Sequence[PlanForetold]) -> Figure:
    own = plans[:: max(1, len(plans) // _DRAWN)]
    trace = {
        "type": "scatter", "mode": "markers", "name": "plans", "marker": {"color": "var(--series-4)", "size": 7, "opacity": 0.7},
        "x": [one.wall_us for one in own], "y": [one.predicted_us for one in own],
        "text": [_plain(f"{one.program[:60]}, {one.name[:40]}") for one in own],
        "hovertemplate": "%{text}<br>measured %{x:.4~g} µs, predicted %{y:.4~g} µs<extra></extra>",
    }  # fmt: skip
    rows = [
        (
            f"{one.program}, {one.name}",
            us(one.wall_us),
            us(one.predicted_us),
            percent(one.predicted_us / one.wall_us - 1),
        )
        for one in plans[:50]
    ]
    return Figure(
        "plans", "Whole plans, predicted against measured", [trace], _diagonal([(one.wall_us, one.predicted_us) for one in plans], "measured, µs a call"),
        ("plan", "measured", "predicted", "off by"), rows, "By the two clocks over its regions, some of which were measured by then.", 380,
    )  # fmt: skip


def _diagonal(pairs: Sequence[tuple[float, float]], title: str) -> dict[str, object]:
    values = [value for pair in pairs for value in pair]
    low, high = math.log10(min(values)) - 0.1, math.log10(max(values)) + 0.1
    ends = (10**low, 10**high)
    band = f"M{ends[0]},{ends[0] / 2}L{ends[1]},{ends[1] / 2}L{ends[1]},{ends[1] * 2}L{ends[0]},{ends[0] * 2}Z"
    return {
        "xaxis": {"type": "log", "range": [low, high], "title": {"text": title}, "tickformat": "~s", "nticks": 7},
        "yaxis": {"type": "log", "range": [low, high], "title": {"text": "predicted, µs"}, "tickformat": "~s", "nticks": 7},
        "shapes": [
            {"type": "path", "path": band, "fillcolor": "var(--band)", "line": {"width": 0}, "layer": "below"},
            {"type": "line", "x0": ends[0], "y0": ends[0], "x1": ends[1], "y1": ends[1], "line": {"color": "var(--muted)", "width": 1, "dash": "dot"}},
        ],
    }  # fmt: skip


def _regret(curve: Sequence[Regret]) -> Figure:
    spent = [one.spent for one in curve]
    traces: list[dict[str, object]] = [
        {"type": "scatter", "mode": "lines", "x": spent, "y": [100 * one.high for one in curve], "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"},
        {"type": "scatter", "mode": "lines", "x": spent, "y": [100 * one.low for one in curve], "line": {"width": 0}, "fill": "tonexty", "fillcolor": "var(--band)", "name": "half of the runs", "hoverinfo": "skip"},
        {"type": "scatter", "mode": "lines", "x": spent, "y": [100 * one.median for one in curve], "name": "median run", "line": {"color": "var(--series-1)", "width": 2, "shape": "hv"}, "hovertemplate": "%{y:.2f} % after %{x}<extra></extra>"},
    ]  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": "measurements spent"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "regret"}, "ticksuffix": " %", "rangemode": "tozero"},
    }
    step = max(1, len(curve) // 12)
    rows = [(one.spent, percent(one.median), percent(one.low), percent(one.high)) for one in curve[::step]]
    return Figure(
        "regret", "Regret against measurements spent", traces, layout, ("measurements", "median", "P25", "P75"), rows,
        "Device time over all regions of a run, had it stopped there and taken what seemed best, beyond the best that it has measured in the end.", 320,
    )  # fmt: skip


def _runs(runs: Sequence[RunError]) -> Figure:
    traces = [
        {
            "type": "scatter", "mode": "lines+markers" if len(runs) < 100 else "lines", "name": name, "x": [one.started_at for one in runs],
            "y": [100 * getattr(one, field) for one in runs], "line": {"color": color, "width": 2},
            "text": [_plain((one.program or one.key[:12])[:60]) for one in runs], "hovertemplate": "%{y:.1f} %<br>%{text}<extra></extra>",
        }
        for name, field, color in (("median", "median", "var(--series-1)"), ("P90", "p90", "var(--series-3)"))
    ]  # fmt: skip
    layout = {
        "yaxis": {"title": {"text": "error of whole plans"}, "ticksuffix": " %", "rangemode": "tozero"},
        "xaxis": {"type": "date"},
    }
    rows = [(one.started_at[:16].replace("T", " "), percent(one.median), percent(one.p90)) for one in runs[-50:]]
    return Figure("runs", "Whole plans, run by run", traces, layout, ("run", "median", "P90"), rows, height=320)


def _plain(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


PAGE = Page("model", "Model", "model.html", load, nav="Model")
