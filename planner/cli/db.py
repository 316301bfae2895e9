"""`fuseplan db …`: look at, check, carry and clean the tuning database. Each verb is a function of fuseplan.tuning_db."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuseplan.cli.options import as_json as json_option
from fuseplan.cli.options import database as file_option
from fuseplan.cli.options import look_into, tell
from fuseplan.graph.words import counted

if TYPE_CHECKING:
    from fuseplan.tuning_db import StoredPlan
    from fuseplan.tuning_db.exchange import IntakeReport
    from fuseplan.tuning_db.files import Database
    from fuseplan.tuning_db.upkeep import Damage, Repaired

_SALVAGE_S = 3600.0
"""Who waits at a terminal for a damaged file gets all of it back."""
_MENDS = {"file": "set the file aside and copy its good rows into a new one", "journal": "take that write back"}
"""What a repair does about problems that are not of single rows."""


@click.group()
def db() -> None:
    """Look at, check, carry and clean the tuning database."""


def _open(file: Path | None) -> Database:
    from fuseplan.tuning_db import Store

    return Store.open(os.environ, file, salvage_s=_SALVAGE_S).file


def _look_at(file: Path | None) -> Database:
    return look_into(file).required().file


@db.command(epilog="Example: fuseplan db info --json")
@file_option
@json_option
def info(file: Path | None, as_json: bool) -> None:
    """Show the size of the file, its rows, plans and environments."""
    from fuseplan.tuning_db.layers import places
    from fuseplan.tuning_db.shared_state import SharedState
    from fuseplan.tuning_db.upkeep import info as look

    shared = places(os.environ, file).shared
    found = look(_look_at(file)) | {"shared": None if shared is None else asdict(SharedState.noted(shared))}
    tell(found, lambda: _info(found), as_json)


def _info(found: dict[str, Any]) -> Iterator[str]:
    yield f"{found['path']}: {_size(found['bytes'])}, {_size(found['unused_bytes'])} unused, schema {found['schema']}"
    for name, count in found["rows"].items():
        yield f"{count:>10,} {name}"
    for standing, count in found["plans"].items():
        yield f"{count:>10,} {'plan' if count == 1 else 'plans'} {standing}"
    for place in found["environments"]:
        others = {name: text for name, text in place["executors"].items() if not text.startswith(place["torch"])}
        known = {"torch": place["torch"], "cuda": place["cuda"], **others}
        versions = ", ".join(f"{name} {text}" for name, text in known.items() if text)
        yield f"environment {place['key'][:12]}: {place['device']}, {versions}: {counted(place['plans'], 'plan')}"
    if found["shared"] is not None:
        yield f"shared: {_shared(found['shared'])}"


def _shared(found: dict[str, Any]) -> str:
    told = [found["named"]]
    if found["fetched_at"] is not None:
        told += [counted(found["rows"], "row"), f"fetched {found['fetched_at']}", f"SHA-256 {found['sha256']}"]
    elif not found["problem"] and not found["serves"]:
        told.append("nothing was fetched yet")
    return ", ".join([*told, found["problem"]] if found["problem"] else told)


@db.command(epilog="Example: fuseplan db check --repair")
@file_option
@json_option
@click.option(
    "--repair", is_flag=True,
    help="Delete the bad rows, with what refers to them; set a file aside whose pages are bad, and keep its good rows.",
)  # fmt: skip
def check(file: Path | None, as_json: bool, repair: bool) -> None:
    """List what is damaged: pages, references, rows, plans and graphs. Nothing is changed without --repair.

    Exit code 1 if anything is damaged, or with --repair, if anything still is.
    """
    from fuseplan.tuning_db.files import Database
    from fuseplan.tuning_db.upkeep import check as look
    from fuseplan.tuning_db.upkeep import repair as mend

    path = _open(file).path
    assert path is not None
    done = mend(path, within_s=_SALVAGE_S) if repair else None
    found = look(Database(path, readonly=True)) if done is None else done.found
    left = found if done is None else done.left
    lines = (*map(str, found), *_outcome(path, found, done))
    tell(_checked(found, done), lambda: lines, as_json)
    if left:
        raise SystemExit(1)


def _checked(found: list[Damage], done: Repaired | None) -> dict[str, Any]:
    told: dict[str, Any] = {"problems": [vars(problem) for problem in found]}
    if done is not None:
        old = done.renewed
        told["left"] = [vars(problem) for problem in done.left]
        told["deleted"] = done.deleted
        told["set_aside"] = None if old is None else {"path": str(old.aside), "held": old.held, "saved": old.saved}
    return told


def _outcome(path: Path, found: list[Damage], done: Repaired | None) -> Iterator[str]:
    if not found:
        yield "all is well"
    elif done is None:
        would = next((_MENDS[problem.table] for problem in found if problem.table in _MENDS), "delete the bad rows")
        yield f"{counted(len(found), 'problem')}: fuseplan db check --repair would {would}"
    else:
        if done.renewed is not None:
            yield f"{path} was damaged. {done.renewed}"
        if done.deleted:
            yield f"{counted(done.deleted, 'bad row')} deleted"
        yield f"{counted(len(done.left), 'problem')} left" if done.left else "all is well now"


@db.command(epilog="Example: fuseplan db export plans.jsonl.gz --program GPT-2")
@click.argument("to", type=click.Path(path_type=Path))
@file_option
@json_option
@click.option("--program", help="Only this one: its name, or the beginning of its key.")
@click.option("--environment", help="Only this one: part of its device's name, or the beginning of its key.")
@click.option("--since", type=click.DateTime(), help="Only what is as new as this.")
def export(
    to: Path, file: Path | None, as_json: bool, program: str | None, environment: str | None, since: datetime | None
) -> None:
    """Write the rows as JSON lines to a file, packed if its name ends in .gz. Exit code 1 if some are damaged."""
    from fuseplan.tuning_db import clock
    from fuseplan.tuning_db.exchange import Selection
    from fuseplan.tuning_db.exchange import export as write

    done = write(_look_at(file), to, Selection(program, environment, clock.written(since) if since else None))
    fields = {"path": str(to), **vars(done)}
    tell(fields, lambda: f"{counted(done.rows, 'row')} written to {to}", as_json, indent=None)
    if done.damaged:
        click.echo(f"{counted(done.damaged, 'damaged row')} left out: fuseplan db check lists them", err=True)
        raise SystemExit(1)


@db.command("import", epilog="Example: fuseplan db import plans.jsonl.gz --trust replay")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@file_option
@json_option
@click.option(
    "--trust", type=click.Choice(["unverified", "replay"]), default="unverified", show_default=True,
    help="What to think of the plans: unverified until they have raced here, or good as they are.",
)  # fmt: skip
@click.option("--within", type=float, default=600.0, show_default=True, help="Seconds that one file may take.")
def import_(files: tuple[Path, ...], file: Path | None, as_json: bool, trust: str, within: float) -> None:
    """Take rows from exports, or from SQLite files that others made. Exit code 1 if some were refused."""
    from fuseplan.tuning_db.exchange import Bounds, check_file, import_file

    into = _open(file)
    for path in files:
        check_file(path)
    _report({path: import_file(into, path, trust=trust, bounds=Bounds(within)) for path in files}, as_json)


@db.command(epilog="Example: fuseplan db merge shard-*.db --db all.db")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@file_option
@json_option
@click.option("--salvage", is_flag=True, help="Take the good rows of damaged files too.")
@click.option("--within", type=float, default=3600.0, show_default=True, help="Seconds that one file may take.")
def merge(files: tuple[Path, ...], file: Path | None, as_json: bool, salvage: bool, within: float) -> None:
    """Take all rows of databases of your own, plans as they stand there: in any order, and however often, with the same result.

    Of two rows with one key the later wins, but of a plan one that has raced over one that was only predicted. A file that
    is damaged anywhere is refused whole, and the others are taken. Exit code 1 if something was refused.
    """
    from fuseplan.tuning_db.exchange import check_database, merge_whole
    from fuseplan.tuning_db.exchange import merge as take

    into = _open(file)
    if not salvage:
        _report(merge_whole(into, files, within_s=within), as_json)
        return
    for path in files:
        check_database(path, into)
    _report({path: take(into, path, within_s=within) for path in files}, as_json)


@db.command(epilog="Example: fuseplan db verify 3f2c")
@click.argument("plans", nargs=-1, metavar="[PLAN]…")
@file_option
@json_option
@click.option("--device", help="Where: cpu, cuda, cuda:1; without it, each plan where it is for.")
def verify(plans: tuple[str, ...], file: Path | None, as_json: bool, device: str | None) -> None:
    """Check the numbers of unverified plans and race them here: then they may run, or never will.

    PLAN is the beginning of a plan's key, of its program's, or of its name; without any, all are meant. Exit code 1 if
    one failed, or could not be raced.
    """
    from fuseplan.tuning.progress import Silent, bar
    from fuseplan.verify import verify as race

    with bar() if sys.stderr.isatty() else nullcontext(Silent()) as progress:
        done = race(plans, db=file, device=device, progress=progress)
    told = [(stored, stored.status, _result(stored)) for stored in done.raced]
    told += [(stored, "unverified", why) for stored, why in done.left]
    told += [(stored, "unverified", f"it is for another machine: {why}") for stored, why in done.elsewhere if plans]
    fields = [{"key": one.key, "program": one.program, "status": status, "why": why} for one, status, why in told]
    lines = [f"plan {stored.key[:12]} is {status}: {why}" for stored, status, why in told]
    if done.elsewhere and not plans:
        lines.append(f"{counted(len(done.elsewhere), 'plan')} left, for other machines or versions")
    if not told:
        lines.append("no plan here is unverified")
    tell({"plans": fields, "elsewhere": len(done.elsewhere)}, lambda: lines, as_json)
    if done.left or any(stored.status == "quarantined" for stored in done.raced):
        raise SystemExit(1)


def _result(stored: StoredPlan) -> str:
    if stored.detail or stored.wall_us is None:
        return stored.detail
    rival = "" if stored.best_default_us is None else f", {stored.best_default} {stored.best_default_us:,.1f}"
    return f"it takes {stored.wall_us:,.1f} µs{rival}"


@db.command(epilog="Example: fuseplan db prune --older-than 180 --dry-run")
@file_option
@json_option
@click.option("--older-than", type=click.IntRange(0, 36500), metavar="DAYS", help="Also what is older.")
@click.option("--environment", help="Also all that was measured there: the beginning of its key.")
@click.option("--dry-run", is_flag=True, help="Only tell.")
def prune(file: Path | None, as_json: bool, older_than: int | None, environment: str | None, dry_run: bool) -> None:
    """Delete plans that later ones have replaced, and whatever nothing refers to."""
    from fuseplan.tuning_db import clock
    from fuseplan.tuning_db.upkeep import prune as delete

    before = None
    if older_than is not None:
        before = clock.written(datetime.now(timezone.utc) - timedelta(days=older_than))
    database = _look_at(file) if dry_run else _existing(file)
    gone = delete(database, before=before, environment=environment, dry_run=dry_run)
    counts = ", ".join(f"{count:,} {name}" for name, count in gone.items()) or "nothing"
    tell(gone, lambda: f"{'would delete' if dry_run else 'deleted'}: {counts}", as_json, indent=None)


@db.command(epilog="Example: fuseplan db vacuum")
@file_option
@json_option
def vacuum(file: Path | None, as_json: bool) -> None:
    """Rewrite the file without the pages that it does not use."""
    from fuseplan.tuning_db.upkeep import vacuum as rewrite

    before, after = rewrite(_existing(file))
    sizes = {"bytes_before": before, "bytes_after": after}
    tell(sizes, lambda: f"{_size(before)} before, {_size(after)} now", as_json, indent=None)


def _existing(file: Path | None) -> Database:
    from fuseplan.tuning_db import Store

    return Store.open(os.environ, file, salvage_s=_SALVAGE_S).required().file


def _report(reports: dict[Path, IntakeReport], as_json: bool) -> None:
    """Tell what came of each file; 20 refused rows of each are enough to see what is wrong with it."""
    data = {
        str(path): {"taken": dict(r.taken), "known": r.known, "refused": [r.damage] if r.damage else r.refused}
        for path, r in reports.items()
    }
    lines = []
    for path, report in reports.items():
        if report.damage:
            lines.append(f"{path}: refused, since it is damaged ({report.damage}): {report.mends}")
            continue
        taken = ", ".join(f"{count:,} {name}" for name, count in report.taken.items()) or "nothing new"
        lines.append(f"{path}: {taken}; {counted(report.known, 'row')} known, {len(report.refused):,} refused")
        lines += [f"  {line}" for line in report.refused[:20]]
    tell(data, lambda: lines, as_json)
    if not all(report.complete for report in reports.values()):
        raise SystemExit(1)


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"
