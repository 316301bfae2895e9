"""Columns of the database, each declared where its value is: on a field of a record. All else follows from that.

A column says what SQL lets into it, and how the value of a field is written there and read back. The order of a record's
fields is that of its columns, by which digests are made: a new field goes behind the last one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from hashlib import blake2b
from typing import Any, TypeVar

from fuseplan.errors import StoreError
from fuseplan.objective import Objective
from fuseplan.tuning_db.sizes import Box

Value = str | int | float | None
Row = Mapping[str, Value]
"""A *logical* row maps column names to values, with references spelled as the key of the row they mean."""
_R = TypeVar("_R", bound="Record")

STATUSES = ("ok", "refused", "compile-error", "error", "wrong", "timeout", "crashed", "out-of-memory")
"""Of a timing: what came of it. Only `ok` has a time that counts."""
PASSING = ("timeout", "crashed", "out-of-memory")
"""Of these, those that may be of what else the machine had to do."""
PLAN_STATUSES = ("tuned", "default", "unverified", "quarantined")
WORDS = ("pinned", "disabled")
"""What a person said about a plan; stands beside its status, so that taking it back leaves what was there."""
ROLES = ("inference", "forward", "backward")
COMPARISONS = ("faster", "same", "slower")
RUN_STATES = ("running", "finished", "interrupted", "failed")

MAX_GRAPH = 64 * 2**20
MAX_TRACE = 8 * 2**20
"""Characters of a trace; one of 10,000 calls takes about 3 million. A longer one is not kept."""
MAX_EVIDENCE = 4 * 2**20
"""Characters of the evidence for a plan: some ten thousand regions."""


@dataclass(frozen=True)
class Inner:
    """Rows of a table of their own that are part of one logical row: in it they are a JSON object from name to value."""

    table: str
    name: str
    value: str


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    kind: str = "text"
    """text, integer or real."""
    check: str = ""
    """What SQL demands of a value, where {} is the name of the column."""
    null: bool = False
    unique: bool = False
    default: str = ""
    """What SQL gives to a row that says nothing."""
    refers: str | None = None
    """The table of which it means a row."""
    inner: Inner | None = None
    """The rows of another table that it stands for; only in a table that is keyed."""
    name: str = ""
    """Its name, where that is not the field's."""
    field: str = ""
    """The field that it holds; none where it holds what a property of its name says, which follows from the fields."""
    write: Callable[[Any], Value] | None = None
    """Gives what is stored for a field that is no plain value; …"""
    read: Callable[[Any], Any] | None = None
    """… gives the field for what is stored, or raises FuseplanError."""

    def sql(self, name: str) -> str:
        """Its line in CREATE TABLE. A run may not go while there is something that it has measured."""
        kind = "INTEGER" if self.refers else self.kind.upper()
        cascade = "" if self.refers == "run" else " ON DELETE CASCADE"
        words = (
            name,
            kind,
            "" if self.null else "NOT NULL",
            "UNIQUE" if self.unique else "",
            f"DEFAULT {self.default}" if self.default else "",
            f"REFERENCES {self.refers}(id){cascade}" if self.refers else "",
            f"CHECK ({self.check.replace('{}', name)})" if self.check else "",
        )
        return " ".join(word for word in words if word)

    def written(self, name: str, value: Any) -> Value:
        """What is stored for the value of a field; StoreError for a number that is none."""
        if value is None:
            return None
        if self.write is not None:
            return self.write(value)
        if self.kind == "real":
            if not math.isfinite(value):
                raise StoreError(f"{name} is {value}, which is no time")
            return float(value) + 0.0  # minus zero would come back as zero, and its digest would not fit
        stored: Value = value
        return stored


def key(length: int = 64) -> Column:
    """The column of a key of so many hex digits."""
    return Column(check=f"length({{}}) = {length} AND {{}} NOT GLOB '*[^0-9a-f]*'", unique=True)


def text(most: int, null: bool = False, default: str = "") -> Column:
    """A column of at most so many characters."""
    return Column(check=f"length({{}}) <= {most}", null=null, default=default)


def one_of(words: tuple[str, ...]) -> Column:
    """A column that holds one of these words."""
    return Column(check=f"{{}} IN ({', '.join(map(repr, words))})")


def reference(table: str) -> Column:
    """A column that means a row of another table."""
    return Column(refers=table)


PLAN_KEY = replace(key(32), unique=False)
INTEGER = Column("integer")
COUNT = Column("integer", "{} >= 0")
COUNT_FROM_0 = Column("integer", "{} >= 0", default="0")
FLAG = Column("integer", "{} IN (0, 1)")
TIME = Column("real", "{} >= 0 AND {} < 1e14")
"""A year of microseconds is 3.2e13: whatever is longer, or negative, is no time."""
SHARE = Column("real", "{} BETWEEN 0 AND 1")
ERROR = Column("real", "{} >= 0")
_TWO, _THREE = "[0-9]" * 2, "[0-9]" * 3
MOMENT = Column(
    check=f"{{}} GLOB '20{_TWO}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9].{_THREE}Z'",
)
SIZES = replace(text(2000), write=lambda box: box.text, read=Box.parse)
OBJECTIVE = replace(text(40, default="'time'"), write=str, read=Objective.parse)
DETAIL = text(4000)
ENVIRONMENT_OF = replace(reference("environment"), write=lambda environment: environment.key)
"""Of which a logical row knows no more than the key: whoever reads a record gives it the environment."""


def json_of(kind: Any, most: int, name: str = "", default: str = "") -> Column:
    """A column with the JSON of a class that has `to_json` and `from_json`."""
    column = text(most, default=default)
    return replace(column, name=name, write=lambda value: value.to_json(), read=kind.from_json)


def stored(column: Column, **before: Column) -> Mapping[str, Any]:
    """Metadata of a field of a record: its column, and those before it that hold what a property of their name says."""
    return {"column": column, "before": before}


@cache
def columns_of(record: type[Any]) -> Mapping[str, Column]:
    """The columns of a record by name, in their order. A field that may be None is one that may be NULL."""
    found: dict[str, Column] = {}
    for one in fields(record):
        column: Column = one.metadata["column"]
        found |= one.metadata["before"]
        found[column.name or one.name] = replace(column, field=one.name, null=str(one.type).endswith("None"))
    return found


@cache
def _read_columns(record: Any) -> tuple[tuple[str, Column], ...]:
    """The columns of a record of which the row does not hold just the field."""
    return tuple(
        (name, column) for name, column in columns_of(record).items() if column.field != name or column.read is not None
    )


class Record:
    """A dataclass that is a row of a table: each of its fields has a column."""

    def row(self) -> dict[str, Value]:
        """The record as a logical row."""
        kind: Any = type(self)
        columns = columns_of(kind).items()
        return {name: column.written(name, getattr(self, column.field or name)) for name, column in columns}

    @classmethod
    def of(cls: type[_R], row: Row, environment: object = None) -> _R:
        """The record that a logical row describes; FuseplanError where what is stored for a field is none."""
        kind: Any = cls
        values: dict[str, Any] = dict(row)
        for name, column in _read_columns(kind):
            value = values.pop(name)
            if column.field:
                values[column.field] = value if column.read is None or value is None else column.read(value)
        if environment is not None:
            values["environment"] = environment
        found: _R = kind(**values)
        return found


_encode = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode


def to_object(values: Mapping[str, str]) -> str:
    """The value of an inner column: its names in order.

    >>> to_object({"nvfuser": "0.2.36", "inductor": "2.11.0"})
    '{"inductor":"2.11.0","nvfuser":"0.2.36"}'
    """
    return _encode(dict(sorted(values.items())))


def content_key(table: str, values: tuple[Value, ...]) -> str:
    """The key of a row that is what it holds: 32 hex digits."""
    return digest_of([table, *values]).hex()


def digest_of(values: list[Value]) -> bytes:
    """16 bytes that stand for all of these values."""
    return blake2b(_encode(values).encode("ascii"), digest_size=16).digest()
