"""Rows to what a person reads: the result file, and a table on the terminal."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from opinfo.verdict import Row

STATUSES = ("passed", "failed", "crashed", "not applicable")
CRITERION = (
    "Every case that passes with backend='aot_eager' passes with the backend under test. A case passes when outputs, "
    "inputs after the call and gradients have eager's dtypes, shapes and strides and eager's values to the bit, or are "
    "as close to a float64/complex128 run as eager is; and when outputs share memory as eager's do. aot_eager is run "
    "only for cases that do not pass, so that it can tell whose fault it is."
)


def read(path: Path) -> tuple[list[dict[str, Any]], list[Row]]:
    """A progress file's run headers and rows; a last line that a killed run left half-written is not a row."""
    headers, rows = [], []
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            told = json.loads(line)
            if "run" in told:
                headers.append(told["run"])
            else:
                rows.append(Row(**told))
    return headers, rows


def bad(rows: Iterable[Row]) -> list[Row]:
    """The rows that break the criterion."""
    return [row for row in rows if row.status in ("failed", "crashed")]


def result(headers: list[dict[str, Any]], rows: list[Row]) -> dict[str, Any]:
    """Everything that the result file holds."""
    return {
        "criterion": CRITERION,
        "settings": headers[0]["settings"],
        "environment": headers[0]["environment"],
        "commits": sorted({header["commit"] for header in headers}),
        "commands": sorted({header["command"] for header in headers}),
        "seconds": round(sum(row.seconds for row in rows)),
        "totals": {"cases": len(rows), **_counted(rows)},
        "by direction": _split(rows, lambda row: f"{row.direction}, {row.variant}"),
        "by dtype": _split(rows, lambda row: row.dtype),
        "not applicable": _reasons(row for row in rows if row.status == "not applicable"),
        "failures": [_line(row) for row in bad(rows)],
        "aot_eager fails too": [_line(row) for row in rows if row.reason.startswith("aot_eager fails too")],
        "ops": _split(rows, lambda row: row.op),
    }


def write(told: dict[str, Any], path: Path) -> None:
    """The result file: one line per entry of each table, so that two results can be compared line by line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(f" {json.dumps(key)}: {_block(value)}" for key, value in told.items()) + "\n}\n")


def show(told: dict[str, Any], console: Console) -> None:
    """The tables a person wants to see first."""
    table = Table("", *STATUSES, title=f"{told['totals']['cases']} OpInfo cases, {told['settings']}")
    for name, counts in [*told["by direction"].items(), *told["by dtype"].items(), ("all", told["totals"])]:
        table.add_row(name, *(str(counts.get(status, 0)) for status in STATUSES))
    console.print(table)
    reasons = Table("cases", "not applicable because", "for example")
    for reason, entry in told["not applicable"].items():
        reasons.add_row(str(entry["cases"]), reason, entry["example"][:100])
    console.print(reasons)
    for failure in told["failures"]:
        console.print(f"[red]{failure['status']}[/] {failure['case']} {failure['detail'][:200]}", highlight=False)


def _counted(rows: Iterable[Row]) -> dict[str, int]:
    counts = Counter(row.status for row in rows)
    return {status: counts[status] for status in STATUSES if counts[status]}


def _split(rows: Iterable[Row], label: Any) -> dict[str, dict[str, int]]:
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(label(row), []).append(row)
    return {name: _counted(parts[name]) for name in sorted(parts)}


def _reasons(rows: Iterable[Row]) -> dict[str, dict[str, Any]]:
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(row.reason, []).append(row)
    ranked = sorted(parts.items(), key=lambda part: (-len(part[1]), part[0]))
    return {
        reason: {"cases": len(members), "ops": len({row.op for row in members}), "example": _example(members[0])}
        for reason, members in ranked
    }


def _example(row: Row) -> str:
    return f"{_name(row)}: {row.detail[:160]}"


def _name(row: Row) -> str:
    return f"{row.op} {row.variant} {row.dtype} sample {row.sample} {row.direction}"


def _line(row: Row) -> dict[str, str]:
    return {"case": _name(row), "status": row.status, "detail": row.detail, "aot_eager": row.aot_eager}


def _block(value: Any) -> str:
    if isinstance(value, dict):
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items())
        return f"{{\n{lines}\n }}" if value else "{}"
    if isinstance(value, list):
        lines = ",\n".join(f"  {json.dumps(entry)}" for entry in value)
        return f"[\n{lines}\n ]" if value else "[]"
    return json.dumps(value)
