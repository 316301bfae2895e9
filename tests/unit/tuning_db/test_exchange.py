"""Export, import and merge: nothing changes on its way, in any order, and nothing bad gets in."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuseplan.errors import StoreError
from fuseplan.tuning_db import Box, Hit, Miss, schema
from fuseplan.tuning_db.columns import MAX_TRACE
from fuseplan.tuning_db.exchange import Bounds, Selection, export, import_file, import_lines, merge
from fuseplan.tuning_db.files import Database
from fuseplan.tuning_db.records import trace_key
from fuseplan.tuning_db.schema import PLAN
from fuseplan.tuning_db.upkeep import check
from stored import AT, CPU, HERE, INDUCTOR, NVFUSER, OTHER_PROGRAM, PROGRAM, TRACE, fill, plan, question, store_at
from stored_rows import Rows, contents, database_of, exported


@contextmanager
def folder() -> Iterator[Path]:
    """A folder for one example of Hypothesis."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@settings(max_examples=15)
@given(contents(), st.sampled_from([".jsonl", ".jsonl.gz"]))
def test_import_of_an_export_is_the_same(rows: Rows, suffix: str) -> None:
    with folder() as place:
        source = database_of(rows, place / "a.db")
        count = export(source, place / f"rows{suffix}").rows
        copy = Database(place / "b.db")
        report = import_file(copy, place / f"rows{suffix}", trust="replay")
        assert report.refused == []
        assert sum(report.taken.values()) == count
        assert exported(copy) == exported(source)
        assert check(copy) == []
        export(copy, place / f"again{suffix}")
        assert (place / f"again{suffix}").read_bytes() == (place / f"rows{suffix}").read_bytes()
        again = import_file(copy, place / f"rows{suffix}", trust="replay")
        assert (again.taken, again.known) == ({}, count)


@settings(max_examples=8)
@given(contents(), contents(), contents())
def test_merging_is_a_union(first: Rows, second: Rows, third: Rows) -> None:
    with folder() as place:
        paths = [place / f"{name}.db" for name in "abc"]
        for path, rows in zip(paths, (first, second, third), strict=True):
            database_of(rows, path).close()

        def merged(name: str, *order: int) -> list[str]:
            into = Database(place / f"{name}.db")
            for index in order:
                assert merge(into, paths[index]).refused == []
            return exported(into)

        everything = merged("abc1", 0, 1, 2)
        assert merged("cba", 2, 1, 0) == everything  # commutative
        assert merged("aabbcca", 0, 0, 1, 1, 2, 2, 0) == everything  # idempotent
        merged("bc", 1, 2)
        paths.append(place / "bc.db")
        assert merged("a(bc)", 0, 3) == everything  # associative
        assert merged("itself", 0) == exported(Database(paths[0]))


@settings(max_examples=10)
@given(contents(), contents())
def test_what_a_stranger_says_changes_no_plan_that_is_known_here(mine: Rows, theirs: Rows) -> None:
    with folder() as place:
        here = database_of(mine, place / "here.db")
        before = {line for line in exported(here) if '"table":"plan"' in line}
        export(database_of(theirs), place / "rows.jsonl")
        import_file(here, place / "rows.jsonl")
        after = {line for line in exported(here) if '"table":"plan"' in line}
        assert before <= after
        for line in after - before:
            row = json.loads(line)["row"]
            assert row["status"] in ("unverified", "quarantined")
            assert row["word"] is None


def test_a_stranger_replaces_no_trace_that_is_known_here(tmp_path: Path) -> None:
    """Else a later one, of another program, would keep all plans from being verified."""
    mine, theirs = store_at(tmp_path / "a.db"), store_at(tmp_path / "b.db")
    mine.add_program(PROGRAM, trace=TRACE)
    theirs.add_program(PROGRAM, trace=TRACE.replace("GPT-2", "GPT-3"))
    theirs.add_program(PROGRAM, trace=TRACE.replace("GPT-2", "GPT-3"), sizes=Box.of({"s0": (1, 64)}))
    export(theirs.file, tmp_path / "rows.jsonl")
    assert import_file(mine.file, tmp_path / "rows.jsonl").taken["trace"] == 1
    assert mine.find_trace(PROGRAM) == TRACE
    assert merge(mine.file, tmp_path / "b.db").taken["trace"] == 1  # of one's own files the later counts
    assert mine.traces(PROGRAM) == [TRACE.replace("GPT-2", "GPT-3")] * 2


def trace_line(**fields: object) -> str:
    """The line of a trace whose fields were tampered with, and whose digest was made to fit."""
    row = {
        "key": trace_key(PROGRAM, ""),
        "program": PROGRAM,
        "sizes": "",
        "json": TRACE,
        "calls": 0,
        "changed_at": AT,
        **fields,
    }
    return json.dumps({"table": "trace", "row": row, "digest": schema.TRACE.digest(row).hex()})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (trace_line(json="nonsense"), "not JSON"),
        (trace_line(json="[]"), "does not begin like a trace"),
        (trace_line(json="[" * 100_000), "nested too deep"),
        (trace_line(json=TRACE.replace("trace 1", "graph 1")), "does not begin like a trace"),
        (trace_line(json=TRACE.replace(PROGRAM, OTHER_PROGRAM)), "of another program"),
        (trace_line(json=TRACE.replace(":", ": ")), "not written as"),
        (trace_line(json=TRACE.replace('"GPT-2"', "1e999")), "out of range"),
        (trace_line(json=TRACE.replace('"GPT-2"', "NaN")), "trace: "),
        (trace_line(sizes="s0=1..4"), "its key is not"),
        (trace_line(sizes="s0=4..1"), "trace: "),
        (trace_line(json=TRACE.replace("GPT-2", "x" * (MAX_TRACE + 1))), "CHECK"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, line: str, why: str) -> None:
    source = store_at(tmp_path / "a.db")
    source.add_plan(plan())
    export(source.file, tmp_path / "rows.jsonl")
    text = (tmp_path / "rows.jsonl").read_text() + line + "\n"
    report = import_lines(Database(tmp_path / "b.db"), io.BytesIO(text.encode()))
    assert len(report.refused) == 1
    assert why in report.refused[0]
    assert store_at(tmp_path / "b.db").find_trace(PROGRAM) is None


def test_imported_plans_are_used_by_those_who_ask_or_trust(tmp_path: Path) -> None:
    export(database_of([]), tmp_path / "empty.jsonl")
    source = store_at(tmp_path / "a.db")
    source.add_plan(plan())
    export(Database(tmp_path / "a.db"), tmp_path / "rows.jsonl.gz")
    import_file(Database(tmp_path / "b.db"), tmp_path / "rows.jsonl.gz")
    store = store_at(tmp_path / "b.db")
    assert store.find_plan(question()).reason == "unverified"  # type: ignore[union-attr]
    assert isinstance(store.find_plan(question(unverified=True)), Hit)
    import_file(Database(tmp_path / "b.db"), tmp_path / "rows.jsonl.gz", trust="replay")
    import_file(Database(tmp_path / "c.db"), tmp_path / "rows.jsonl.gz", trust="replay")
    assert store_at(tmp_path / "c.db").find_plan(question()) == Hit(plan(), "user")


@pytest.mark.parametrize(
    ("selection", "tables"),
    [
        (Selection(program="abab"), {"plan": 2, "measurement": 2, "region": 1, "run": 1, "environment": 1, "graph": 1}),
        (Selection(program="GPT-2, 8×1024"), {"plan": 2, "default_timing": 1, "program": 1, "trace": 1}),
        (
            Selection(environment="a CPU"),
            {"plan": 1, "measurement": 1, "environment": 1, "region": 1, "run": None, "trace": None},
        ),
        (Selection(environment=HERE.key[:8]), {"plan": 2, "measurement": 2, "program": 1}),
        (Selection(since="2026-11-20T12:00:00.001Z"), {"run": 1, "plan": None, "measurement": None, "program": 1}),
    ],
)
def test_a_selection_takes_what_it_refers_to_along(
    tmp_path: Path, selection: Selection, tables: dict[str, int | None]
) -> None:
    fill(store_at(tmp_path / "a.db"))
    export(Database(tmp_path / "a.db"), tmp_path / "rows.jsonl", selection)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()[1:]]
    counted = {name: sum(row["table"] == name for row in rows) or None for name in tables}
    assert counted == tables
    copy = Database(tmp_path / "b.db")
    assert import_file(copy, tmp_path / "rows.jsonl").refused == []
    assert check(copy) == []


def test_a_selection_of_nothing_says_so(tmp_path: Path) -> None:
    fill(store_at(tmp_path / "a.db"))
    with pytest.raises(StoreError, match="there is no program 'nosuch' in it"):
        export(Database(tmp_path / "a.db"), tmp_path / "rows.jsonl", Selection(program="nosuch"))
    assert not list(tmp_path.glob("rows*"))


def changed(**fields: object) -> str:
    """The line of a plan whose fields were tampered with, and whose digest was made to fit."""
    row = {**plan().row(), **fields}
    return json.dumps({"table": "plan", "row": row, "digest": PLAN.digest(row).hex()})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("nonsense", "no JSON"),
        ("[1]", "must be an object"),
        ("[" * 100_000, "no JSON"),
        ('{"a":1,"a":2}', "twice"),
        ('{"table":"plan","row":{}}', "exactly the fields"),
        ('{"table":"sqlite_schema","row":{},"digest":""}', "no table"),
        ('{"table":["plan"],"row":{},"digest":""}', "no table"),
        ('{"table":"plan","row":{},"digest":""}', "missing or unknown"),
        (changed(wall_us=float("nan")), "NaN is no number"),
        (changed(wall_us=1), "no real"),
        (changed(wall_us=1e308), "CHECK"),
        (changed(wall_us=-1.0), "CHECK"),
        (changed(peak_bytes=True), "no integer"),
        (changed(peak_bytes=2**70), "too large"),
        (changed(json='{"format":2}'), "Plan misses"),
        (changed(json="[" * 100_000), "must be JSON"),
        (changed(json=" " + INDUCTOR.to_json()), "not written as"),
        (changed(json=NVFUSER.to_json()), "its key is not"),
        (changed(json=None), "json is no text"),
        (changed(evidence=None), "evidence is no text"),
        (changed(moves="[ ]"), "moves is not written as"),
        (changed(launch="cudagraph"), "its launch is not"),
        (changed(program="99" * 32), "its key is not"),
        (changed(status="best"), "CHECK"),
        (changed(detail="a\0b"), "no text"),
        (changed(best_default="\x1b[2J"), "do not print"),
        (changed(changed_at="9999-01-01T00:00:00.000Z"), "CHECK"),
        (changed(run="7" * 32), "run 7777"),
        (changed(extra=1), "missing or unknown"),
        (changed().replace('"wall_us": 100.0', '"wall_us": 10.0'), "changed on its way"),
    ],
)
def test_bad_lines_are_refused_one_by_one(tmp_path: Path, line: str, why: str) -> None:
    source = store_at(tmp_path / "a.db")
    source.add_plan(plan(plan=NVFUSER))
    export(Database(tmp_path / "a.db"), tmp_path / "rows.jsonl")
    good = (tmp_path / "rows.jsonl").read_text().splitlines()
    text = "\n".join([*good[:-1], line, good[-1]])
    into = Database(tmp_path / "b.db")
    report = import_lines(into, io.BytesIO(text.encode()), trust="replay")
    assert len(report.refused) == 1
    assert why in report.refused[0]
    assert store_at(tmp_path / "b.db").find_plan(question()) == Hit(plan(plan=NVFUSER), "user")
    assert check(into) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"{}",
        b'{"format":"fuseplan tuning rows","schema":99}\n',
        b"\x1f\x8b",
        b"\xff" * 99,
        b"SQLite format 3\0",
    ],
)
def test_what_is_no_export_is_one_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "rows").write_bytes(data)
    database = Database(tmp_path / "b.db")
    if data == b"\x1f\x8b":
        assert not import_file(database, tmp_path / "rows").taken
    else:
        with pytest.raises(StoreError, match="rows"):
            import_file(database, tmp_path / "rows")


def test_a_packed_file_that_is_cut_short_gives_what_is_there(tmp_path: Path) -> None:
    fill(store_at(tmp_path / "a.db"))
    export(Database(tmp_path / "a.db"), tmp_path / "rows.jsonl")
    text = (tmp_path / "rows.jsonl").read_bytes()
    (tmp_path / "cut.gz").write_bytes(gzip.compress(text)[:-100])
    report = import_file(Database(tmp_path / "b.db"), tmp_path / "cut.gz")
    assert any("cannot be unpacked" in line or "no JSON" in line for line in report.refused)
    assert check(Database(tmp_path / "b.db")) == []


HOSTILE = [
    "CREATE TRIGGER t AFTER INSERT ON plan BEGIN DELETE FROM plan; END",
    "ALTER TABLE plan RENAME TO hidden; CREATE VIEW plan AS SELECT * FROM hidden",
    "DROP TABLE plan; CREATE VIEW plan AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS id FROM n",
    "DROP TABLE measurement; CREATE TABLE measurement (id INTEGER PRIMARY KEY, region_id AS (zeroblob(1000000000))); INSERT INTO measurement(id) VALUES (1)",
    "UPDATE plan SET wall_us = 1.0",
    "UPDATE environment SET torch = '2.13.0'",
    "UPDATE plan SET environment_id = environment_id + 1",
]


@pytest.mark.parametrize("sql", HOSTILE)
def test_a_foreign_file_is_read_as_data(tmp_path: Path, sql: str) -> None:
    fill(store_at(tmp_path / "a.db"))
    connection = sqlite3.connect(tmp_path / "a.db")
    connection.executescript(sql)
    connection.commit()
    connection.close()
    before = (tmp_path / "a.db").read_bytes()
    into = Database(tmp_path / "b.db")
    report = import_file(into, tmp_path / "a.db", trust="replay", bounds=Bounds(5.0))
    assert check(into) == []
    assert (tmp_path / "a.db").read_bytes() == before
    found = store_at(tmp_path / "b.db").find_plan(question())
    if "TRIGGER" in sql:
        assert report.refused == []
        assert isinstance(found, Hit)
    else:
        assert report.refused
        assert "measurement" in sql or isinstance(found, Miss)


def test_a_merge_into_itself_and_other_mistakes(tmp_path: Path) -> None:
    fill(store_at(tmp_path / "a.db"))
    with pytest.raises(StoreError, match="into itself"):
        merge(Database(tmp_path / "a.db"), tmp_path / "a.db")
    with pytest.raises(StoreError, match="there is no file"):
        merge(Database(tmp_path / "a.db"), tmp_path / "none.db")
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE t (a)").connection.close()
    with pytest.raises(StoreError, match="not a tuning database"):
        merge(Database(tmp_path / "a.db"), tmp_path / "other.db")
    shutil.copy(tmp_path / "a.db", tmp_path / "newer.db")
    sqlite3.connect(tmp_path / "newer.db", isolation_level=None).execute("PRAGMA user_version = 9")
    with pytest.raises(StoreError, match="schema 9"):
        merge(Database(tmp_path / "a.db"), tmp_path / "newer.db")


def test_a_merge_of_two_machines_answers_both(tmp_path: Path) -> None:
    store_at(tmp_path / "a.db").add_plan(plan())
    store_at(tmp_path / "b.db").add_plan(plan(environment=CPU))
    assert merge(Database(tmp_path / "a.db"), tmp_path / "b.db").taken["plan"] == 1
    store = store_at(tmp_path / "a.db")
    assert isinstance(store.find_plan(question()), Hit)
    assert isinstance(store.find_plan(question(environment=CPU)), Hit)
