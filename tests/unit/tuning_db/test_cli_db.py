"""`fuseplan db …` as a person calls it."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fuseplan.cli import main
from fuseplan.tuning_db import Hit
from stored import HERE, NVFUSER, fill, plan, question, store_at


def db(*arguments: object, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, ["db", *map(str, arguments)], env=env)


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    fill(store_at(tmp_path / "a.db"))
    return tmp_path / "a.db"


def test_info(filled: Path) -> None:
    found = json.loads(db("info", "--db", filled, "--json").output)
    assert found["rows"]["measurement"] == 3
    assert found["plans"] == {"pinned": 1, "quarantined": 1, "tuned": 1}
    assert sorted(place["device"] for place in found["environments"]) == ["NVIDIA H200", "a CPU"]
    assert found["bytes"] == filled.stat().st_size
    text = db("info", env={"FUSEPLAN_DB": str(filled)})
    assert "3 measurement" in text.output
    assert "1 plan pinned" in text.output
    assert text.exit_code == 0


def test_out_and_in_again(filled: Path, tmp_path: Path) -> None:
    written = db("export", tmp_path / "rows.jsonl.gz", "--db", filled)
    assert written.exit_code == 0, written.output
    taken = db("import", tmp_path / "rows.jsonl.gz", "--db", tmp_path / "b.db", "--json")
    assert taken.exit_code == 0
    assert json.loads(taken.output)[str(tmp_path / "rows.jsonl.gz")]["taken"]["plan"] == 3
    assert store_at(tmp_path / "b.db").find_plan(question()).reason == "unverified"  # type: ignore[union-attr]
    merged = db("merge", filled, "--db", tmp_path / "c.db")
    assert merged.exit_code == 0
    assert "3 plan" in merged.output
    assert isinstance(store_at(tmp_path / "c.db").find_plan(question()), Hit)
    few = json.loads(db("export", tmp_path / "few.jsonl", "--db", filled, "--environment", "CPU", "--json").output)
    assert few["rows"] == 5


def test_check_finds_and_repairs(filled: Path) -> None:
    assert db("check", "--db", filled).output == "all is well\n"
    connection = sqlite3.connect(filled, isolation_level=None)
    connection.execute("UPDATE plan SET wall_us = 1.0 WHERE status = 'tuned' AND word IS NULL")
    connection.close()
    found = db("check", "--db", filled)
    assert found.exit_code == 1
    assert "its digest does not fit" in found.output
    assert store_at(filled).find_plan(question()).reason == "row damaged"  # type: ignore[union-attr]
    assert found.output.endswith("1 problem: fuseplan db check --repair would delete the bad rows\n")
    repaired = db("check", "--db", filled, "--repair")
    assert repaired.exit_code == 0
    assert repaired.output.endswith("1 bad row deleted\nall is well now\n")
    assert db("check", "--db", filled).output == db("check", "--db", filled, "--repair").output == "all is well\n"
    assert store_at(filled).find_plan(question()).reason == "quarantined"  # type: ignore[union-attr]


def test_prune_and_vacuum(filled: Path) -> None:
    store_at(filled).add_plan(plan(launch="cudagraph"))
    store_at(filled).add_plan(plan(plan=NVFUSER, launch="cudagraph", changed_at="2026-12-01T00:00:00.000Z"))
    assert json.loads(db("prune", "--db", filled, "--dry-run", "--json").output) == {"plan": 1}
    assert json.loads(db("prune", "--db", filled, "--json").output) == {"plan": 1}
    assert db("prune", "--db", filled).output == "deleted: nothing\n"
    gone = json.loads(db("prune", "--db", filled, "--environment", HERE.key[:8], "--json").output)
    assert gone["measurement"] == 2
    assert db("check", "--db", filled).exit_code == 0
    sizes = json.loads(db("vacuum", "--db", filled, "--json").output)
    assert sizes["bytes_after"] == filled.stat().st_size <= sizes["bytes_before"]
    pinned = store_at(filled).plans()
    assert [one.word for one in pinned] == ["pinned"]
    db("prune", "--db", filled, "--older-than", "0")
    assert store_at(filled).plans() == pinned


@pytest.mark.parametrize(
    "arguments",
    [
        ["info", "--db", "{tmp}/none.db"],
        ["check", "--db", "{tmp}/none.db"],
        ["vacuum", "--db", "{tmp}/none.db"],
        ["prune", "--db", "{tmp}/none.db"],
        ["info", "--db", "{tmp}/text"],
        ["import", "{tmp}/none.jsonl", "--db", "{tmp}/b.db"],
        ["import", "{tmp}/text", "--db", "{tmp}/b.db"],
        ["import", "{tmp}/a.db", "--db", "{tmp}/text/b.db"],
        ["merge", "{tmp}/a.db", "--db", "{tmp}/a.db"],
        ["export", "{tmp}/no folder/rows", "--db", "{tmp}/a.db"],
        ["export", "{tmp}/rows", "--db", "{tmp}/a.db", "--program", "nosuch"],
        ["export", "{tmp}/text/rows", "--db", "{tmp}/a.db"],
        ["prune", "--db", "{tmp}/a.db", "--environment", "zz"],
        ["import", "{tmp}/a.db", "--trust", "everyone"],
        ["export", "{tmp}/rows", "--since", "yesterday"],
        ["info", "--db", "{tmp}"],
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(filled: Path, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "text").write_text("not a database at all, " * 100)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    result = db(*(argument.format(tmp=tmp_path) for argument in arguments))
    assert result.exit_code == 2, result.output
    lines = result.output.strip().splitlines()
    assert lines[-1].startswith("Error: ")
    assert "Traceback" not in result.output
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path in before} == before


@pytest.mark.parametrize(
    "to", ["a.db", "{tmp}/a.db", "link.db", "hard.db", "./no/../a.db", "a.db-wal", "a.db-shm", "a.db-journal"]
)
@pytest.mark.parametrize("named", ["a.db", "{tmp}/link.db"])
def test_an_export_never_goes_over_the_database(
    filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no").mkdir()
    (tmp_path / "link.db").symlink_to(filled)
    (tmp_path / "hard.db").hardlink_to(filled)
    before, names = filled.read_bytes(), sorted(tmp_path.iterdir())
    result = db("export", to.format(tmp=tmp_path), "--db", named.format(tmp=tmp_path))
    assert result.exit_code == 2
    assert "is the database itself, or a part of it" in result.output
    assert len(result.output.splitlines()) == 1
    assert (filled.read_bytes(), sorted(tmp_path.iterdir())) == (before, names)


def test_an_export_spares_a_database_that_is_called_part(tmp_path: Path) -> None:
    fill(store_at(tmp_path / "rows.part"))
    assert db("export", tmp_path / "rows", "--db", tmp_path / "rows.part").exit_code == 0
    assert len(store_at(tmp_path / "rows.part").plans()) == 3


def test_a_pipe_is_imported(filled: Path, tmp_path: Path) -> None:
    db("export", tmp_path / "rows.jsonl", "--db", filled)
    os.mkfifo(tmp_path / "pipe")
    rows = (tmp_path / "rows.jsonl").read_bytes()
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=[rows], daemon=True)
    writer.start()
    result = db("import", tmp_path / "pipe", "--db", tmp_path / "b.db")
    writer.join(10)
    assert result.exit_code == 0, result.output
    assert len(store_at(tmp_path / "b.db").plans()) == 3


@pytest.mark.parametrize("bad", ["none", "text", "other.db"])
@pytest.mark.parametrize("verb", ["import", "merge"])
def test_of_several_files_none_is_taken_where_one_is_bad(filled: Path, tmp_path: Path, verb: str, bad: str) -> None:
    (tmp_path / "text").write_text("some notes\n")
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE t (a)").connection.close()
    result = db(verb, filled, tmp_path / bad, "--db", tmp_path / "b.db")
    assert result.exit_code == 2
    assert str(tmp_path / bad) in result.output
    assert len(result.output.splitlines()) == 1
    assert not (tmp_path / "b.db").exists()


def test_without_a_home_it_says_what_to_do() -> None:
    empty = {"HOME": "", "XDG_CACHE_HOME": "", "FUSEPLAN_DB": "", "USERPROFILE": ""}
    result = db("info", env=empty)
    assert result.exit_code == 2
    assert "set FUSEPLAN_DB" in result.output


def test_names_cannot_steer_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[2J.jsonl").write_text('{"format":"fuseplan tuning rows","schema":1}\n\x1b[31mred\n')
    result = db("import", tmp_path / "a\x1b[2J.jsonl", "--db", tmp_path / "b.db")
    assert result.exit_code == 1
    assert "\x1b" not in result.output


def test_an_export_says_what_stays_behind_and_an_import_brings_it_back(filled: Path, tmp_path: Path) -> None:
    rows, part = tmp_path / "rows.jsonl", tmp_path / "part.jsonl"
    assert db("export", rows, "--db", filled).exit_code == 0
    with closing(sqlite3.connect(filled)) as connection:
        connection.execute("UPDATE plan SET wall_us = wall_us + 1 WHERE id = 1")
        connection.commit()
    told = db("export", part, "--db", filled)
    assert told.exit_code == 1
    assert told.stderr == "1 damaged row left out: fuseplan db check lists them\n"
    assert len(part.read_text().splitlines()) == len(rows.read_text().splitlines()) - 1
    assert json.loads(db("export", part, "--db", filled, "--json").stdout)["damaged"] == 1
    assert "1 plan" in db("import", rows, "--db", filled).stdout
    assert db("check", "--db", filled).exit_code == 0


def test_an_empty_file_is_no_export(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    refused = db("import", tmp_path / "empty.jsonl", "--db", tmp_path / "a.db")
    assert refused.exit_code == 2
    assert refused.output.startswith(f"Error: {tmp_path / 'empty.jsonl'} is no export of fuseplan")
    assert not (tmp_path / "a.db").exists()
