"""`show`: the plans that are stored, as a table, or one of them with all that is known of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuseplan.errors import OptionError
from fuseplan.looking.explained import raced_lines
from fuseplan.looking.subject import opened
from fuseplan.looking.words import device_of, fields_of, table, times, us
from fuseplan.tuning_db.resume import Failure, failures
from fuseplan.tuning_db.staleness import stale_in
from fuseplan.tuning_db.words import Listed, begins, listed, summary

STANDINGS = ("tuned", "default", "unverified", "quarantined", "pinned", "disabled")
_LONGEST = 36
_HEAD = ("plan", "program", "device", "launch", "sizes", "standing", "time", "best default", "faster", "who")


@dataclass(frozen=True, repr=False)
class Shown:
    """Plans, the latest first. Print it to read it, loop over it to work with it."""

    plans: tuple[Listed, ...]
    whole: bool = False
    """Whether one plan was asked for, so that all is told of it."""
    failed: tuple[Failure, ...] = ()
    """Programs that could not be tuned."""
    stale: Mapping[str, str] = field(default_factory=dict)
    """Of stale plans, by key, what has changed, as the newest plans of their machine tell."""

    def __iter__(self) -> Iterator[Listed]:
        return iter(self.plans)

    def __len__(self) -> int:
        return len(self.plans)

    def __getitem__(self, place: int) -> Listed:
        return self.plans[place]

    def __str__(self) -> str:
        if self.whole:
            return "\n".join(_in_full(self.plans[0], self.stale.get(self.plans[0].stored.key, "")))
        return "\n".join((*_rows(self.plans, self.stale), *map(str, self.failed)))

    __repr__ = __str__  # what a notebook shows

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return {
            "plans": [
                {**(full_fields if self.whole else fields_of)(one), "stale": self.stale.get(one.stored.key)}
                for one in self.plans
            ],
            "failed": [vars(one) for one in self.failed],
        }


def show(
    wanted: str = "",
    *,
    device: str = "",
    status: str = "",
    name: str = "",
    db: str | Path | None = None,
) -> Shown:
    """Return the plans whose key, or whose program's key or name, begins with `wanted`; all without it.

    `device` and `name` are parts of what the machine and the program are called, `status` is tuned, default, unverified,
    quarantined, pinned or disabled. If `wanted` begins the key of one plan only, that one is told of in full.

    >>> import fuseplan
    >>> print(fuseplan.show("no such program"))
    no plans
    """
    if status and status not in STANDINGS:
        raise OptionError(f"no plan has the status {status!r}; known are {', '.join(STANDINGS)}")
    with opened(db) as store:
        found = listed(store, wanted)
        failed = [] if status else failures(store)
        every = [one.stored for one in (listed(store) if wanted else found)]
        stale = {one.stored.key: one.why for one in stale_in(store, [], every, elsewhere=True, all_of_one=True)}
    told = (
        one
        for one in failed
        if (one.program.startswith(wanted) or begins(one.name, wanted))
        and name.lower() in one.name.lower()
        and any(device.lower() in text.lower() for text in (one.device, one.kind))
    )
    plans = tuple(
        one
        for one in found
        if (not status or status in (one.stored.standing, one.stored.status))
        and name.lower() in (one.name or "").lower()
        and any(
            device.lower() in text.lower()
            for text in (device_of(one.stored.environment), one.stored.environment.device)
        )
    )
    whole = len(plans) == 1 and bool(wanted) and plans[0].stored.key.startswith(wanted)
    return Shown(plans, whole, tuple(told), stale)


def _rows(plans: tuple[Listed, ...], stale: Mapping[str, str]) -> Iterator[str]:
    if not plans:
        yield "no plans"
        return
    yield from table([_HEAD, *(_row(one, one.stored.key in stale) for one in plans)], right={6, 7, 8})


def _row(one: Listed, is_stale: bool) -> tuple[str, ...]:
    stored = one.stored
    default = us(stored.best_default_us) + (f" {stored.best_default}" if stored.best_default else "")
    return (
        stored.key[:12], _cut(one.program), device_of(stored.environment), stored.slot, stored.sizes.short or "-",
        f"{stored.standing}, stale" if is_stale else stored.standing, us(stored.wall_us), default, times(stored.speedup),
        summary(stored.plan),
    )  # fmt: skip


def _cut(name: str) -> str:
    """A name that leaves room for the rest of its line."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def _in_full(one: Listed, stale: str) -> Iterator[str]:
    for name, value in fields_of(one).items():
        if value not in (None, ""):
            yield f"{name}: {value}"
    if stale:
        yield f"stale: {stale}"
    if one.stored.moves:
        yield "moves:"
        yield from (f"  {move.line}" for move in one.stored.moves)
    yield from raced_lines(one.stored)
    yield f"plan: {one.stored.plan.to_json()}"


def full_fields(one: Listed) -> dict[str, Any]:
    """All that is known of one plan, as plain data."""
    stored = one.stored
    return {
        **fields_of(one),
        "moves": [move.line for move in stored.moves],
        "evidence": json.loads(stored.evidence.to_json() or "null"),
        "plan": json.loads(stored.plan.to_json()),
    }
