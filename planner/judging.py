"""`judge`: whether each plan of a program computes what it should, here and now, and how far it is off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fuseplan.capture.dynamo.numerics import Numerics
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.key import retarget
from fuseplan.errors import OptionError
from fuseplan.graph.words import counted
from fuseplan.judge.output import Fault
from fuseplan.looking.judged import judged_lines, output_fields
from fuseplan.looking.subject import opened
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.environment import environment
from fuseplan.measure.jobs import OutcomeRow
from fuseplan.plan import Plan
from fuseplan.tuning.effort import JUDGING_SHARE, PATIENCE_S, QUICK
from fuseplan.tuning.meant import meant
from fuseplan.tuning.program.baseline import defaults, planned
from fuseplan.tuning.program.services import Services
from fuseplan.tuning.program.vet_plans import TORCHS, Rows, checked, inquired
from fuseplan.tuning.progress import Progress, shown
from fuseplan.tuning.queue.devices import OpenPool, own_workers
from fuseplan.tuning.traces import box_of, check_device, device_of, sizes_of, title, title_of
from fuseplan.tuning_db import Box, Environment, Store, StoredPlan
from fuseplan.tuning_db.evidence import Raced
from fuseplan.tuning_db.launches import of_launch
from fuseplan.tuning_db.whole_files import refuse_database, written_whole

TOLD = ("name", "default", "status", "detail", "how", "stored", "standing")
"""What JSON has of a plan that was judged, beside its outputs."""


@dataclass(frozen=True)
class JudgedPlan(Raced):
    """One plan, and what was found of its results: of each output of floats, the worst first."""

    stored: str | None = None
    """The key of the stored plan that it is …"""
    standing: str = ""
    """… and how that one stands."""


@dataclass(frozen=True)
class Judgement:
    """What came of judging one program on one device."""

    program: str
    name: str
    device: str
    sizes: str
    plans: tuple[JudgedPlan, ...]
    left_out: int = 0
    """Stored plans of the program that are for another environment, or for other sizes."""
    fault: Fault | None = None
    """What torch.compile gets wrong, where that was looked for and found."""

    @property
    def wrong(self) -> bool:
        """Whether a plan is wrong, or not one could be judged."""
        return any(one.status == "wrong" for one in self.plans) or all(one.status != "ok" for one in self.plans)

    def __str__(self) -> str:
        return self.text()

    def text(self, outputs: bool = False) -> str:
        """A table for people: the worst output of each plan, or all of them."""
        return "\n".join(self._lines(None if outputs else 1))

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        plans = [{**one.told(TOLD), "outputs": list(map(output_fields, one.outputs))} for one in self.plans]
        return {**vars(self), "plans": plans, "fault": None if self.fault is None else vars(self.fault)}

    def _lines(self, outputs: int | None) -> Iterator[str]:
        called = title(self.program, self.name, Box.parse(self.sizes))
        bad = sum(one.status == "wrong" for one in self.plans)
        yield f"{called}, {self.device}: {counted(len(self.plans), 'plan')}, {bad or 'none'} wrong"
        yield from (f"  {line}" for line in judged_lines(self.plans, outputs))
        yield from (f"  {one.name} is wrong: {one.detail}" for one in self.plans if one.status == "wrong")
        if self.fault is not None:
            yield f"  torch.compile gets {self.fault.told} wrong: {self.fault.problem}"
        if self.left_out:
            yield f"  {counted(self.left_out, 'stored plan')} for another environment or other sizes left out"


def judge(
    what: Trace | str | Path,
    *,
    device: str | None = None,
    script: str | Path | None = None,
    db: str | Path | None = None,
    progress: Progress | None = None,
    workers: OpenPool = own_workers,
) -> list[Judgement]:
    """Judge the defaults, plan `aten` and every plan that is stored for a program, here and now; nothing is stored of it.

    `what` is a trace, the path of one or of a folder, or the beginning of a plan's or a program's key, or its name. Each
    plan runs in a worker process, as it does before a race, and is compared with a run in higher precision. Where
    torch.compile's default is wrong, and `script` names a file, the fewest ops that show it are looked for, and written there.

    >>> import fuseplan
    >>> fuseplan.judge("no such program")
    Traceback (most recent call last):
    ...
    fuseplan.errors.StoreError: there is no plan and no program that begins with 'no such program': see fuseplan show
    """
    if device is not None:
        check_device(device)
    with opened(db) as store, shown(progress) as heard:
        if script is not None:
            _check_place(Path(script), store.file.path)
        found: list[Judgement] = []
        for trace, named in list(meant(store, what)):
            with Numerics.of(trace.numerics if named is None else vars(named.environment)).applied():
                found.append(_Judge(store, heard, workers, device, script is not None).of(trace, named))
                if script is not None:
                    _write(Path(script), [one.fault.script for one in found if one.fault is not None])
        return found


@dataclass(frozen=True)
class _Judge:
    store: Store
    progress: Progress
    workers: OpenPool
    device: str | None
    faults: bool

    def of(self, trace: Trace, named: StoredPlan | None) -> Judgement:
        where = self.device or device_of(trace)
        check_device(where)
        here = environment(where)
        trace = retarget(trace, where) if self.device else trace
        every = [one for one in self.store.plans() if one.program == trace.key]
        stored = [named] if named is not None else [one for one in every if _fits(one, here, trace)]
        entries = _entries(here, stored)
        rows: Rows = {}
        with self.workers(where, QUICK) as pool:
            services = Services(self.store, here, pool, self.progress, title_of(trace))
            checked(services, trace.to_json(), entries, rows)
            fault = self._inquired(services, trace.to_json(), entries, rows)
        by_plan = {one.plan: one for one in stored}
        plans = tuple(_plan(entry, rows.get(entry.name), by_plan.get(planned(entry))) for entry in entries)
        left_out = 0 if named is not None else len(every) - len(stored)
        return Judgement(trace.key, trace.name, where, box_of(trace).text, plans, left_out, fault)

    def _inquired(self, services: Services, trace: str, entries: Sequence[RaceEntry], rows: Rows) -> Fault | None:
        """The fewest ops that torch.compile gets wrong, where its default is wrong and they are asked for. What is off by rounding
        everywhere is no fault: then it is judged once more as that.
        """
        row = rows.get(TORCHS)
        if row is None or row.status != "wrong" or not (self.faults or row.near):
            return None
        found = inquired(services, trace, row, JUDGING_SHARE * PATIENCE_S)
        if found.rounding:
            checked(services, trace, [one for one in entries if one.name == TORCHS], rows, found.rounding)
        return found.fault


def _check_place(file: Path, database: Path | None) -> None:
    """An error now where a script could not be written after minutes of work."""
    refuse_database(file, database)
    if not file.parent.is_dir():
        raise OptionError(f"{file} cannot be written: there is no folder {file.parent}")


def _write(file: Path, scripts: Sequence[str]) -> None:
    """Write the scripts, the first into the file itself, others beside it with a number."""
    for number, text in enumerate(scripts, 1):
        with written_whole(file if number == 1 else file.with_stem(f"{file.stem}-{number}")) as place:
            place.write_text(text, encoding="utf-8")


def _fits(stored: StoredPlan, here: Environment, trace: Trace) -> bool:
    return stored.environment == here and stored.sizes.why_not(sizes_of(trace)) is None


def _entries(here: Environment, stored: Sequence[StoredPlan]) -> list[RaceEntry]:
    """The defaults under each launch that a stored plan has, plan `aten`, and the stored plans that are none of these."""
    found = {entry.plan: entry for entry in (*defaults(here, "plain"), RaceEntry("aten", Plan("aten")))}
    for launch in sorted({one.launch for one in stored} - {"plain"}):
        for entry in defaults(here, launch):
            found[entry.plan] = replace(entry, name=of_launch(entry.name, launch))
    for one in stored:
        found.setdefault(one.plan, RaceEntry(f"plan {one.key[:12]}", one.plan))
    return list(found.values())


def _plan(entry: RaceEntry, row: OutcomeRow | None, stored: StoredPlan | None) -> JudgedPlan:
    found = row or OutcomeRow(entry.name, "error", "it was not checked")
    outputs = tuple(sorted(found.outputs, key=lambda one: -one.share))
    key, standing = (None, "") if stored is None else (stored.key, stored.standing)
    return JudgedPlan(
        entry.name, entry.default, found.status, found.detail, how=found.how, outputs=outputs, stored=key,
        standing=standing,
    )  # fmt: skip
