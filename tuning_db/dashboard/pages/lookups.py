"""Look-ups of programs that ran: how many found their plan, why the others did not, and what fell back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fuseplan.tuning_db.dashboard.ask import Ask
from fuseplan.tuning_db.dashboard.charts import Figure
from fuseplan.tuning_db.dashboard.page import Page
from fuseplan.tuning_db.dashboard.queries.lookups import DayCount, counted
from fuseplan.tuning_db.dashboard.reader import Reader

HITS, STALE, MISSES = "plan hits", "plan stale hits", "plan misses: "
_DAYS = 366
WHAT_TO_DO: Mapping[str, str] = {
    "no such program": "Nobody has tuned these programs: fuseplan record, then fuseplan tune.",
    "other environment": "They are tuned for another machine or other versions: tune here, or db export there and db import here.",
    "other objective": "They are tuned for another objective: fuseplan tune … --objective, or --max-memory.",
    "other launch": "They are tuned for another launch: fuseplan tune … --launch both.",
    "rewrites forbidden": "Option rewrites forbids what their plans rewrite: tune them with it.",
    "weights not promised": "Their plans merge weights: promise weights='fixed', or tune them without.",
    "outside the tuned sizes": "They were called with sizes that no plan is for: record and tune them with those.",
    "unverified": "Their plans were never raced here: fuseplan db verify.",
    "quarantined": "Their plans failed here: the program's page says how; fuseplan tune … --again.",
    "disabled": "Somebody said no: fuseplan plan unpin takes that back.",
    "failed validation": "Their plans are none of this fuseplan: tune again.",
    "row damaged": "fuseplan db check lists what is damaged, and --repair puts it right.",
    "database unusable": "fuseplan db info says what is wrong with the file.",
}


@dataclass(frozen=True)
class LookupsPage:
    """All that the page shows."""

    hits: int
    stale: int
    misses: Mapping[str, int]
    """By reason, the most frequent first."""
    others: Mapping[str, int]
    """Whatever else was counted: what programs run under, and what fell back."""
    days: int
    figure: Figure | None
    advice: Mapping[str, str]

    @property
    def looked_up(self) -> int:
        """Number of look-ups."""
        return self.hits + self.stale + sum(self.misses.values())

    @property
    def share(self) -> float | None:
        """Share of the look-ups that found a plan."""
        return (self.hits + self.stale) / self.looked_up if self.looked_up else None

    @property
    def fallbacks(self) -> int:
        """What did not run as planned."""
        return sum(number for event, number in self.others.items() if is_fallback(event))


def is_fallback(event: str) -> bool:
    """Whether a counter tells of something that did not run as planned.

    >>> is_fallback("regions fallen back"), is_fallback("plans refused"), is_fallback("programs under a plan")
    (True, True, False)
    """
    return any(word in event for word in ("fallen back", "failed", "refused", "not captured"))


def load(reader: Reader, ask: Ask) -> LookupsPage:
    """Read the counters, and sum them up."""
    found = reader.read(lambda connection: counted(connection, ask.filters))
    sums: Counter[str] = Counter()
    for one in found:
        sums[one.event] += one.count
    misses = {event.removeprefix(MISSES): number for event, number in sums.most_common() if event.startswith(MISSES)}
    others = {
        event: number for event, number in sums.most_common() if event not in (HITS, STALE) and not event.startswith(MISSES)
    }  # fmt: skip
    days = len({one.day for one in found})
    return LookupsPage(sums[HITS], sums[STALE], misses, others, days, _figure(found) if days else None, WHAT_TO_DO)


def _figure(found: Sequence[DayCount]) -> Figure:
    """Each day's look-ups, by what came of them."""
    days = sorted({one.day for one in found})[-_DAYS:]
    sums: dict[tuple[str, str], int] = {}
    for one in found:
        kind = {HITS: "hits", STALE: "stale hits"}.get(one.event, "misses" if one.event.startswith(MISSES) else "")
        sums[one.day, kind] = sums.get((one.day, kind), 0) + one.count
    traces = [
        {"type": "bar", "name": kind, "x": days, "y": [sums.get((day, kind), 0) for day in days], "marker": {"color": color}, "hovertemplate": "%{y}<extra>" + kind + "</extra>"}
        for kind, color in (("hits", "var(--good-fill)"), ("stale hits", "var(--series-3)"), ("misses", "var(--bad-fill)"))
    ]  # fmt: skip
    layout = {
        "barmode": "stack",
        "xaxis": {"type": "category", "nticks": 12},
        "yaxis": {"title": {"text": "look-ups"}, "rangemode": "tozero"},
        "bargap": 0.25,
    }
    rows = [(day, *(sums.get((day, kind), 0) for kind in ("hits", "stale hits", "misses"))) for day in reversed(days)]
    return Figure("days", "Look-ups by day", traces, layout, ("day", "hits", "stale hits", "misses"), rows)


PAGE = Page("lookups", "Look-ups", "lookups.html", load, nav="Look-ups")
