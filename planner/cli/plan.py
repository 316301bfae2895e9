"""`fuseplan plan …`: look at stored plans, and have the last word on them. Each verb is a function of fuseplan.tuning_db."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fuseplan.cli.text import printable

if TYPE_CHECKING:
    from fuseplan.tuning_db import Store, StoredPlan
    from fuseplan.tuning_db.words import Listed

_F = TypeVar("_F", bound=Callable[..., Any])


@click.group()
def plan() -> None:
    """Look at stored plans; pin, disable or retune them.

    KEY is the beginning of a plan's key, as `fuseplan plan list` shows it.
    """


def _file(verb: _F) -> _F:
    option = click.option(
        "--db", "file", type=click.Path(path_type=Path), help="The file; else FUSEPLAN_DB, or the cache's."
    )
    return option(verb)


def _open(file: Path | None) -> Store:
    from fuseplan.tuning_db import Store

    return Store.open(os.environ, file)


@plan.command("list", epilog="Example: fuseplan plan list GPT-2")
@click.argument("which", default="", metavar="[KEY]")
@_file
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(which: str, file: Path | None, as_json: bool) -> None:
    """List plans, the latest first: all, or those of a program's name or key, or of a plan's key."""
    from fuseplan.tuning_db.words import listed

    found = listed(_open(file), which)
    if as_json:
        click.echo(json.dumps([_fields(one) for one in found], indent=2))
        return
    rows: list[tuple[str, ...]] = [
        ("plan", "program", "device", "launch", "sizes", "standing", "µs", "default µs", "who")
    ]
    rows += [_row(one) for one in found]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows if found else []:
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    if not found:
        click.echo("no plans")


@plan.command(epilog="Example: fuseplan plan show 3f2c")
@click.argument("key")
@_file
def show(key: str, file: Path | None) -> None:
    """Print one plan with its evidence, and the moves that led to it."""
    from fuseplan.tuning_db.words import listed, plan_named

    store = _open(file)
    chosen = plan_named(store, key)
    (one,) = (each for each in listed(store, chosen.key) if each.stored.key == chosen.key)
    for name, value in _fields(one).items():
        if value not in (None, ""):
            click.echo(printable(f"{name}: {value}"))
    for move in chosen.moves.splitlines():
        click.echo(printable(f"  {move}"))
    click.echo(chosen.plan.to_json())


@plan.command(epilog="Example: fuseplan plan pin 3f2c")
@click.argument("key")
@_file
def pin(key: str, file: Path | None) -> None:
    """Run this plan wherever it may run, though others be faster."""
    from fuseplan.tuning_db.words import pin as say

    _tell(say(_open(file), key))


@plan.command(epilog="Example: fuseplan plan unpin 3f2c")
@click.argument("key")
@_file
def unpin(key: str, file: Path | None) -> None:
    """Take back a pin, or that a plan is disabled."""
    from fuseplan.tuning_db.words import unpin as say

    _tell(say(_open(file), key))


@plan.command(epilog="Example: fuseplan plan disable 3f2c")
@click.argument("key")
@_file
def disable(key: str, file: Path | None) -> None:
    """Never run this plan."""
    from fuseplan.tuning_db.words import disable as say

    _tell(say(_open(file), key))


@plan.command(epilog="Example: fuseplan plan retune 3f2c")
@click.argument("key")
@_file
def retune(key: str, file: Path | None) -> None:
    """Run the default until the program of this plan is tuned anew."""
    from fuseplan.tuning_db.words import retune as forget

    changed = forget(_open(file), key)
    click.echo(f"{len(changed)} plan{'s' * (len(changed) != 1)} must race again before the next use")


def _tell(stored: StoredPlan) -> None:
    click.echo(f"plan {stored.key[:12]} is {stored.standing}")


def _row(one: Listed) -> tuple[str, ...]:
    from fuseplan.tuning_db.words import summary

    stored = one.stored
    texts = (
        stored.key[:12],
        one.program,
        stored.environment.gpu or stored.environment.cpu or stored.environment.device,
        stored.launch,
        stored.sizes.text or "-",
        stored.standing,
        "-" if stored.wall_us is None else f"{stored.wall_us:,.1f}",
        "-" if stored.best_default_us is None else f"{stored.best_default_us:,.1f} {stored.best_default}",
        summary(stored.plan),
    )
    return tuple(map(printable, texts))


def _fields(one: Listed) -> dict[str, Any]:
    from fuseplan.tuning_db.words import summary

    stored, place = one.stored, one.stored.environment
    return {
        "key": stored.key, "program": stored.program, "name": one.name, "device": place.gpu or place.cpu,
        "torch": place.torch, "launch": stored.launch, "sizes": stored.sizes.text, "status": stored.status,
        "word": stored.word, "who": summary(stored.plan), "wall_us": stored.wall_us, "device_us": stored.device_us,
        "host_us": stored.host_us, "predicted_us": stored.predicted_us, "noise_us": stored.noise_us,
        "peak_bytes": stored.peak_bytes, "best_default": stored.best_default,
        "best_default_us": stored.best_default_us, "detail": stored.detail, "changed_at": stored.changed_at,
    }  # fmt: skip
