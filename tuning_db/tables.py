"""Rows that can move between files: what identifies them, their digest, and how one replaces another.

Files merge as sets of logical rows: of two with one key the later wins, then the greater digest, so the order of merging is
nothing. Before the date counts what a table says is `first`. Of two traces the one that was called more often wins: the later may
have been written by somebody who did not count. Of two rows of one plan the one that has raced wins over one that was predicted.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TypeVar

from fuseplan.errors import StoreError
from fuseplan.tuning_db.columns import Column, Inner, Record, Row, Value, digest_of, to_object

_T = TypeVar("_T")
_WORD = re.compile(r"\w+")


class RowError(StoreError):
    """A row that cannot be taken into a database."""


@dataclass(frozen=True, eq=False)
class Table:
    """One table of logical rows."""

    name: str
    note: str
    """What it holds, for whoever looks at a file with a tool of theirs."""
    columns: Mapping[str, Column]
    """By name, in the order that the digest reads them."""
    record: type[Record] | None = None
    """What its rows are, where they are more than rows."""
    checks: tuple[str, ...] = ()
    """What SQL demands of a row as a whole."""
    first: str | None = None
    """SQL over its columns that counts more than the date: of two rows with one key, the one that has more of it wins."""

    @cached_property
    def keyed(self) -> bool:
        """Whether it has a column `key`. Rows without are what their digest says, and never replace each other."""
        return "key" in self.columns

    @cached_property
    def references(self) -> Mapping[str, str]:
        """Columns that mean a row of another table, and which."""
        return {name: column.refers for name, column in self.columns.items() if column.refers is not None}

    @cached_property
    def inner(self) -> Mapping[str, Inner]:
        """Columns that are rows of another table."""
        return {name: column.inner for name, column in self.columns.items() if column.inner is not None}

    @cached_property
    def create(self) -> str:
        """SQL that makes the table."""
        lines = (
            "id INTEGER PRIMARY KEY",
            *(self.columns[name].sql(self.stored(name)) for name in self.own),
            f"digest BLOB NOT NULL{'' if self.keyed else ' UNIQUE'} CHECK (length(digest) = 16)",
            *(f"CHECK ({check})" for check in self.checks),
        )
        body = ",\n    ".join(lines)
        return f"CREATE TABLE {self.name} (\n    {body}\n) STRICT"

    def digest(self, row: Row) -> bytes:
        """16 bytes that stand for all of a logical row, so that a flipped bit anywhere in it shows."""
        return digest_of([self.name, *[row[name] for name in self.columns]])

    @cached_property
    def own(self) -> tuple[str, ...]:
        """The logical columns that are columns of the table itself."""
        return tuple(name for name in self.columns if name not in self.inner)

    def read(self, name: str) -> str:
        """SQL that gives a logical column of a row of this table; a reference is the id of what it means."""
        if name not in self.inner:
            return f"{self.name}.{self.stored(name)}"
        inner = self.inner[name]
        return (
            f"(SELECT json_group_object({inner.name}, {inner.value}) FROM {inner.table}"
            f" WHERE {self.name}_id = {self.name}.id)"
        )

    def stored(self, name: str) -> str:
        """The name of a logical column in SQL."""
        return f"{name}_id" if name in self.references else name

    @cached_property
    def insert(self) -> str:
        """SQL that adds a row, or lets it replace an older one of its key."""
        if not self.keyed:
            return f"{self._insert} ON CONFLICT (digest) DO NOTHING"
        new, old = (", ".join(self._rank(prefix)) for prefix in ("excluded", self.name))
        return f"{self.replace} WHERE ({new}) > ({old})"

    def _rank(self, side: str) -> Iterator[str]:
        """SQL by which the new row (`excluded`) and the one in the table are compared."""
        if self.first is not None:
            yield _WORD.sub(lambda word: f"{side}.{word[0]}" if word[0] in self.columns else word[0], self.first)
        if "changed_at" in self.columns:
            yield f"{side}.changed_at"
        yield f"{side}.digest"

    @cached_property
    def replace(self) -> str:
        """SQL that puts a row in the place of whatever has its key or digest."""
        names = [*map(self.stored, self.own), "digest"]
        changes = ", ".join(f"{name} = excluded.{name}" for name in names)
        return f"{self._insert} ON CONFLICT ({'key' if self.keyed else 'digest'}) DO UPDATE SET {changes}"

    @cached_property
    def _insert(self) -> str:
        names = [*map(self.stored, self.own), "digest"]
        return f"INSERT INTO {self.name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"

    @cached_property
    def select(self) -> str:
        """SQL that reads rows with their references as keys, their digest last. It ends after FROM and its joins."""
        names = [f"{name}_.key" if name in self.references else self.read(name) for name in self.columns]
        joins = [
            f" LEFT JOIN {table} AS {name}_ ON {name}_.id = {self.name}.{name}_id"
            for name, table in self.references.items()
        ]
        return f"SELECT {', '.join(names)}, {self.name}.digest FROM {self.name}{''.join(joins)}"

    def logical(self, values: tuple[object, ...]) -> dict[str, Value] | None:
        """The row that `select` read, or None if it is not what was written."""
        row = dict(zip(self.columns, values, strict=False))
        try:
            good = self._is_written(row, values[-1])
            if self.inner and not good:  # SQLite may spell an object in another way than it was written
                row |= {name: to_object(dict(json.loads(row[name]))) for name in self.inner}  # type: ignore[arg-type]
                good = self._is_written(row, values[-1])
        except (TypeError, ValueError):
            return None
        return row if good else None  # type: ignore[return-value]

    def _is_written(self, row: Mapping[str, object], digest: object) -> bool:
        """Whether a row, with its columns in their order, is the one of this digest; TypeError for what is no Value."""
        return digest_of([self.name, *row.values()]) == digest  # type: ignore[list-item]

    def good(self, connection: sqlite3.Connection, rest: str = "", *values: object) -> list[dict[str, Value]]:
        """The rows that SQL finds with `rest` behind the FROM of `select`; damaged ones are left out."""
        found = map(self.logical, connection.execute(f"{self.select} {rest}", values).fetchall())
        return [row for row in found if row is not None]


class RowWriter:
    """Puts logical rows into one connection, within one transaction of its caller's."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._ids: dict[tuple[str, str], int] = {}

    def put(self, table: Table, row: Row) -> bool:
        """Add a row or let it replace an older one; say whether it did. RowError for what the schema refuses."""
        values = [self._id(table, name, row[name]) if name in table.references else row[name] for name in table.own]
        digest = table.digest(row)
        try:
            done = self._connection.execute(table.insert, (*values, digest)).rowcount > 0
            if not done and self.is_damaged(table, row["key"] if table.keyed else digest):
                done = self._connection.execute(table.replace, (*values, digest)).rowcount > 0
            if done:
                self._put_inner(table, row)
        except (sqlite3.IntegrityError, OverflowError) as error:
            raise RowError(f"{table.name}: {error}") from None
        return done

    def _put_inner(self, table: Table, row: Row) -> None:
        for column, inner in table.inner.items():
            owner = f"{table.name}_id"
            found = self._connection.execute(f"SELECT id FROM {table.name} WHERE key = ?", (row["key"],)).fetchone()
            self._connection.execute(f"DELETE FROM {inner.table} WHERE {owner} = ?", found)
            self._connection.executemany(
                f"INSERT INTO {inner.table} ({owner}, {inner.name}, {inner.value}) VALUES (?, ?, ?)",
                [(*found, *pair) for pair in json.loads(str(row[column])).items()],
            )

    def is_damaged(self, table: Table, identity: Value | bytes) -> bool:
        """Whether the row that stands in the way is not what was written: then it keeps nothing out."""
        column = "key" if table.keyed else "digest"
        # By its id: an index may still hold the good key of a row whose own is damaged.
        where = f"{table.name}.id = (SELECT id FROM {table.name} WHERE {column} = ?)"
        found = self._connection.execute(f"{table.select} WHERE {where}", (identity,)).fetchone()
        return found is not None and table.logical(found) is None

    def _id(self, table: Table, column: str, key: Value) -> int | None:
        if key is None:
            return None
        where = (table.references[column], str(key))
        if where not in self._ids:
            found = self._connection.execute(f"SELECT id FROM {where[0]} WHERE key = ?", (key,)).fetchone()
            if found is None:
                raise RowError(f"{table.name} refers to {column} {str(key)[:12]}, which is not there")
            self._ids[where] = found[0]
        return self._ids[where]


def batches(rows: Iterable[_T], most: int) -> Iterator[list[_T]]:
    """Lists of so many rows, in their order: each is put in one transaction."""
    left = iter(rows)
    while batch := list(islice(left, most)):
        yield batch


def put_all(writer: RowWriter, rows: list[tuple[Table, Row]]) -> int:
    """Put what the schema takes, and say how many rows that were: one that it refuses does not keep out the rest."""
    return sum(_taken(writer, table, row) for table, row in rows)


def _taken(writer: RowWriter, table: Table, row: Row) -> bool:
    try:
        return writer.put(table, row)
    except RowError:
        return False
