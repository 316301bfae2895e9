"""`bench`: a stored plan against the defaults, here and now, side by side: whether what was promised still holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fuseplan.capture.dynamo.numerics import Numerics
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.key import retarget
from fuseplan.errors import OptionError
from fuseplan.looking.subject import opened
from fuseplan.looking.words import share, table, times, us
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.environment import environment
from fuseplan.measure.jobs import OutcomeRow
from fuseplan.plan import LAUNCHES, Plan
from fuseplan.tuning.effort import LEAST_RACE_S, QUICK
from fuseplan.tuning.meant import meant
from fuseplan.tuning.program.baseline import defaults
from fuseplan.tuning.program.race import Verdict, race
from fuseplan.tuning.program.services import Services
from fuseplan.tuning.program.vet_plans import Rows, checked
from fuseplan.tuning.progress import Progress, shown
from fuseplan.tuning.queue.devices import OpenPool, own_workers
from fuseplan.tuning.traces import box_of, check_device, device_of, sizes_of, title, title_of
from fuseplan.tuning_db import Box, Environment, Hit, Query, Stale, Store, StoredPlan
from fuseplan.tuning_db.evidence import Raced

TOLD = ("name", "default", "status", "detail", "wall_us", "device_us", "host_us", "ratio", "low", "high")
"""What JSON has of a plan in the race."""


@dataclass(frozen=True)
class BenchedPlan(Raced):
    """One plan in the race, with how it compares."""

    ratio: float | None = None
    """Its time as a multiple of the best default's, from blocks that ran side by side …"""
    low: float | None = None
    """… which surely lies between this …"""
    high: float | None = None
    """… and this."""


@dataclass(frozen=True)
class Bench:
    """What came of one program under one launch."""

    program: str
    name: str
    launch: str
    verdict: str
    """`faster` or `slower` than the best default beyond noise, `same`, `untuned`: there is no plan; `failed`: `detail`."""
    best_default: str = ""
    noise: float | None = None
    plan: str | None = None
    """The key of the plan that raced."""
    sides: tuple[BenchedPlan, ...] = field(default=())
    detail: str = ""
    sizes: str = ""
    """The box of dynamic sizes that this is about; it raced at those that the trace was seen with."""

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return json.loads(json.dumps({**vars(self), "sides": [side.told(TOLD) for side in self.sides]}))  # type: ignore[no-any-return]

    def _lines(self) -> Iterator[str]:
        told = {"untuned": "no plan is stored: fuseplan tune", "failed": self.detail}
        noise = "" if self.noise is None else f", noise {share(self.noise)}"
        called = title(self.program, self.name, Box.parse(self.sizes))
        yield f"{called}, {self.launch}: {told.get(self.verdict, self.verdict)}{noise}"
        if self.sides:
            rows = [("", "time", "device", "host", "times the best default", "")]
            yield from (f"  {line}" for line in table([*rows, *map(_row, self.sides)], right={1, 2, 3}))


def bench(
    what: Trace | str | Path,
    *,
    launch: str | None = None,
    device: str | None = None,
    seconds: float = 10.0,
    db: str | Path | None = None,
    progress: Progress | None = None,
    workers: OpenPool = own_workers,
) -> list[Bench]:
    """Race the stored plan of each program against all defaults, here and now; nothing is stored of it.

    `what` is a trace, the path of one or of a folder, or the beginning of a plan's or a program's key, or its name. All
    sides are checked, and then run in short blocks, shuffled, beside each other in one worker process. `launch` is plain
    or cudagraph, else that of the plan; `seconds` bounds each race.

    >>> import fuseplan
    >>> fuseplan.bench("no such program")
    Traceback (most recent call last):
    ...
    fuseplan.errors.StoreError: there is no plan and no program that begins with 'no such program': see fuseplan show
    """
    if launch is not None and launch not in LAUNCHES:
        raise OptionError(f"there is no launch {launch!r}; known are {', '.join(LAUNCHES)}")
    if not seconds > 0:
        raise OptionError(f"a race takes a number of seconds, not {seconds!r}")
    if device is not None:
        check_device(device)
    with opened(db) as store, shown(progress) as heard:
        found = list(meant(store, what))
        heard.begin(len(found))
        told = []
        for trace, plan in found:
            with Numerics.of(trace.numerics if plan is None else vars(plan.environment)).applied():
                told.append(_Bench(store, heard, workers, seconds, launch, device).of(trace, plan))
            heard.end(str(told[-1]).split("\n", 1)[0])
        return told


@dataclass
class _Bench:
    store: Store
    progress: Progress
    workers: OpenPool
    seconds: float
    launch: str | None
    device: str | None

    def of(self, trace: Trace, plan: StoredPlan | None) -> Bench:
        where = self.device or device_of(trace)
        check_device(where)
        here = environment(where)
        trace = retarget(trace, where) if self.device else trace
        if plan is None:
            answer = self.store.find_plan(Query(trace.key, here, self.launch, sizes_of(trace), unverified=True))
            plan = answer.plan if isinstance(answer, (Hit, Stale)) else None
        launch = self.launch or (plan.launch if plan is not None else "plain")
        text = trace.to_json()
        with self.workers(where, QUICK) as pool:
            services = Services(self.store, here, pool, self.progress, title_of(trace))
            rows: Rows = {}
            entries = _entries(here, launch, plan)
            fit = checked(services, text, entries, rows)
            verdict = race(services, text, fit, rows, QUICK.plan_blocks, max(LEAST_RACE_S, self.seconds))
        known = Bench(
            trace.key, trace.name, launch, "failed", plan=None if plan is None else plan.key, sizes=box_of(trace).text
        )
        if verdict is None:
            return replace(known, detail="no default of this launch runs here", sides=_sides(entries, rows, None))
        return replace(
            known, verdict=_word(plan, entries, verdict), best_default=verdict.best_default.name,
            noise=verdict.result.noise, sides=_sides(entries, rows, verdict),
        )  # fmt: skip


def _entries(here: Environment, launch: str, plan: StoredPlan | None) -> list[RaceEntry]:
    """The defaults, and the stored plan where it is none of them."""
    entries = defaults(here, launch)
    chosen: Plan | None = None if plan is None else plan.plan
    if chosen is None or any(entry.plan == chosen for entry in entries):
        return entries
    assert plan is not None
    return [*entries, RaceEntry(f"plan {plan.key[:12]}", chosen)]


def _word(plan: StoredPlan | None, entries: Sequence[RaceEntry], verdict: Verdict) -> str:
    if plan is None:
        return "untuned"
    if plan.plan in (verdict.best_default.plan, verdict.winner.plan):
        return "faster" if verdict.tuned else "same"
    name = next(entry.name for entry in entries if entry.plan == plan.plan)
    lane = next((lane for lane in verdict.result.lanes if lane.name == name), None)
    if lane is None or lane.ratio is None:  # it fell out of the race
        return "slower"
    surely = verdict.result.compared(name, verdict.result.incumbent) == "slower"
    return "slower" if surely or lane.dropped is not None else "same"


def _sides(entries: list[RaceEntry], rows: dict[str, OutcomeRow], verdict: Verdict | None) -> tuple[BenchedPlan, ...]:
    """The plans by their time, those that failed last."""
    lanes = {lane.name: lane for lane in verdict.result.lanes} if verdict is not None else {}
    found = []
    for entry in entries:
        row, lane = rows.get(entry.name, OutcomeRow(entry.name, "error", "it was not raced")), lanes.get(entry.name)
        ratio, low, high = (None, None, None) if lane is None else (lane.ratio, lane.low, lane.high)
        measured = (row.status, row.detail, row.wall_us, row.device_us, row.host_us)
        found.append(BenchedPlan(entry.name, entry.default, *measured, ratio=ratio, low=low, high=high))
    return tuple(sorted(found, key=lambda side: (side.wall_us is None, side.wall_us or 0.0)))


def _row(side: BenchedPlan) -> tuple[str, ...]:
    between = "" if side.low is None or side.high is None else f" ({times(side.low)} to {times(side.high)})"
    note = "default" if side.default else ""
    if side.status != "ok":
        note = f"{side.status}: {side.detail}"
    ratio = f"{times(side.ratio)}{between}"
    return side.name, us(side.wall_us), us(side.device_us), us(side.host_us), ratio, note


def failed(found: list[Bench]) -> bool:
    """Whether a plan is slower than a default by now, or one could not be raced.

    >>> failed([Bench("ab", "", "plain", "same")])
    False
    """
    return any(one.verdict in ("slower", "failed") for one in found)
