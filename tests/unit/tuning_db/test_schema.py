"""The file itself: its schema, how it comes to be, and that every process may make it at once."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from fuseplan.tuning_db import Hit, Miss, schema
from fuseplan.tuning_db.files import Database, NotOurs
from fuseplan.tuning_db.migrations import MIGRATIONS, Objects, differences, migrate
from fuseplan.tuning_db.schema import ALL
from fuseplan.tuning_db.upkeep import check
from golden_database import GOLDEN
from stored import HERE, PROGRAM, RELU, fill, plan, question, store_at

MAKE = """
import sys
from pathlib import Path
from fuseplan.tuning_db.files import Database
Database(Path(sys.argv[1])).write(lambda connection: connection.execute("SELECT count(*) FROM plan").fetchone())
"""


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def test_a_new_file_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "tuning.db"
    assert store_at(path).add_plan(plan())
    assert rows(path, "PRAGMA application_id") == [(schema.APPLICATION_ID,)]
    assert rows(path, "PRAGMA user_version") == [(schema.VERSION,)]
    assert rows(path, "SELECT version FROM schema") == [(schema.VERSION,)]
    assert rows(path, "PRAGMA journal_mode") == [("delete",)]
    strict = rows(path, "SELECT name, strict FROM pragma_table_list WHERE type = 'table' AND schema = 'main'")
    assert [name for name, is_strict in strict if not is_strict] == ["sqlite_schema"]
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


def test_each_table_and_view_is_explained() -> None:
    assert set(schema.NOTES) == {*schema.TABLES, *schema.VIEWS}


def test_tables_as_python_knows_them_are_those_of_the_schema() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection)
    for table in ALL:
        there = [(name, kind) for _, name, kind, *_ in connection.execute(f"PRAGMA table_info({table.name})")]
        kinds = {"text": "TEXT", "integer": "INTEGER", "real": "REAL"}
        expected = [
            (table.stored(name), "INTEGER" if name in table.references else kinds[column.kind])
            for name, column in table.columns.items()
            if name in table.own
        ]
        assert there == [("id", "INTEGER"), *expected, ("digest", "BLOB")]


def test_twelve_processes_make_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    processes = [subprocess.Popen([sys.executable, "-c", MAKE, str(path)]) for _ in range(12)]
    assert [process.wait() for process in processes] == [0] * 12
    assert rows(path, "SELECT version FROM schema") == [(schema.VERSION,)]


@pytest.mark.parametrize("golden", sorted(GOLDEN.glob("*.sqlite3")), ids=lambda path: path.stem)
def test_a_file_of_each_released_schema_still_answers(golden: Path, tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    shutil.copy(golden, path)
    answer = store_at(path).find_plan(question())
    # After a release, old plans must stay readable: give Plan a new format, and teach from_json the old one. Before the
    # first release, `python tests/golden_database.py` writes the file anew.
    assert isinstance(answer, Hit), answer
    assert answer.plan.plan == plan().plan
    assert not isinstance(store_at(path).find_measurements(RELU.key, HERE), Miss)
    assert rows(path, "PRAGMA user_version") == [(schema.VERSION,)]
    assert check(Database(path)) == []


def test_there_is_a_file_of_every_released_schema() -> None:
    assert [path.stem for path in sorted(GOLDEN.glob("*.sqlite3"))] == [
        f"schema_{number}" for number in range(1, schema.VERSION + 1)
    ]


def test_the_schema_of_the_golden_file_is_the_present_one() -> None:
    connection = sqlite3.connect(f"file:{GOLDEN}/schema_{schema.VERSION}.sqlite3?mode=ro&immutable=1", uri=True)
    assert differences(Objects.of(connection)) == [], (
        "a released schema never changes: add a migration and a golden file"
    )


def test_an_older_file_is_brought_up_and_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    fill(store_at(path))
    connection = sqlite3.connect(path, isolation_level=None)
    migrate(connection, [*MIGRATIONS, lambda c: c.execute("ALTER TABLE program ADD COLUMN family TEXT") and None])
    assert rows(path, "SELECT version FROM schema") == [(schema.VERSION + 1,)]
    assert rows(path, "SELECT key, family FROM program WHERE name IS NOT NULL") == [(PROGRAM, None)]


UPGRADE = """
import sqlite3, sys
from fuseplan.tuning_db.migrations import MIGRATIONS, migrate
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)
migrate(connection, [*MIGRATIONS, lambda c: c.execute("ALTER TABLE program ADD COLUMN family TEXT") and None])
"""


def test_twelve_processes_bring_an_older_file_up_once(tmp_path: Path) -> None:
    """Twice would fail: the column is there then."""
    path = tmp_path / "tuning.db"
    fill(store_at(path))
    processes = [subprocess.Popen([sys.executable, "-c", UPGRADE, str(path)]) for _ in range(12)]
    assert [process.wait() for process in processes] == [0] * 12
    assert rows(path, "SELECT version FROM schema") == [(schema.VERSION + 1,)]
    assert rows(path, "SELECT count(*) FROM plan") == [(3,)]


def test_a_migration_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    fill(store_at(path))

    def broken(connection: sqlite3.Connection) -> None:
        connection.execute("DROP TABLE measurement")
        connection.execute("SELECT nonsense")

    with pytest.raises(sqlite3.OperationalError):
        migrate(sqlite3.connect(path, isolation_level=None), [*MIGRATIONS, broken])
    assert rows(path, "SELECT count(*) FROM measurement") == [(3,)]
    assert rows(path, "PRAGMA user_version") == [(schema.VERSION,)]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("PRAGMA user_version = 99", "newer fuseplan"),
        ("PRAGMA application_id = 7", "not a tuning database"),
    ],
)
def test_a_file_that_is_not_ours_is_never_touched(tmp_path: Path, change: str, why: str) -> None:
    path = tmp_path / "tuning.db"
    fill(store_at(path))
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(change)
    connection.close()
    before = path.read_bytes()
    store = store_at(path)
    with pytest.warns(UserWarning, match=why):
        assert store.find_plan(question()).reason == "database unusable"  # type: ignore[union-attr]
    with pytest.warns(UserWarning, match="kept in memory"):
        assert store.add_plan(plan()) is False
    assert store.find_plan(question()).layer == "memory"  # type: ignore[union-attr]
    assert path.read_bytes() == before
    with pytest.raises(NotOurs, match=why):
        Database(path).read(lambda connection: connection.execute("SELECT 1").fetchone())


def test_the_views_answer_what_people_ask(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    fill(store_at(path))
    assert rows(path, "SELECT program, device, plan_us, best_default, speedup FROM tuned_vs_default LIMIT 1") == [
        ("GPT-2, 8×1024", HERE.gpu, 100.0, "inductor", 1.5)
    ]
    assert rows(path, "SELECT region, device, device_us, executor, variant FROM slowest_regions") == [
        ("gelu, relu", "a CPU", 20.0, "inductor", "default"),
        ("relu", HERE.gpu, 12.5, "inductor", "default"),
    ]
    assert rows(path, "SELECT what, status, detail, subject FROM failures ORDER BY what") == [
        ("measurement", "timeout", "60 s", "relu"),
        ("plan", "quarantined", "illegal address", "GPT-2, 8×1024"),
    ]


@pytest.mark.parametrize("added", ["CREATE VIEW mine AS SELECT * FROM plan", "CREATE INDEX mine ON plan(wall_us)"])
def test_a_persons_own_views_and_indexes_are_welcome(tmp_path: Path, added: str) -> None:
    path = tmp_path / "tuning.db"
    store_at(path).add_plan(plan())
    sqlite3.connect(path, isolation_level=None).execute(added)
    assert store_at(path).find_plan(question()).layer == "user"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE measurement SET device_us = -1.0", "UPDATE measurement SET device_us = 9e99",
        "UPDATE measurement SET device_us = 9e999", "UPDATE plan SET wall_us = 'fast'",
        "UPDATE measurement SET device_us = NULL WHERE status = 'ok'", "UPDATE measurement SET status = 'fine'",
        "UPDATE plan SET status = 'best'", "UPDATE plan SET word = 'please'", "UPDATE plan SET program_id = 99",
        "UPDATE plan SET changed_at = 'yesterday'", "UPDATE environment SET gpu = NULL", "UPDATE plan SET key = 'x'",
        "UPDATE measurement SET digest = x'00'", "DELETE FROM run", "INSERT INTO schema SELECT 2, version, '', made_at FROM schema",
    ],
)  # fmt: skip
def test_the_schema_refuses_nonsense(tmp_path: Path, sql: str) -> None:
    path = tmp_path / "tuning.db"
    fill(store_at(path))
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA foreign_keys = ON")
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute(sql)
