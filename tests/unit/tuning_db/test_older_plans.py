"""The table of plans, made anew for their objectives: what a person added to a file stays, and one damaged row keeps out no other."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuseplan.tuning_db import Hit
from fuseplan.tuning_db.files import Database
from fuseplan.tuning_db.migrations import Objects, differences
from fuseplan.tuning_db.upkeep import check
from golden_database import GOLDEN
from stored import question, store_at

INDEX = "CREATE INDEX my_index ON plan(wall_us)"
VIEW = "CREATE VIEW mine AS SELECT key, wall_us FROM plan"
BROKEN = "CREATE VIEW odd AS SELECT x FROM nowhere"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of schema 5."""
    return shutil.copy(GOLDEN / "schema_5.sqlite3", tmp_path / "tuning.db")


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None)
    yield connection
    connection.close()


def test_what_a_person_added_stays(path: Path, connection: sqlite3.Connection) -> None:
    before = connection.execute("SELECT key, wall_us FROM plan ORDER BY key").fetchall()
    for sql in (INDEX, VIEW, BROKEN):
        connection.execute(sql)
    assert isinstance(store_at(path).find_plan(question()), Hit)
    assert differences(Objects.of(connection)) == []
    there = dict(connection.execute("SELECT name, sql FROM sqlite_schema"))
    assert [there.get(name) for name in ("my_index", "mine", "odd")] == [INDEX, VIEW, BROKEN]
    assert connection.execute("SELECT key, wall_us FROM mine ORDER BY key").fetchall() == before


def damage(connection: sqlite3.Connection, change: str) -> None:
    """Change one plan as a flipped bit may, whatever the schema says."""
    (strict,) = connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'plan'").fetchone()
    loose = strict.replace(") STRICT", ")").replace("NOT NULL", "")
    for sql in (loose, strict):
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'plan'", (sql,))
        connection.execute("PRAGMA writable_schema = RESET")
        if sql == loose:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            connection.execute("PRAGMA foreign_keys = OFF")
            connection.execute(f"UPDATE plan SET {change} WHERE id = (SELECT max(id) FROM plan)")


@pytest.mark.parametrize("change", ["detail = x'00ff'", "launch = NULL", "program_id = 99"])
def test_a_row_that_no_table_takes_is_left_out_and_told(
    change: str, path: Path, connection: sqlite3.Connection
) -> None:
    kept = connection.execute("SELECT key FROM plan WHERE id < (SELECT max(id) FROM plan) ORDER BY key").fetchall()
    damage(connection, change)
    with pytest.warns(UserWarning, match="1 damaged row of plans"):
        assert store_at(path).find_plan(question()) is not None
    assert connection.execute("SELECT key FROM plan ORDER BY key").fetchall() == kept
    assert differences(Objects.of(connection)) == []
    assert check(Database(path)) == []
