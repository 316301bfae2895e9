"""What an earlier schema wrote, as a file, as an export or as somebody else's file: it comes out as if it were written today."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from fuseplan.tuning_db import Hit
from fuseplan.tuning_db.exchange.intake import import_file
from fuseplan.tuning_db.files import Database
from fuseplan.tuning_db.lookup import environments
from fuseplan.tuning_db.migrations import Objects, differences
from fuseplan.tuning_db.upkeep import check
from golden_database import GOLDEN
from stored import CPU, HERE, having, question, store_at

FILE, LINES = GOLDEN / "schema_1.sqlite3", GOLDEN / "schema_1.jsonl"
"""Both written at commit 4a9fd47, when the versions of Inductor and nvFuser were columns."""
KEYS = {json.loads(line)["row"]["key"] for line in LINES.read_text().splitlines() if '"table":"environment"' in line}


def held(path: Path) -> tuple[set[str], set[object]]:
    connection = sqlite3.connect(path)
    try:
        return set(environments(connection)), set(environments(connection).values())
    finally:
        connection.close()


def test_environments_keep_their_keys() -> None:
    assert {HERE.key, CPU.key} == KEYS
    assert having(HERE, toy="1").key not in KEYS
    assert having(HERE, toy="1").key != having(HERE, toy="2").key != having(HERE, toys="1").key


def test_a_file_is_brought_up_in_place(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    shutil.copy(FILE, path)
    assert isinstance(store_at(path).find_plan(question()), Hit)
    assert held(path) == (KEYS, {HERE, CPU})
    connection = sqlite3.connect(path)
    assert differences(Objects.of(connection)) == []
    assert connection.execute("SELECT executor, version FROM environment_executor ORDER BY version").fetchall() == [
        ("nvfuser", "0.2.36"), ("inductor", "2.11.0, triton 3.6"), ("inductor", "2.13.0"),
    ]  # fmt: skip
    connection.close()
    assert check(Database(path)) == []


@pytest.mark.parametrize("source", [FILE, LINES], ids=["file", "lines"])
def test_what_somebody_else_gives_is_taken(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    shutil.copy(source, tmp_path / source.name)
    report = import_file(Database(path), tmp_path / source.name, trust="replay")
    assert report.refused == []
    assert isinstance(store_at(path).find_plan(question()), Hit)
    assert held(path) == (KEYS, {HERE, CPU})


def test_a_row_that_was_damaged_before_stays_so(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    shutil.copy(FILE, path)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE environment SET torch = 'another' WHERE device = 'cpu'")
    connection.commit()
    connection.close()
    assert isinstance(store_at(path).find_plan(question()), Hit)
    assert [problem.table for problem in check(Database(path))] == ["environment"]


def test_a_line_that_was_changed_on_its_way_is_refused(tmp_path: Path) -> None:
    lines = LINES.read_text().replace('"inductor":"2.13.0"', '"inductor":"2.13.1"')
    (tmp_path / "rows.jsonl").write_text(lines)
    report = import_file(Database(tmp_path / "tuning.db"), tmp_path / "rows.jsonl")
    assert any("digest" in why for why in report.refused)
