"""Rows of a query as dataclasses: each field says once what it is in SQL, and its type says how it is read."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from fuseplan.tuning_db.dashboard.queries.values import count, number, text

_T = TypeVar("_T")
_Read = Callable[[Any], Any]
NOT_READ: Mapping[str, Any] = {"not read": True}
"""Metadata of a field that no query reads."""


def sql(expression: str, read: _Read | None = None) -> Mapping[str, Any]:
    """Metadata of a field that is more than a column of its name; `read` makes it of what SQL gives, where its type does not
    say how.
    """
    return {"sql": expression, "read": read}


def select(kind: type[Any], table: str) -> str:
    """SELECT and what the fields of a dataclass are; those that do not say so are columns of this table."""
    read = (one for one in fields(kind) if one.metadata != NOT_READ)
    return f"SELECT {', '.join(one.metadata.get('sql') or f'{table}.{one.name}' for one in read)}"


def rows(
    connection: sqlite3.Connection, kind: type[_T], query: str, values: Mapping[str, object] | tuple[object, ...] = ()
) -> list[_T]:
    """All rows of a query that begins with `select` of this dataclass."""
    return [kind(**fields_) for fields_ in read_fields(connection, kind, query, values)]


def read_fields(
    connection: sqlite3.Connection, kind: Any, query: str, values: Mapping[str, object] | tuple[object, ...]
) -> Iterator[dict[str, Any]]:
    """The fields of each row by name, for whoever has more to add."""
    reads = _reads(kind)
    for row in connection.execute(query, values):
        yield {name: read(value) for (name, read), value in zip(reads, row, strict=True)}


@cache
def _reads(kind: Any) -> tuple[tuple[str, _Read], ...]:
    read = (one for one in fields(kind) if one.metadata != NOT_READ)
    return tuple((one.name, one.metadata.get("read") or _READS[str(one.type)]) for one in read)


_READS: Mapping[str, _Read] = {
    "str": text,
    "str | None": lambda value: text(value) or None,
    "int": count,
    "int | None": lambda value: count(value) or None,
    "float": number,  # None as well: whoever has such a field leaves out the rows without it
    "float | None": number,
    "bool": bool,
}
