"""What several verbs take: the file of the database, JSON instead of text, and keys that a shell completes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from fuseplan.errors import FuseplanError
from fuseplan.graph.words import printable

if TYPE_CHECKING:
    from fuseplan.tuning_db import Store

_WORD = re.compile(r"[\w.+:/@-]+")
_F = TypeVar("_F", bound=Callable[..., Any])


def database(verb: _F) -> _F:
    """--db, with the file as `file`."""
    option = click.option(
        "--db", "file", type=click.Path(path_type=Path), help="The file; else FUSEPLAN_DB, or the cache's."
    )
    return option(verb)


def look_into(file: Path | None) -> Store:
    """The store of a verb that only reads it."""
    from fuseplan.tuning_db import Store

    return Store.reading(os.environ, file)


def as_json(verb: _F) -> _F:
    """--json, as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(verb)


def examples(*lines: str) -> str:
    """The end of a verb's help: what a person would type."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def tell(
    data: Any, text: Callable[[], str | Iterable[str]], as_json: bool, *, indent: int | None = 2, err: bool = False
) -> None:
    """Print plain data as JSON; or, for a person, the text or the lines that are made of it, which others may have written."""
    if as_json:
        click.echo(json.dumps(data, indent=indent, allow_nan=False), err=err)
        return
    told = text()
    for line in told.split("\n") if isinstance(told, str) else told:
        click.echo(printable(line), err=err)


def keys(context: click.Context, parameter: click.Parameter, beginning: str) -> list[CompletionItem]:
    """Plans and programs whose key or name begins so, for a shell that completes; files it knows itself."""
    from fuseplan.tuning_db.words import listed

    try:
        store = look_into(context.params.get("file"))
        found = listed(store, beginning)
        store.close()
    except FuseplanError:
        return []
    items: dict[str, str] = {}
    for one in found:
        name = one.name or ""
        text = one.stored.key[:12] if one.stored.key.startswith(beginning) else name
        if _WORD.fullmatch(text):  # a shell would take another for several, or for something of its own
            items.setdefault(text, f"{one.program}, {one.stored.launch}, {one.stored.standing}")
    return [CompletionItem(text, help=told) for text, told in items.items()] or [CompletionItem(beginning, type="file")]
