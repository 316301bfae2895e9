"""Which plans are so far behind when they are checked that nobody compiles them once more for their race."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import OutcomeRow

FAR = 1.2
"""So many times as long as another has a call of it to take. Workers look beside each other: by less it may have been disturbed."""


def is_ours(entry: RaceEntry) -> bool:
    """Whether it is a default that torch does not have: its code is in none of torch's caches, so that the race waits for it."""
    return entry.default and entry.plan is not None and entry.plan.host == "aten"


def far_behind(entry: RaceEntry, others: Iterable[RaceEntry], rows: Mapping[str, OutcomeRow]) -> RaceEntry | None:
    """The fastest of those that it is far behind, as far as each worker has seen it; None where it may win, or one of torch's own defaults
    is no faster, since the best default is to be in the race.

    >>> from fuseplan.plan import Plan
    >>> torchs = RaceEntry("inductor", Plan("inductor", launch="cudagraph"), default=True)
    >>> tuned = RaceEntry("tuned", Plan("inductor", launch="cudagraph", settings="split-64"))
    >>> greedy = RaceEntry("greedy", Plan("aten", launch="cudagraph"), default=True)
    >>> rows = {name: OutcomeRow(name, call_us=us) for name, us in (("inductor", 100.0), ("tuned", 80.0), ("greedy", 110.0))}
    >>> far_behind(greedy, [torchs, tuned], rows).name, far_behind(greedy, [torchs], rows), far_behind(greedy, [tuned], rows)
    ('tuned', None, None)
    """
    mine = _call_us(entry, rows)
    known = {one: us for one in others if one != entry and (us := _call_us(one, rows)) is not None}
    torchs = [us for one, us in known.items() if one.default and not is_ours(one)]
    if mine is None or not torchs or min(torchs) > mine:
        return None
    fastest = min(known, key=known.__getitem__)
    return fastest if FAR * known[fastest] <= mine else None


def left_behind(entries: Iterable[RaceEntry], rows: Mapping[str, OutcomeRow]) -> dict[RaceEntry, RaceEntry]:
    """The defaults of ours among some entries that are far behind others of these, each with the fastest.

    >>> from fuseplan.plan import Plan
    >>> torchs, ours = (RaceEntry(host, Plan(host, launch="cudagraph"), default=True) for host in ("inductor", "aten"))
    >>> rows = {"inductor": OutcomeRow("inductor", call_us=9.0), "aten": OutcomeRow("aten", call_us=19.0)}
    >>> left_behind([torchs, ours], rows) == {ours: torchs}, left_behind([torchs, ours], {})
    (True, {})
    """
    known = list(dict.fromkeys(entries))
    return {one: best for one in known if is_ours(one) and (best := far_behind(one, known, rows)) is not None}


def _call_us(entry: RaceEntry, rows: Mapping[str, OutcomeRow]) -> float | None:
    row = rows.get(entry.name)
    return row.call_us if row is not None and row.status == "ok" else None
