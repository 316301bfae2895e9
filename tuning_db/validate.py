"""Whether a logical row that came from outside means something: what SQL's CHECKs cannot tell of it.

Types, what its key says it holds, and that plans, graphs and repeats are what they claim to be.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fuseplan.errors import FuseplanError
from fuseplan.graph import Graph
from fuseplan.graph.read_json import load_json
from fuseplan.tuning_db.columns import Column, Row, Value
from fuseplan.tuning_db.older import present, table_with
from fuseplan.tuning_db.records import trace_key
from fuseplan.tuning_db.sizes import Box
from fuseplan.tuning_db.tables import RowError, Table

_KINDS: dict[str, tuple[type, ...]] = {"text": (str,), "integer": (int,), "real": (float,)}


def checked(table: Table, given: Mapping[str, object], digest: object = None) -> Row:
    """The row as it is written now, if it is one of this table; RowError says what is wrong with it.

    A `digest` is the one that the row had where it comes from.
    """
    then = table_with(table, given)
    if set(given) != set(then.columns):
        odd = sorted(set(given) ^ set(table.columns))
        raise RowError(f"{table.name}: columns that are missing or unknown: {', '.join(odd)[:200]}")
    row: Row = {name: _value(table, name, column, given[name]) for name, column in then.columns.items()}
    if digest is not None and then.digest(row).hex() != digest:
        raise RowError(f"{table.name}: its digest does not fit: it was changed on its way")
    row = present(table, row)
    try:
        _check_meaning(table, row)
    except RowError:
        raise
    except FuseplanError as error:
        raise RowError(f"{table.name}: {str(error)[:300]}") from None
    return row


def _value(table: Table, name: str, column: Column, value: object) -> Value:
    if value is None and column.null:
        return None
    if type(value) not in _KINDS[column.kind]:
        raise RowError(f"{table.name}: {name} is no {column.kind}")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise RowError(f"{table.name}: {name} is not finite")
        return value + 0.0
    if isinstance(value, str):
        _plain(table, name, value)
    return value  # type: ignore[return-value]  # one of the kinds, as was just checked


def _plain(table: Table, name: str, text: str) -> None:
    if "\0" in text or not (text.isascii() or all(not "\ud800" <= letter <= "\udfff" for letter in text)):
        raise RowError(f"{table.name}: {name} holds what is no text")
    if name not in ("json", "moves", "detail") and not text.isprintable():
        raise RowError(f"{table.name}: {name} holds characters that do not print")


def _check_meaning(table: Table, row: Row) -> None:
    """RowError, or what reading it raises, unless the row is just what is written of the record that it describes."""
    if table.name in _MEANINGS:
        _MEANINGS[table.name](row)
    if table.record is None:
        return
    environment = _Known(row["environment"]) if "environment" in table.columns else None
    again = table.record.of(row, environment).row()
    for name, column in table.columns.items():
        if again[name] != row[name]:
            if column.field:
                raise RowError(f"{table.name}: {name} is not written as fuseplan writes it")
            raise RowError(f"{table.name}: its {name} is not that of what it holds")


@dataclass(frozen=True)
class _Known:
    """All that a row knows of its environment."""

    key: Value


def _graph(row: Row) -> None:
    graph = Graph.from_json(str(row["json"]))
    if graph.key != row["key"]:
        raise RowError("its key is not that of the graph it holds")
    if len(graph.ops) != row["ops"]:
        raise RowError("it does not hold as many ops as it says")


def _trace(row: Row) -> None:
    """Its form alone: what the calls mean is told where it is run, which needs torch."""
    text = str(row["json"])
    found = load_json(text)
    if not isinstance(found, dict) or not str(found.get("format")).startswith("fuseplan trace "):
        raise RowError("trace: it does not begin like a trace")
    if found.get("key") != row["program"]:
        raise RowError("trace: it is of another program")
    try:
        written = json.dumps(found, separators=(",", ":"))
    except RecursionError:  # it was shallow enough to be read, just so
        written = ""
    if written != text:
        raise RowError("trace: its JSON is not written as fuseplan writes it")
    Box.parse(str(row["sizes"]))
    if trace_key(row["program"], row["sizes"]) != row["key"]:
        raise RowError("trace: its key is not that of what it holds")


_MEANINGS: Mapping[str, Callable[[Row], None]] = {"trace": _trace, "graph": _graph, "region": _graph}
"""Of tables whose rows are no records."""
