"""How a row is written outside a database: one line of canonical JSON, with the digest that its holder vouches for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fuseplan.tuning_db.columns import Row
from fuseplan.tuning_db.schema import BY_NAME, VERSION
from fuseplan.tuning_db.tables import RowError, Table
from fuseplan.tuning_db.validate import checked

FORMAT = "fuseplan tuning rows"
MAX_LINE = 80 * 2**20

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False, check_circular=False).encode


def header() -> str:
    """The first line."""
    return _encode({"format": FORMAT, "schema": VERSION})


def check_header(line: str) -> None:
    """RowError unless these are rows that this fuseplan reads."""
    if not line:
        raise RowError("it is empty")
    found = _load(line)
    if found.get("format") != FORMAT:
        raise RowError("it does not begin like an export of fuseplan")
    if found.get("schema") not in range(1, VERSION + 1):
        raise RowError(f"it has schema {str(found.get('schema'))[:20]}, and this fuseplan reads 1 to {VERSION}")


def to_line(table: Table, row: Row) -> str:
    """A row as a line.

    >>> from fuseplan.tuning_db.schema import PROGRAM
    >>> row = {"key": "ab" * 32, "name": None, "changed_at": "2026-11-20T12:00:00.000Z"}
    >>> from_line(to_line(PROGRAM, row)) == (PROGRAM, row)
    True
    """
    return _encode({"table": table.name, "row": dict(row), "digest": table.digest(row).hex()})


def from_line(line: str) -> tuple[Table, Row]:
    """The row of a line, checked in all that can be told without the database; RowError if it is none."""
    found = _load(line)
    if set(found) != {"table", "row", "digest"}:
        raise RowError("a line has exactly the fields digest, row and table")
    table = BY_NAME.get(found["table"]) if isinstance(found["table"], str) else None
    if table is None or not isinstance(found["row"], dict):
        raise RowError(f"there is no table {str(found['table'])[:40]!r}")
    return table, checked(table, found["row"], found["digest"])


def _load(line: str) -> Mapping[str, Any]:
    try:
        found = json.loads(line, object_pairs_hook=_object, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RowError(f"it is no JSON: {str(error)[:100]}") from None
    if not isinstance(found, dict):
        raise RowError("a line must be an object")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field stands twice in one object")
    return found


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no number")
