"""`fuseplan plan …`: look at stored plans, and have the last word on them. Each verb is a function of fuseplan.tuning_db."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuseplan.cli.options import as_json as json_option
from fuseplan.cli.options import database as file_option
from fuseplan.cli.options import echo_json, examples, keys, look_into
from fuseplan.cli.text import printable
from fuseplan.graph.words import counted

if TYPE_CHECKING:
    from fuseplan.tuning_db import Store, StoredPlan
    from fuseplan.tuning_db.words import Listed


@click.group()
def plan() -> None:
    """Look at stored plans; pin, disable or retune them.

    KEY is the beginning of a plan's key, as `fuseplan plan list` shows it.
    """


def _open(file: Path | None) -> Store:
    from fuseplan.tuning_db import Store

    return Store.open(os.environ, file).required(there=False)


@plan.command("list", epilog=examples("fuseplan plan list", "fuseplan plan list GPT-2 --json"))
@click.argument("which", default="", metavar="[KEY]")
@file_option
@json_option
def list_(which: str, file: Path | None, as_json: bool) -> None:
    """List plans, the latest first: all, or those of a program's name or key, or of a plan's key."""
    from fuseplan.looking.words import fields_of
    from fuseplan.tuning_db.words import listed

    found = listed(look_into(file), which)
    if as_json:
        echo_json([fields_of(one) for one in found])
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


@plan.command(epilog=examples("fuseplan plan show 3f2c"))
@click.argument("key", shell_complete=keys)
@file_option
@json_option
def show(key: str, file: Path | None, as_json: bool) -> None:
    """Print one plan with its evidence, and the moves that led to it."""
    from fuseplan.looking.words import fields_of
    from fuseplan.show import full_fields
    from fuseplan.tuning_db.words import listed, plan_named

    store = look_into(file)
    chosen = plan_named(store, key)
    (one,) = (each for each in listed(store, chosen.key) if each.stored.key == chosen.key)
    if as_json:
        echo_json(full_fields(one))
        return
    for name, value in fields_of(one).items():
        if value not in (None, ""):
            click.echo(printable(f"{name}: {value}"))
    for move in chosen.moves:
        click.echo(printable(f"  {move.line}"))
    click.echo(chosen.plan.to_json())


@plan.command(epilog=examples("fuseplan plan pin 3f2c"))
@click.argument("key", shell_complete=keys)
@file_option
@json_option
def pin(key: str, file: Path | None, as_json: bool) -> None:
    """Run this plan wherever it may run, though others be faster."""
    from fuseplan.tuning_db.words import pin as say

    _tell(say(_open(file), key), as_json)


@plan.command(epilog=examples("fuseplan plan unpin 3f2c"))
@click.argument("key", shell_complete=keys)
@file_option
@json_option
def unpin(key: str, file: Path | None, as_json: bool) -> None:
    """Take back a pin, or that a plan is disabled."""
    from fuseplan.tuning_db.words import unpin as say

    _tell(say(_open(file), key), as_json)


@plan.command(epilog=examples("fuseplan plan disable 3f2c"))
@click.argument("key", shell_complete=keys)
@file_option
@json_option
def disable(key: str, file: Path | None, as_json: bool) -> None:
    """Never run this plan."""
    from fuseplan.tuning_db.words import disable as say

    _tell(say(_open(file), key), as_json)


@plan.command(epilog=examples("fuseplan plan retune 3f2c"))
@click.argument("key", shell_complete=keys)
@file_option
@json_option
def retune(key: str, file: Path | None, as_json: bool) -> None:
    """Run the default until the program of this plan is tuned anew."""
    from fuseplan.tuning_db.words import retune as forget

    changed = forget(_open(file), key)
    if as_json:
        echo_json([{"key": one.key, "status": "unverified"} for one in changed])
        return
    click.echo(f"{counted(len(changed), 'plan')} must race again before the next use")


def _tell(stored: StoredPlan, as_json: bool) -> None:
    if as_json:
        echo_json({"key": stored.key, "status": stored.status, "word": stored.word})
        return
    click.echo(f"plan {stored.key[:12]} is {stored.standing}")


def _row(one: Listed) -> tuple[str, ...]:
    from fuseplan.tuning_db.words import summary

    stored = one.stored
    texts = (
        stored.key[:12],
        one.program,
        stored.environment.gpu or stored.environment.cpu or stored.environment.device,
        stored.launch,
        stored.sizes.short or "-",
        stored.standing,
        "-" if stored.wall_us is None else f"{stored.wall_us:,.1f}",
        "-" if stored.best_default_us is None else f"{stored.best_default_us:,.1f} {stored.best_default}",
        summary(stored.plan),
    )
    return tuple(map(printable, texts))
