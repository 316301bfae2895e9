"""The table of all programs: sorted by any column, searched, and downloaded as it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuseplan.executors.known import traits_of
from fuseplan.plan import title_of
from fuseplan.tuning_db.dashboard.ask import VERSIONED, Ask, Param
from fuseplan.tuning_db.dashboard.formats import sizes
from fuseplan.tuning_db.dashboard.page import Page
from fuseplan.tuning_db.dashboard.queries.slots import DEFAULTS, Slot, slots
from fuseplan.tuning_db.dashboard.reader import Reader
from fuseplan.tuning_db.dashboard.table import PER_PAGE, Cell, ShownColumn, ordered, searched


def _of_default(name: str) -> ShownColumn[Slot]:
    return ShownColumn(f"{name.replace('-', '_')}_us", title_of(name), "us", lambda slot: slot.defaults.get(name))


def _of_version(executor: str) -> ShownColumn[Slot]:
    return ShownColumn(
        executor, traits_of(executor).title, "text", lambda slot: slot.versions.get(executor), searched=True
    )


COLUMNS: tuple[ShownColumn[Slot], ...] = (
    ShownColumn("program", "Program", "link", lambda slot: slot.title, searched=True),
    ShownColumn("speedup", "Speed-up", "times", lambda slot: slot.speedup(), "Best default divided by the plan"),
    ShownColumn("noise", "Noise", "percent", lambda slot: slot.noise, "How far two timings of one plan lie apart"),
    ShownColumn("verdict", "Verdict", "verdict", lambda slot: slot.verdict if slot.verdict != "none" else None,
           "Good and regression differ by more than the noise", searched=True),
    ShownColumn("standing", "Status", "standing", lambda slot: slot.standing + (" (stale)" if slot.stale else ""), searched=True),
    ShownColumn("plan_us", "Plan", "us", lambda slot: slot.plan_us, "Wall time of one call under the plan"),
    ShownColumn("best_default", "Best default", "text", lambda slot: slot.best, searched=True),
    ShownColumn("best_us", "its time", "us", lambda slot: slot.best_us),
    *map(_of_default, DEFAULTS),
    ShownColumn("saved_s", "Saved", "seconds", lambda slot: slot.saved_s, "Recorded calls times the difference"),
    ShownColumn("calls", "Calls", "count", lambda slot: slot.calls or None, "How often it was called while it was recorded"),
    ShownColumn("peak_bytes", "Peak memory", "bytes", lambda slot: slot.peak_bytes),
    ShownColumn("launch", "Launch", "text", lambda slot: slot.launched, searched=True),
    ShownColumn("sizes", "Sizes", "text", lambda slot: sizes(slot.sizes) if slot.sizes else None, searched=True),
    ShownColumn("device", "Device", "text", lambda slot: slot.device, searched=True),
    ShownColumn("torch", "torch", "text", lambda slot: slot.torch, searched=True),
    *map(_of_version, VERSIONED),
    ShownColumn("changed_at", "Changed", "when", lambda slot: slot.changed_at or None),
    ShownColumn("key", "Key", "text", lambda slot: slot.program, "Of the program's Dynamo graph", searched=True),
)  # fmt: skip
IDS = tuple(column.id for column in COLUMNS)
SEARCHED = tuple(place for place, column in enumerate(COLUMNS) if column.searched)
KEY = IDS.index("key")


@dataclass(frozen=True)
class Programs:
    """The table, and the part of it that a page without scripts shows."""

    columns: Sequence[ShownColumn[Slot]]
    rows: Sequence[Sequence[Cell]]
    """All that fit the search, sorted."""
    total: int
    """How many there are without the search."""
    sort: str
    descending: bool
    wanted: str
    number: int
    """Of the page, from 1."""
    key: int = KEY
    noise: int = IDS.index("noise")
    verdict: int = IDS.index("verdict")
    searched: tuple[int, ...] = SEARCHED

    @property
    def pages(self) -> int:
        """How many there are, at least one."""
        return max(1, -(-len(self.rows) // PER_PAGE))

    @property
    def part(self) -> Sequence[Sequence[Cell]]:
        """The rows of this page."""
        return self.rows[(self.number - 1) * PER_PAGE : self.number * PER_PAGE]

    @property
    def first(self) -> int:
        """The number of the first row of this page, from 0."""
        return (self.number - 1) * PER_PAGE


def load(reader: Reader, ask: Ask) -> Programs:
    """Read, search, sort."""
    found = reader.remembered(("slots", ask.filters), lambda connection: slots(connection, ask.filters))
    rows = [tuple(column.value(slot) for column in COLUMNS) for slot in found]
    sort = ask["sort"] or "speedup"
    descending = ask["order"] == "down" if ask["order"] else COLUMNS[IDS.index(sort)].numeric
    chosen = searched(rows, SEARCHED, ask["q"])
    if ask["order"] != "none":  # for the script, which sorts by itself, and from this order
        chosen = ordered(chosen, IDS.index(sort), descending)
    table = Programs(COLUMNS, chosen, len(rows), sort, descending, ask["q"], 1)
    return Programs(COLUMNS, chosen, len(rows), sort, descending, ask["q"], min(int(ask["page"] or 1), table.pages))


PAGE = Page(
    "programs", "Programs", "programs.html", load,
    (Param("q"), Param("sort", f"({'|'.join(IDS)})?"), Param("order", "(up|down|none)?"), Param("page", r"([1-9]\d{0,6})?")),
    nav="Programs",
)  # fmt: skip
