"""Rows of a query as dataclasses: each field says once what it is in SQL, and its type says how it is read."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from fuseplan.tuning_db.dashboard.queries.values import count, number, text

_T = TypeVar("_T")
_Read = Callable[[Any], Any]


def sql(expression: str, read: _Read | None = None) -> Mapping[str, Any]:
    """Metadata of a field that is more than a column of its name; `read` makes it of what SQL gives, where its type does not
    say how.
    """
    return {"sql": expression, "read": read}


def select(kind: type[Any], table: str) -> str:
    """SELECT and what the fields of a dataclass are; those that do not say so are columns of this table."""
    return f"SELECT {', '.join(one.metadata.get('sql') or f'{table}.{one.name}' for one in fields(kind))}"


def rows(
    connection: sqlite3.Connection, kind: type[_T], query: str, values: Mapping[str, object] | tuple[object, ...] = ()
) -> list[_T]:
    """All rows of a query that begins with `select` of this dataclass."""
    anything: Any = kind
    reads = _reads(anything)
    found = connection.execute(query, values)
    return [kind(*(read(value) for read, value in zip(reads, row, strict=True))) for row in found]


@cache
def _reads(kind: Any) -> tuple[_Read, ...]:
    return tuple(one.metadata.get("read") or _READS[str(one.type)] for one in fields(kind))


_READS: Mapping[str, _Read] = {
    "str": text,
    "str | None": lambda value: text(value) or None,
    "int": count,
    "int | None": lambda value: count(value) or None,
    "float": number,  # None as well: whoever has such a field leaves out the rows without it
    "float | None": number,
    "bool": bool,
}
