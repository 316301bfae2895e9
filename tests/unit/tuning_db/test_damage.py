"""Damaged rows and damaged files: never an error for the program, never a wrong plan, nothing good thrown away."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fuseplan.cli import main
from fuseplan.errors import StoreError
from fuseplan.tuning_db import Hit, Miss, Places, Store, repair
from fuseplan.tuning_db.columns import Row
from fuseplan.tuning_db.exchange import merge
from fuseplan.tuning_db.files import Busy, Database
from fuseplan.tuning_db.repair import set_aside
from fuseplan.tuning_db.schema import ALL
from fuseplan.tuning_db.tables import Table
from fuseplan.tuning_db.upkeep import check
from stored import HERE, NVFUSER, OTHER_PROGRAM, RELU, fill, measurement, plan, question, store_at

TESTS = str(Path(__file__).parents[2])


@contextmanager
def collected() -> Iterator[list[str]]:
    """The texts of all warnings."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    texts += [str(warning.message) for warning in caught]


def run_sql(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE plan SET wall_us = 1.0",
        "UPDATE plan SET status = 'default'",
        "UPDATE plan SET json = replace(json, 'inductor', 'eager')",
        "UPDATE plan SET sizes = 's0=1..2'",
        "UPDATE plan SET changed_at = '2026-11-20T12:00:00.001Z'",
        "UPDATE plan SET environment_id = 2",
        "UPDATE environment SET torch = '2.11.1' WHERE id = 1",
        "UPDATE plan SET json = CAST(x'ff' AS TEXT)",
        "UPDATE plan SET digest = zeroblob(16)",
    ],
)
def test_a_damaged_row_is_a_miss_and_others_are_not(tmp_path: Path, change: str) -> None:
    path = tmp_path / "tuning.db"
    store_at(path).add_plan(plan())
    store_at(path).add_plan(plan(program=OTHER_PROGRAM, environment=HERE))
    run_sql(path, "INSERT INTO environment SELECT 2, replace(key, substr(key, 1, 4), 'ffff'), device, gpu, gpu_sms,"
            " gpu_l2_mib, gpu_memory_gib, cpu, cpu_isa, cpu_threads, cpu_compiler, torch, cuda, matmul_precision,"
            " cudnn_tf32, fp16_reduction, bf16_reduction, candidates, protocol, digest"
            " FROM environment")  # fmt: skip
    run_sql(path, change if "UPDATE environment" in change else f"{change} WHERE id = 1")
    found = store_at(path).find_plan(question())
    assert isinstance(found, Miss)
    assert found.reason == "row damaged"
    if "UPDATE environment" not in change:
        assert isinstance(store_at(path).find_plan(question(program=OTHER_PROGRAM)), Hit)
    damaged = {(problem.table, problem.id) for problem in check(Database(path))}
    assert ("environment" if "UPDATE environment" in change else "plan", 1) in damaged


def test_a_program_whose_key_became_another_gives_no_wrong_plan(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    store_at(path).add_plan(plan())
    run_sql(path, f"UPDATE program SET key = '{OTHER_PROGRAM}'")
    found = store_at(path).find_plan(question(program=OTHER_PROGRAM))
    assert isinstance(found, Miss)
    assert found.reason == "row damaged"


def test_a_damaged_measurement_is_left_out(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tuning.db")
    store.add_measurements(RELU, [measurement(), measurement(executor="aten", device_us=99.0)])
    run_sql(tmp_path / "tuning.db", "UPDATE measurement SET device_us = 0.5 WHERE executor = 'aten'")
    assert store.find_measurements(RELU.key, HERE) == (measurement(),)
    assert [problem.what for problem in check(Database(tmp_path / "tuning.db"))] == [
        "its digest does not fit: it is damaged"
    ]


def header(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"garbage" * 10)


def truncated(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 4096 * 3)


def root_of_plan(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        page = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'plan'").fetchone()[0]
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xab" * 4096)


def trigger(path: Path) -> None:
    run_sql(path, "CREATE TRIGGER t AFTER INSERT ON measurement BEGIN DELETE FROM plan; END")


def view(path: Path) -> None:
    run_sql(
        path,
        "ALTER TABLE plan RENAME TO hidden",
        "CREATE VIEW plan AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT * FROM hidden, n",
    )


DAMAGES = [header, truncated, root_of_plan, trigger, view]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_file_is_set_aside(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = tmp_path / "tuning.db"
    fill(store_at(path))
    damage(path)
    damaged = path.read_bytes()
    other = store_at(path)
    with collected() as texts:
        store = store_at(path)
        start = time.monotonic()
        found = store.find_plan(question())
        measured = store.find_measurements(RELU.key, HERE)
        assert time.monotonic() - start < 10
        assert store.add_plan(plan(launch="cudagraph"))
        assert other.add_plan(plan(launch="cudagraph", plan=NVFUSER, wall_us=1.0))
    assert len(texts) == 1, texts
    assert "was damaged" in texts[0]
    aside = [one for one in tmp_path.iterdir() if "corrupt" in one.name]
    assert [one.read_bytes() for one in aside] == [damaged]
    assert isinstance(store.find_plan(question(launch="cudagraph")), Hit)
    if damage is trigger:
        assert isinstance(found, Hit)
    if damage in (trigger, view, root_of_plan):
        assert not isinstance(measured, Miss)
        assert len(measured) == 2
    assert check(Database(path)) == []


def verb(*words: str | Path, db: Path) -> Result:
    """As a person calls it, with no warning said besides."""
    with collected() as texts:
        told = CliRunner().invoke(main, [*map(str, words), "--db", str(db)])
    assert texts == []
    return told


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def filled(path: Path, measurements: int = 0) -> Path:
    store = store_at(path)
    fill(store)
    store.add_measurements(RELU, [measurement(variant=f"{number}") for number in range(measurements)])
    store.close()
    return path


def middle(path: Path) -> None:
    """A page of rows."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2 // 4096 * 4096)
        file.write(b"\xab" * 4096)


@pytest.mark.parametrize("damage", [*DAMAGES, middle], ids=lambda damage: damage.__name__)
def test_a_check_changes_nothing_and_a_repair_says_what_it_saved(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = filled(tmp_path / "tuning.db", measurements=500)
    held = 19 + 500
    damage(path)
    before = contents(tmp_path)
    found = verb("db", "check", db=path)
    assert found.exit_code == 1
    assert "fuseplan db check --repair would set the file aside and copy its good rows" in found.output
    assert json.loads(verb("db", "check", "--json", db=path).output)["problems"]
    assert contents(tmp_path) == before

    told = json.loads(verb("db", "check", "--repair", "--json", db=path).output)
    aside = Path(told["set_aside"]["path"])
    assert aside.read_bytes() == before["tuning.db"]
    assert sorted(contents(tmp_path)) == ["tuning.db", aside.name]
    assert told["problems"]
    assert told["left"] == []
    # What was overwritten or cut off is lost, and what was never touched is not.
    assert told["set_aside"]["saved"] == sum(store_at(path).file.read(rows_by_table).values())
    assert told["set_aside"]["saved"] == held or damage in (truncated, root_of_plan, view, middle)
    assert told["set_aside"]["saved"] > 0.5 * held
    assert verb("db", "check", db=path).output == "all is well\n"


def rows_by_table(connection: sqlite3.Connection) -> dict[str, int]:
    return {table.name: connection.execute(f"SELECT count(*) FROM {table.name}").fetchone()[0] for table in ALL}


def test_a_repair_in_words(tmp_path: Path) -> None:
    path = filled(tmp_path / "tuning.db")
    trigger(path)
    told = verb("db", "check", "--repair", db=path)
    (aside,) = {path.name for path in tmp_path.iterdir()} - {"tuning.db"}
    assert told.exit_code == 0
    assert told.output.splitlines() == [
        f"file: {path}: there is a trigger t",
        f"{path} was damaged. It is now {aside}, and 19 of its 19 rows were kept",
        "all is well now",
    ]


def test_a_file_of_which_nothing_is_left_is_kept_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "fuseplan" / "tuning.db"
    path.parent.mkdir()
    path.write_bytes(b"zero" * 5000)
    told = verb("db", "check", "--repair", db=path)
    assert told.exit_code == 0
    assert "0 good rows of it were kept" in told.output
    assert [content == b"zero" * 5000 for content in contents(path.parent).values()].count(True) == 1
    assert verb("db", "check", db=path).output == "all is well\n"


def test_a_repair_for_which_there_is_no_room_says_where_the_old_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = filled(tmp_path / "tuning.db")
    trigger(path)
    monkeypatch.setattr("fuseplan.tuning_db.repair.salvage", full)
    told = verb("db", "check", "--repair", db=path)
    (aside,) = tmp_path.iterdir()
    assert told.exit_code == 1
    assert f"fuseplan db merge --salvage {aside} looks for more" in told.output
    assert "No space left on device" in told.output


@pytest.mark.parametrize("table", [table.name for table in ALL])
def test_a_bad_row_of_any_table_is_deleted_with_what_refers_to_it(tmp_path: Path, table: str) -> None:
    path = filled(tmp_path / "tuning.db")
    connection = sqlite3.connect(path, isolation_level=None)
    changed = connection.execute(f"UPDATE {table} SET digest = zeroblob(16) WHERE id = (SELECT min(id) FROM {table})")
    connection.close()
    assert changed.rowcount == 1
    told = json.loads(verb("db", "check", "--repair", "--json", db=path).output)
    assert (len(told["problems"]), told["left"], told["set_aside"]) == (1, [], None)
    assert told["problems"][0]["table"] == table
    assert verb("db", "check", db=path).output == "all is well\n"


def test_a_salvage_that_breaks_off_says_what_it_has_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = filled(tmp_path / "tuning.db", measurements=1500)
    trigger(path)
    put, batches = repair._put, list[int]()

    def filling(batch: list[tuple[Table, Row]], into: Database) -> int:
        if batches:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        batches.append(put(batch, into))
        return batches[0]

    monkeypatch.setattr(repair, "_put", filling)
    told = json.loads(verb("db", "check", "--repair", "--json", db=path).output)
    (saved,) = batches
    assert told["set_aside"]["saved"] == saved == sum(store_at(path).file.read(rows_by_table).values())
    assert told["set_aside"]["held"] == 1519


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no sqlite_errorcode")
def test_a_write_that_was_cut_short_is_found_and_taken_back(tmp_path: Path) -> None:
    path = filled(tmp_path / "tuning.db")
    rows = store_at(path).file.read(rows_by_table)
    code = (
        "import os, sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "connection.execute('PRAGMA cache_size = 1')\n"
        "connection.execute('BEGIN IMMEDIATE')\n"
        "connection.execute('DELETE FROM plan')\n"
        "connection.execute('CREATE TABLE more (content)')\n"
        "connection.execute('INSERT INTO more SELECT zeroblob(4000) FROM measurement, measurement, measurement')\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    before = contents(tmp_path)
    found = verb("db", "check", db=path)
    assert (found.exit_code, contents(tmp_path)) == (1, before)
    assert "a write to it was cut short" in found.output
    assert found.output.endswith("1 problem: fuseplan db check --repair would take that write back\n")
    assert verb("db", "check", "--repair", db=path).output == "all is well\n"
    assert os.listdir(tmp_path) == ["tuning.db"]
    assert store_at(path).file.read(rows_by_table) == rows


READING: list[list[str]] = [
    ["show"], ["plan", "list"], ["plan", "show", "3f2c"], ["diff", "a", "b"], ["db", "info"], ["db", "prune", "--dry-run"],
    ["db", "export", "rows.jsonl"],
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_who_only_reads_a_damaged_file_says_so_and_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], damage: Callable[[Path], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = filled(tmp_path / "tuning.db")
    damage(path)
    before = contents(tmp_path)
    told = verb(*words, db=path)
    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr == (
        f"Error: {path} is damaged: fuseplan db check lists what is wrong, and with --repair keeps the good rows\n"
    )
    assert contents(tmp_path) == before


def test_a_store_that_only_reads_raises_where_another_finds_nothing(tmp_path: Path) -> None:
    path = filled(tmp_path / "tuning.db")
    root_of_plan(path)
    store = Store.reading({}, path)
    with pytest.raises(StoreError, match="is damaged"):
        store.find_plan(question())
    with pytest.raises(StoreError, match="is damaged"):
        store.plans()
    assert os.listdir(tmp_path) == ["tuning.db"]


def test_the_journal_goes_with_the_file(tmp_path: Path) -> None:
    path, journal = tmp_path / "tuning.db", tmp_path / "tuning.db-journal"
    fill(store_at(path))
    journal.write_bytes(b"left by a writer that died")
    found = path.stat()
    assert set_aside(path, (found.st_dev, found.st_ino + 1)) is None
    assert path.exists()
    aside = set_aside(path, (found.st_dev, found.st_ino))
    assert aside is not None
    assert sorted(os.listdir(tmp_path)) == [aside.name, f"{aside.name}-journal"]
    assert set_aside(path, (found.st_dev, found.st_ino)) is None


def test_nothing_is_set_aside_under_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tuning.db"
    fill(store_at(path))
    monkeypatch.setattr("fuseplan.tuning_db.repair._WAIT_S", 0.1)
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        found = path.stat()
        with pytest.raises(Busy):
            set_aside(path, (found.st_dev, found.st_ino))
        writer.execute("UPDATE run SET effort = 'quick'")
        writer.execute("COMMIT")
    assert os.listdir(tmp_path) == ["tuning.db"]


def test_a_killed_writer_leaves_a_file_that_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    store_at(path).add_plan(plan())
    code = (
        "import os, sys; sys.path[:0] = [sys.argv[2]]\n"
        "from pathlib import Path\nfrom stored import store_at, plan\n"
        "store = store_at(Path(sys.argv[1]))\n"
        "def die(connection):\n    connection.execute('DELETE FROM plan')\n    os._exit(0)\n"
        "store.file.write(die)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path), TESTS], check=True)
    assert store_at(path).find_plan(question()) == Hit(plan(), "user")


def test_what_salvage_could_not_finish_is_found_later(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    fill(store_at(path))
    trigger(path)
    with collected() as texts:
        store = Store(Places(path), salvage_s=0.0)
        assert isinstance(store.find_plan(question()), Miss)
    aside = next(one for one in tmp_path.iterdir() if "corrupt" in one.name)
    assert f"fuseplan db merge --salvage {aside}" in texts[0]
    assert merge(Database(path), aside).taken["plan"] == 3
    assert store.find_plan(question()).layer == "user"  # type: ignore[union-attr]


def test_a_file_named_by_mistake_stays_where_it_is(tmp_path: Path) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear Ada, " * 1000)
    with collected() as texts:
        store = store_at(letter)
        assert isinstance(store.find_plan(question()), Miss)
        assert store.add_plan(plan()) is False
    assert letter.read_text() == "Dear Ada, " * 1000
    assert os.listdir(tmp_path) == ["letter.txt"]
    assert any("not a tuning database" in text for text in texts)
    assert store.find_plan(question()) == Hit(plan(), "memory")


def test_a_damaged_file_of_a_read_only_layer_is_left_alone(tmp_path: Path) -> None:
    site = tmp_path / "site.db"
    fill(store_at(site))
    root_of_plan(site)
    before = site.read_bytes()
    store = Store(Places(tmp_path / "user.db", site))
    assert store.find_plan(question()).reason == "database unusable"  # type: ignore[union-attr]
    assert store.add_plan(plan())
    assert isinstance(store.find_plan(question()), Hit)
    assert site.read_bytes() == before


WRITER = """
import sys, warnings
sys.path[:0] = [sys.argv[2]]
warnings.simplefilter("ignore")
from pathlib import Path
from stored import RELU, measurement, store_at
store = store_at(Path(sys.argv[1]))
warnings.showwarning = lambda text, *rest: print(text, file=sys.stderr)
warnings.simplefilter("always")
for number in range(60):
    if store.add_measurement(RELU, measurement(variant=f"{sys.argv[3]} {number}")):
        print(f"{sys.argv[3]} {number}", flush=True)
"""


def test_writers_go_on_in_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    fill(store_at(path))
    names = ("first", "second", "third")
    told = [tmp_path / f"told by {name}" for name in names]
    writers = []
    for name, output in zip(names, told, strict=True):
        with output.open("w") as file:
            writers.append(subprocess.Popen([sys.executable, "-c", WRITER, str(path), TESTS, name], stdout=file))
    while not all(output.stat().st_size for output in told):
        time.sleep(0.01)
    for _ in range(3):
        time.sleep(0.05)
        trigger(path) if path.exists() else None
        with collected():
            store_at(path).find_plan(question())
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]
    acknowledged = [line for output in told for line in output.read_text().splitlines()]
    assert len(acknowledged) == 180
    with collected():
        found = store_at(path).find_measurements(RELU.key, HERE)
    assert not isinstance(found, Miss)
    assert set(acknowledged) <= {one.variant for one in found}
    assert len([one for one in tmp_path.iterdir() if "corrupt" in one.name]) >= 1
