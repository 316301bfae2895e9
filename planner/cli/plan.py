"""`fuseplan plan …`: look at stored plans, and have the last word on them. Each verb is a function of fuseplan.tuning_db."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuseplan.cli.options import as_json as json_option
from fuseplan.cli.options import database as file_option
from fuseplan.cli.options import examples, keys, look_into, tell
from fuseplan.graph.words import counted, printable

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

    return Store.open(os.environ, file).required(there=False).lasting()


@plan.command("list", epilog=examples("fuseplan plan list", "fuseplan plan list GPT-2 --json"))
@click.argument("which", default="", metavar="[KEY]")
@file_option
@json_option
def list_(which: str, file: Path | None, as_json: bool) -> None:
    """List plans, the latest first: all, or those of a program's name or key, or of a plan's key."""
    from fuseplan.looking.words import fields_of, table
    from fuseplan.tuning_db.words import listed

    found = listed(look_into(file), which)
    rows = [_HEADINGS, *map(_row, found)]
    tell([fields_of(one) for one in found], lambda: table(rows) if found else ["no plans"], as_json)


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
    lines = [f"{name}: {value}" for name, value in fields_of(one).items() if value not in (None, "")]
    lines += [f"  {move.line}" for move in chosen.moves]
    tell(full_fields(one), lambda: [*lines, chosen.plan.to_json()], as_json)


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
    tell(
        [{"key": one.key, "status": "unverified"} for one in changed],
        lambda: f"{counted(len(changed), 'plan')} must race again before the next use",
        as_json,
    )


def _tell(stored: StoredPlan, as_json: bool) -> None:
    data = {"key": stored.key, "status": stored.status, "word": stored.word}
    tell(data, lambda: f"plan {stored.key[:12]} is {stored.standing}", as_json)


_HEADINGS = ("plan", "program", "device", "launch", "sizes", "standing", "µs", "default µs", "who")


def _row(one: Listed) -> tuple[str, ...]:
    from fuseplan.tuning_db.words import summary

    stored = one.stored
    texts = (
        stored.key[:12],
        one.program,
        stored.environment.gpu or stored.environment.cpu or stored.environment.device,
        stored.slot,
        stored.sizes.short or "-",
        stored.standing,
        "-" if stored.wall_us is None else f"{stored.wall_us:,.1f}",
        "-" if stored.best_default_us is None else f"{stored.best_default_us:,.1f} {stored.best_default}",
        summary(stored.plan),
    )
    return tuple(map(printable, texts))
