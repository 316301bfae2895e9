"""Rows that can move between files: their columns, what identifies them, their digest, and how one replaces another.

A *logical* row maps column names to values, with references spelled as the key of the row they mean. Files merge as
sets of logical rows: of two with one key the later wins, then the greater digest, so the order of merging is nothing. Of
two traces the one that was called more often wins: the later may have been written by somebody who did not count.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b

from fuseplan.errors import StoreError

Value = str | int | float | None
Row = Mapping[str, Value]


class RowError(StoreError):
    """A row that cannot be taken into a database."""


@dataclass(frozen=True)
class Inner:
    """Rows of a table of their own that are part of one logical row: in it they are a JSON object from name to value."""

    table: str
    name: str
    value: str


@dataclass(frozen=True)
class Table:
    """One table of logical rows."""

    name: str
    columns: Mapping[str, str]
    """Name and kind (text, integer, real), in the order that the digest reads them."""
    references: Mapping[str, str] = field(default_factory=dict)
    """Columns that mean a row of another table, and which."""
    inner: Mapping[str, Inner] = field(default_factory=dict)
    """Columns that are rows of another table; only of a table that is keyed."""
    keyed: bool = False
    """Has a column `key`. Rows without are what their digest says, and never replace each other."""
    dated: bool = False
    """Of two rows with one key, the one with the later `changed_at` wins."""
    largest: str | None = None
    """A column that counts more than the date: of two rows with one key, the one that has more of it wins."""

    def digest(self, row: Row) -> bytes:
        """16 bytes that stand for all of a logical row, so that a flipped bit anywhere in it shows."""
        text = _encode([self.name, *(row[name] for name in self.columns)])
        return blake2b(text.encode("ascii"), digest_size=16).digest()

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
        order = [name for name in (self.largest, "changed_at" if self.dated else None, "digest") if name is not None]
        new, old = (", ".join(f"{prefix}.{name}" for name in order) for prefix in ("excluded", self.name))
        return f"{self.replace} WHERE ({new}) > ({old})"

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
            row |= {name: to_object(dict(json.loads(row[name]))) for name in self.inner}  # type: ignore[arg-type]
            good = self.digest(row) == values[-1]  # type: ignore[arg-type]  # what is no Value fails to encode
        except (TypeError, ValueError):
            return None
        return row if good else None  # type: ignore[return-value]


ENVIRONMENT = Table(
    "environment",
    {
        "key": "text", "device": "text", "gpu": "text", "gpu_sms": "integer", "gpu_l2_mib": "integer",
        "gpu_memory_gib": "integer", "cpu": "text", "cpu_isa": "text", "cpu_threads": "integer",
        "cpu_compiler": "text", "torch": "text", "cuda": "text", "matmul_precision": "text", "cudnn_tf32": "integer",
        "fp16_reduction": "integer", "bf16_reduction": "integer", "versions": "text", "candidates": "text",
        "protocol": "text",
    },
    inner={"versions": Inner("environment_executor", "executor", "version")},
    keyed=True,
)  # fmt: skip
PROGRAM = Table("program", {"key": "text", "name": "text", "changed_at": "text"}, keyed=True, dated=True)
TRACE = Table(
    "trace",
    {"key": "text", "program": "text", "sizes": "text", "json": "text", "calls": "integer", "changed_at": "text"},
    {"program": "program"},
    keyed=True,
    dated=True,
    largest="calls",
)
GRAPH = Table("graph", {"key": "text", "ops": "integer", "json": "text"}, keyed=True)
PROGRAM_GRAPH = Table(
    "program_graph",
    {"program": "text", "graph": "text", "role": "text"},
    {"program": "program", "graph": "graph"},
)
REGION = Table("region", {"key": "text", "title": "text", "ops": "integer", "json": "text"}, keyed=True)
GRAPH_REGION = Table(
    "graph_region",
    {"graph": "text", "region": "text", "times": "integer"},
    {"graph": "graph", "region": "region"},
)
RUN = Table(
    "run",
    {
        "key": "text", "program": "text", "environment": "text", "effort": "text", "seed": "integer", "state": "text",
        "fuseplan": "text", "host": "text", "driver": "text", "clocks": "text", "error_median": "real",
        "error_p90": "real", "audited": "integer", "audit_error": "real", "audit_within": "real", "started_at": "text", "changed_at": "text",
    },
    {"program": "program", "environment": "environment"},
    keyed=True,
    dated=True,
)  # fmt: skip
MEASUREMENT = Table(
    "measurement",
    {
        "region": "text", "environment": "text", "run": "text", "executor": "text", "variant": "text",
        "status": "text", "device_us": "real", "host_us": "real", "compile_s": "real", "peak_bytes": "integer",
        "repeats": "text", "detail": "text", "measured_at": "text", "predicted_us": "real", "spread": "real",
    },
    {"region": "region", "environment": "environment", "run": "run"},
)  # fmt: skip
DEFAULT_TIMING = Table(
    "default_timing",
    {
        "program": "text", "environment": "text", "run": "text", "name": "text", "launch": "text", "sizes": "text",
        "status": "text", "wall_us": "real", "device_us": "real", "host_us": "real", "peak_bytes": "integer",
        "repeats": "text", "detail": "text", "measured_at": "text",
    },
    {"program": "program", "environment": "environment", "run": "run"},
)  # fmt: skip
PLAN = Table(
    "plan",
    {
        "key": "text", "program": "text", "environment": "text", "run": "text", "launch": "text", "sizes": "text",
        "status": "text", "word": "text", "json": "text", "predicted_us": "real", "wall_us": "real",
        "device_us": "real", "host_us": "real", "noise_us": "real", "peak_bytes": "integer", "best_default": "text",
        "best_default_us": "real", "moves": "text", "evidence": "text", "detail": "text", "changed_at": "text",
    },
    {"program": "program", "environment": "environment", "run": "run"},
    keyed=True,
    dated=True,
)  # fmt: skip

ALL = (
    ENVIRONMENT, PROGRAM, TRACE, GRAPH, PROGRAM_GRAPH, REGION, GRAPH_REGION, RUN, MEASUREMENT, DEFAULT_TIMING, PLAN,
)  # fmt: skip
"""Each table after those that it refers to."""
BY_NAME = {table.name: table for table in ALL}

_encode = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode


def to_object(values: Mapping[str, str]) -> str:
    """The value of an inner column: its names in order.

    >>> to_object({"nvfuser": "0.2.36", "inductor": "2.11.0"})
    '{"inductor":"2.11.0","nvfuser":"0.2.36"}'
    """
    return _encode(dict(sorted(values.items())))


def content_key(table: str, values: tuple[Value, ...]) -> str:
    """The key of a row that is what it holds: 32 hex digits."""
    return blake2b(_encode([table, *values]).encode("ascii"), digest_size=16).hexdigest()


class Writer:
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


def put_all(writer: Writer, rows: list[tuple[Table, Row]]) -> int:
    """Put what the schema takes, and say how many rows that were: one that it refuses does not keep out the rest."""
    return sum(_taken(writer, table, row) for table, row in rows)


def _taken(writer: Writer, table: Table, row: Row) -> bool:
    try:
        return writer.put(table, row)
    except RowError:
        return False


def everything(connection: sqlite3.Connection) -> list[tuple[Table, Row]]:
    """All good rows of a small database, each after those that it refers to."""
    found = ((table, table.logical(values)) for table in ALL for values in connection.execute(table.select))
    return [(table, row) for table, row in found if row is not None]
