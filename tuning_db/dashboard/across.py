"""One program across machines and versions: its plan in each place, and where and why that differs from the one that is shown."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

from fuseplan.looking.apart import plans_apart
from fuseplan.tuning_db.dashboard.ask import VERSIONED
from fuseplan.tuning_db.dashboard.queries.filters import told
from fuseplan.tuning_db.dashboard.queries.stale import newest_here
from fuseplan.tuning_db.dashboard.reader import Reader
from fuseplan.tuning_db.dashboard.table import ShownColumn
from fuseplan.tuning_db.environment import Environment
from fuseplan.tuning_db.programs import plans_of_program
from fuseplan.tuning_db.records import StoredPlan
from fuseplan.tuning_db.staleness import PlaceWithDriver, stale_plans
from fuseplan.tuning_db.words import summary


@dataclass(frozen=True)
class PlaceLine:
    """The plan of a program in one place."""

    stored: StoredPlan
    stale: str
    """What it uses that is another in the newest place of its machine."""
    apart: tuple[str, ...]
    """In what it differs from the plan that is shown, and why."""
    is_shown: bool

    @property
    def machine(self) -> str:
        """What the machine is called."""
        place = self.stored.environment
        return place.gpu or place.cpu or place.device

    @property
    def releases(self) -> str:
        """The versions there, in words."""
        place = self.stored.environment
        cuda = f" · CUDA {place.cuda}" if place.cuda else ""
        return f"torch {place.torch}{cuda}{told({name: text for name, text in place.versions if name in VERSIONED})}"


ACROSS: tuple[ShownColumn[PlaceLine], ...] = (
    ShownColumn("machine", "Machine", "text", lambda one: one.machine,
                to=lambda one: ("program", {"key": one.stored.program, "plan": one.stored.key})),
    ShownColumn("releases", "Versions", "text", lambda one: one.releases),
    ShownColumn("launch", "Launch", "text", lambda one: one.stored.slot),
    ShownColumn("sizes", "Sizes", "sizes", lambda one: one.stored.sizes.text),
    ShownColumn("who", "Plan", "text", lambda one: summary(one.stored.plan)),
    ShownColumn("us", "A call", "us", lambda one: one.stored.timed.us),
    ShownColumn("best", "Best default", "us", lambda one: one.stored.best_default_us),
    ShownColumn("speedup", "Speed-up", "times", lambda one: one.stored.speedup if one.stored.timed.us else None),
    ShownColumn("standing", "Status", "standing", lambda one: one.stored.standing),
    ShownColumn("stale", "Stale by", "text", lambda one: one.stale or None),
    ShownColumn("apart", "Differs from the plan above", "text",
                lambda one: "it is that plan" if one.is_shown else "; ".join(one.apart) or "no: the plans are equal"),
)  # fmt: skip


def across(reader: Reader, program: str, keys: Collection[str], shown: str | None) -> tuple[PlaceLine, ...]:
    """The plans of a program that stand for it, by key, each in its place; nothing where all are of one place."""
    plans = [
        one for one in reader.read(partial(plans_of_program, program=program)) if one.key in keys or one.key == shown
    ]
    if len({one.environment.key for one in plans}) < 2:
        return ()
    newest = reader.remembered("newest places", newest_here)
    own = next((one for one in plans if one.key == shown), None)
    stale = _stale(plans, newest)
    lines = [
        PlaceLine(
            one, stale.get(one.key, ""), () if own is None else tuple(each.line for each in plans_apart(own, one)), one is own
        )
        for one in plans
    ]  # fmt: skip
    return tuple(sorted(lines, key=lambda one: (one.machine, one.stored.changed_at, one.stored.key)))


def _stale(plans: Sequence[StoredPlan], newest: Sequence[Environment]) -> dict[str, str]:
    places = [PlaceWithDriver(place) for place in newest]
    return {one.stored.key: one.why for one in stale_plans(plans, places, all_of_one=True)}
