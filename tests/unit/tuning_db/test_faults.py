"""The k-th call of SQLite's fails, for every k: look-ups never raise, what was acknowledged is there, all rows are whole."""

from __future__ import annotations

import os
import shutil
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fuseplan.errors import StoreError
from fuseplan.tuning_db import Box, Hit, Miss
from fuseplan.tuning_db.exchange import export, import_file, merge
from fuseplan.tuning_db.files import Database
from fuseplan.tuning_db.upkeep import check
from stored import HERE, NVFUSER, PROGRAM, RELU, TRACE, fill, measurement, plan, question, store_at
from stored_rows import exported

CONNECT = sqlite3.connect
FAULTS = ("disk I/O error", "database is locked")
JOURNAL_GONE = "disk I/O error: the journal is gone"
CODES = {JOURNAL_GONE: 5898}
"""SQLITE_IOERR_DELETE_NOENT: what a reader gets who plays back a journal that another process deletes just then."""


class Faults:
    """Makes one call fail, before or after SQLite has done it."""

    def __init__(self, at: int, text: str, after: bool) -> None:
        self.at, self.text, self.after = at, text, after
        self.calls = 0

    @property
    def happened(self) -> bool:
        return self.calls >= self.at

    def around(self, call: Callable[[], Any]) -> Any:
        self.calls += 1
        if self.calls != self.at:
            return call()
        if self.after:
            call()
        error = sqlite3.OperationalError(self.text)
        error.sqlite_errorcode = CODES.get(self.text, 1)
        raise error


@contextmanager
def faults(at: int, text: str, after: bool) -> Iterator[Faults]:
    """All connections made meanwhile share the count."""
    shared = Faults(at, text, after)

    class Connection(sqlite3.Connection):
        def execute(self, *arguments: Any) -> Any:
            return shared.around(lambda: super(Connection, self).execute(*arguments))

        def backup(self, *arguments: Any, **more: Any) -> Any:
            return shared.around(lambda: super(Connection, self).backup(*arguments, **more))

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(sqlite3, "connect", lambda *a, **k: CONNECT(*a, **{**k, "factory": Connection}))
        yield shared


@pytest.fixture(params=FAULTS)
def text(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def every_call(work: Callable[[Faults, int], None], text: str, after: bool = False) -> int:
    """Let `work` meet a fault at its first call, at its second, and so on until none is left; return how many."""
    for at in range(1, 1000):
        with faults(at, text, after) as shared:
            work(shared, at)
        if not shared.happened:
            return at - 1
    raise AssertionError("it makes more calls than expected")


def test_lookups(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tuning.db"
    fill(store_at(path))

    def work(shared: Faults, _: int) -> None:
        store = store_at(path)
        found = store.find_plan(question())
        # A lock is waited for.
        assert isinstance(found, Miss if shared.happened and "locked" not in text else Hit)
        assert isinstance(found, Hit) or found.reason == "database unusable"
        store.find_measurements(RELU.key, HERE)
        store.find_default_timings(question().program, HERE)
        assert store.find_trace(PROGRAM) in (None, TRACE)
        assert store.traces(PROGRAM) in ([], [TRACE])
        store.plans()
        over = shared.happened
        assert isinstance(store.find_plan(question()), Hit) or not over

    assert every_call(work, text) > 10
    assert sorted(one.name for one in tmp_path.iterdir()) == ["tuning.db"]


def test_a_journal_that_another_process_deletes_keeps_no_lookup_up(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    fill(store_at(path))
    assert every_call(lambda *_: _hits(path), JOURNAL_GONE) > 5


def _hits(path: Path) -> None:
    assert isinstance(store_at(path).find_plan(question()), Hit)


def test_a_file_that_is_replaced_as_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one that gets its inode, so that it looks like the same."""
    path, tries = tmp_path / "tuning.db", []
    fill(store_at(path))

    def connect(*arguments: Any, **more: Any) -> Any:
        tries.append(arguments)
        if len(tries) == 1:
            raise sqlite3.OperationalError("unable to open database file")
        return CONNECT(*arguments, **more)

    monkeypatch.setattr(sqlite3, "connect", connect)
    _hits(path)
    assert len(tries) == 2


def test_a_file_that_is_cut_to_nothing_under_a_reader(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    fill(store_at(path))
    reader = store_at(path)
    assert isinstance(reader.find_plan(question()), Hit)
    os.truncate(path, 0)
    answer = reader.find_plan(question())
    assert isinstance(answer, Miss)
    assert answer.reason == "no such program"


def test_a_file_that_is_cut_to_nothing_under_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    writer = store_at(path)
    fill(writer)
    os.truncate(path, 0)
    assert writer.add_plan(plan())
    assert isinstance(store_at(path).find_plan(question()), Hit)


def test_what_is_asked_before_and_beside_a_lookup(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tuning.db"
    fill(store_at(path))
    store_at(path).add_plan(plan(sizes=Box.of({"s0": (1, 64)})))
    asked = question(sizes={"s0": 100})

    def work(shared: Faults, _: int) -> None:
        store = store_at(path)
        unknown = store.unknown(PROGRAM)
        assert unknown is None or unknown.reason == "database unusable"
        assert store.boxes(asked) in ([], [Box.of({"s0": (1, 64)})])
        assert store.program_names() in ({}, {PROGRAM: "GPT-2, 8×1024"})
        if shared.happened:
            assert store.unknown("00" * 32) == Miss("no such program", "no plan is stored for program 000000000000")

    assert every_call(work, text) > 10


@pytest.mark.parametrize(("new", "after"), [(True, False), (False, True)], ids=["new, before", "old, after"])
def test_records(tmp_path: Path, text: str, after: bool, new: bool) -> None:
    original = tmp_path / "original.db"
    store_at(original).add_plan(plan())

    def work(shared: Faults, at: int) -> None:
        path = tmp_path / f"{at}.db"
        if not new:
            shutil.copy(original, path)
        store = store_at(path)
        measured = store.add_measurement(RELU, measurement())
        planned = store.add_plan(plan(plan=NVFUSER, launch="cudagraph"))
        assert measured or planned  # one fault spoils one of them
        with faults(0, "", False):
            again = store_at(path)
            assert not measured or again.find_measurements(RELU.key, HERE) == (measurement(),)
            assert not planned or isinstance(again.find_plan(question(launch="cudagraph")), Hit)
            assert check(Database(path)) == []
        over = shared.happened
        assert (
            isinstance(store.find_plan(question(launch="cudagraph")), Hit) or not over
        )  # in memory, if not in the file

    assert every_call(work, text, after) > 15


@pytest.mark.parametrize("how", ["import", "merge"])
def test_imports_and_merges(tmp_path: Path, how: str) -> None:
    source = tmp_path / "source.db"
    fill(store_at(source))
    export(Database(source), tmp_path / "rows.jsonl")
    expected = exported(Database(source))

    def take(path: Path) -> None:
        report = merge(Database(path), source) if how == "merge" else import_file(
            Database(path), tmp_path / "rows.jsonl", trust="replay"
        )  # fmt: skip
        assert report.complete or how == "merge"

    def work(shared: Faults, at: int) -> None:
        path = tmp_path / f"{at}.db"
        failed = False
        try:
            take(path)
        except StoreError:
            failed = True
        with faults(0, "", False):
            if path.exists() and not failed and not shared.happened:
                assert exported(Database(path)) == expected
            if path.exists() and path.stat().st_size:
                assert check(Database(path)) == []
            take(path)
            assert exported(Database(path)) == expected

    assert every_call(work, FAULTS[0]) > 30
