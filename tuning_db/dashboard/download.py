"""Tables as files: the rows that are shown, in their order, with numbers as they are."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from fuseplan.tuning_db.dashboard.table import Cell, ShownColumn

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@runtime_checkable
class HasTable(Protocol):
    """What a page has to hold for its table to be downloaded."""

    @property
    def columns(self) -> Sequence[ShownColumn[Any]]:
        """The columns of the table."""
        ...

    @property
    def rows(self) -> Sequence[Sequence[Cell]]:
        """All rows that are shown, on whatever page."""
        ...


def download(shown: HasTable, ending: str) -> tuple[bytes, str]:
    """The file and its media type."""
    if ending == "csv":
        return _csv(shown).encode("utf-8", "replace"), "text/csv; charset=utf-8"
    found = json.dumps(table_data(shown.columns, shown.rows), allow_nan=False, separators=(",", ":"))
    return found.encode("ascii"), "application/json"


def table_data(columns: Sequence[ShownColumn[Any]], rows: Sequence[Sequence[Cell]]) -> dict[str, Any]:
    """Columns, and rows as lists."""
    described = [{"id": column.id, "title": column.title, "kind": column.kind} for column in columns]
    return {"columns": described, "rows": rows}


def _csv(shown: HasTable) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([column.id for column in shown.columns])
    writer.writerows([[_safe(cell) for cell in row] for row in shown.rows])
    return out.getvalue()


def _safe(cell: Cell) -> Cell:
    """Text that a spreadsheet would run as a formula is marked as text: names come from others.

    >>> _safe("=HYPERLINK(1)"), _safe(-1.5)
    ("'=HYPERLINK(1)", -1.5)
    """
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
