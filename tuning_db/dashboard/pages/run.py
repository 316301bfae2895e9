"""Runs of tuning: how far one has come that writes the database now, and how those before it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import accumulate

from markupsafe import Markup

from fuseplan.tuning_db import clock
from fuseplan.tuning_db.dashboard.ask import Ask, NotThere, Param
from fuseplan.tuning_db.dashboard.charts import Figure
from fuseplan.tuning_db.dashboard.page import Page
from fuseplan.tuning_db.dashboard.parts import badge
from fuseplan.tuning_db.dashboard.queries import runs as query
from fuseplan.tuning_db.dashboard.queries.runs import NOTHING, Gained, RacedRow, RunRow, RunStep
from fuseplan.tuning_db.dashboard.reader import Reader
from fuseplan.tuning_db.dashboard.table import ShownColumn

SILENT_S = 600.0
"""A run that has written nothing for so long may have been killed: nobody is left to say so."""


def outcome(status: str) -> Markup:
    """How something ended: what it failed of beside the badge."""
    return badge("ok") if status == "ok" else Markup("{} {}").format(badge("failed"), status)


RACED: tuple[ShownColumn[RacedRow], ...] = (
    ShownColumn("plan", "Plan", "text", lambda one: one.name),
    ShownColumn("launch", "Launch", "text", lambda one: one.launch),
    ShownColumn("sizes", "Sizes", "sizes", lambda one: one.sizes),
    ShownColumn("us", "A call", "us", lambda one: one.wall_us),
    ShownColumn("outcome", "Outcome", "html", lambda one: outcome(one.status)),
)


@dataclass(frozen=True)
class MachineLine:
    """The runs on the devices of one kind of one machine."""

    host: str
    device: str
    runs: tuple[RunRow, ...]

    @property
    def running(self) -> int:
        """How many go on."""
        return sum(run.state == "running" for run in self.runs)

    @property
    def finished(self) -> int:
        """How many came to a verdict."""
        return sum(run.state == "finished" for run in self.runs)

    @property
    def ended_early(self) -> int:
        """How many were interrupted, or failed."""
        return len(self.runs) - self.running - self.finished

    @property
    def measured(self) -> int:
        """Rows that they have written."""
        return sum(run.measured for run in self.runs)

    @property
    def wrote_at(self) -> str:
        """When the last of them was."""
        return max(run.wrote_at for run in self.runs)


@dataclass(frozen=True)
class RunPage:
    """All that the page shows: one run, or all of them."""

    now: str
    runs: tuple[RunRow, ...] = ()
    run: RunRow | None = None
    raced: tuple[RacedRow, ...] = ()
    gained: Gained = NOTHING
    steps: tuple[RunStep, ...] = ()
    pace: Figure | None = None

    raced_columns = RACED

    def seconds(self, run: RunRow) -> float | None:
        """How long a run has taken, or takes so far."""
        return _seconds(run.started_at, self.now if run.state == "running" else run.changed_at)

    def silent(self, run: RunRow) -> float | None:
        """Seconds for which a run that goes on has written nothing, where that is long."""
        seconds = _seconds(run.wrote_at, self.now) if run.state == "running" else None
        return seconds if seconds is not None and seconds > SILENT_S else None

    @property
    def machines(self) -> tuple[MachineLine, ...]:
        """What each machine has done of these runs, those first that work now."""
        by_place: dict[tuple[str, str], list[RunRow]] = {}
        for run in self.runs:
            by_place.setdefault((run.host, run.device), []).append(run)
        found = [MachineLine(*place, tuple(runs)) for place, runs in by_place.items() if place[0]]
        return tuple(sorted(found, key=lambda one: (-one.running, one.host, one.device)))

    @property
    def live(self) -> bool:
        """Whether there is something to wait for."""
        shown = self.runs if self.run is None else (self.run,)
        return any(run.state == "running" for run in shown)

    @property
    def best(self) -> RacedRow | None:
        """The fastest whole plan so far."""
        return next((one for one in self.raced if one.status == "ok" and one.wall_us is not None), None)

    @property
    def best_default(self) -> RacedRow | None:
        """The fastest default so far."""
        return next((one for one in self.raced if one.default and one.status == "ok" and one.wall_us is not None), None)


def load(reader: Reader, ask: Ask) -> RunPage:
    """The run that is asked for, else all."""
    if not ask["key"]:
        return RunPage(clock.now(), runs=tuple(reader.read(lambda connection: query.runs(connection, ask.filters))))
    found = reader.read(lambda connection: query.run(connection, ask["key"]))
    if found is None:
        raise NotThere("there is no such run")
    return RunPage(
        clock.now(), run=found,
        raced=tuple(reader.read(lambda connection: query.raced(connection, found.id))),
        gained=reader.read(lambda connection: query.gained(connection, found.id)),
        steps=tuple(reader.read(lambda connection: query.latest(connection, found.id))),
        pace=_pace(reader.read(lambda connection: query.pace(connection, found.id)), found),
    )  # fmt: skip


def _pace(seconds: Sequence[tuple[str, int]], run: RunRow) -> Figure | None:
    """Measurements over time, at most a few hundred points."""
    if len(seconds) < 2 or run.state == "running":  # a chart that is drawn anew every few seconds is a flicker
        return None
    since = [_seconds(run.started_at, f"{when}.000Z") or 0.0 for when, _ in seconds]
    so_far = list(accumulate(number for _, number in seconds))
    step = max(1, len(since) // 400)
    since, so_far = [*since[::step], since[-1]], [*so_far[::step], so_far[-1]]
    trace = {
        "type": "scatter", "mode": "lines", "x": since, "y": so_far, "line": {"color": "var(--series-1)", "width": 2, "shape": "hv"},
        "hovertemplate": "%{y} after %{x:.0f} s<extra></extra>",
    }  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": "seconds since the start"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "measurements"}, "rangemode": "tozero"},
    }
    rows = [
        (f"{at:.0f} s", number) for at, number in list(zip(since, so_far, strict=True))[:: max(1, len(since) // 12)]
    ]
    return Figure("pace", "Measurements over time", [trace], layout, ("after", "measurements"), rows)


def _seconds(start: str, end: str) -> float | None:
    first, last = _moment(start), _moment(end)
    return None if first is None or last is None else max(0.0, (last - first) / timedelta(seconds=1))


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(timezone.utc)
    except ValueError:  # the row is damaged
        return None


PAGE = Page("run", "Runs", "run.html", load, (Param("key", r"([0-9a-f]{32})?"),), nav="Runs", live=True)
