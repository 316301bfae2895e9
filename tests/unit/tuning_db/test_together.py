"""Writes of several threads: together on the disk, each with its own error, and none lost."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from fuseplan.errors import StoreError
from fuseplan.tuning_db.files import Database, Unwritable
from fuseplan.tuning_db.together import Together
from stored import PROGRAM, graph_of, measurement, store_at

GRAPHS = [graph_of("aten.relu.default", size=size) for size in range(1, 65)]


def named(name: str) -> Callable[[sqlite3.Connection], None]:
    def work(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO counter VALUES ('2026-11-20', ?, 1)", (name,))

    return work


def names(database: Database) -> list[str]:
    return [name for (name,) in database.read(lambda c: c.execute("SELECT event FROM counter ORDER BY 1").fetchall())]


def in_threads(works: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def at_once(together: Together, database: Slow, works: list[Callable[[], None]]) -> None:
    """Have all come while the first is on its way to the disk."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    while len(together._waiting) < len(works) - 1:
        pass
    database.many.set()
    for thread in threads:
        thread.join()


class Slow(Database):
    """So slow that others come to wait; it counts its transactions."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.transactions = 0
        self.many = threading.Event()

    def write(self, work):  # type: ignore[no-untyped-def]
        self.many.wait(10)
        self.transactions += 1
        return super().write(work)


def test_what_waits_meanwhile_goes_with_the_next(tmp_path: Path) -> None:
    database = Slow(tmp_path / "a.db")
    together = Together(database)
    at_once(together, database, [partial(together.write, named(f"{i:02}")) for i in range(20)])
    assert names(database) == [f"{i:02}" for i in range(20)]
    assert database.transactions == 2


def test_the_work_that_fails_is_taken_back_alone_and_its_thread_hears_of_it(tmp_path: Path) -> None:
    database = Slow(tmp_path / "a.db")
    together = Together(database)
    heard: dict[int, BaseException] = {}

    def bad(connection: sqlite3.Connection) -> None:
        named("half")(connection)
        raise StoreError("planted")

    def write(number: int) -> None:
        try:
            together.write(bad if number % 4 == 1 else named(f"{number:02}"))
        except StoreError as error:
            heard[number] = error

    at_once(together, database, [partial(write, i) for i in range(12)])
    assert sorted(heard) == [1, 5, 9]
    assert names(database) == [f"{i:02}" for i in range(12) if i % 4 != 1]


def test_a_database_that_cannot_be_written_is_told_to_all(tmp_path: Path) -> None:
    class Broken(Database):
        def write(self, work):  # type: ignore[no-untyped-def]
            raise Unwritable("the disk is full")

    together = Together(Broken(tmp_path / "a.db"))
    heard = []

    def write() -> None:
        try:
            together.write(named("a"))
        except Unwritable as error:
            heard.append(str(error))

    in_threads([write] * 8)
    assert heard == ["the disk is full"] * 8


def test_what_interrupts_one_thread_leaves_the_work_of_the_others(tmp_path: Path) -> None:
    class Interrupted(Slow):
        def write(self, work):  # type: ignore[no-untyped-def]
            self.many.wait(10)
            self.transactions += 1
            if self.transactions == 1:
                raise KeyboardInterrupt
            return Database.write(self, work)

    database = Interrupted(tmp_path / "a.db")
    together = Together(database)
    interrupted = []

    def write(name: str) -> None:
        try:
            together.write(named(name))
        except KeyboardInterrupt:
            interrupted.append(name)

    at_once(together, database, [partial(write, f"{i}") for i in range(8)])
    assert len(interrupted) == 1
    assert names(database) == sorted({f"{i}" for i in range(8)} - set(interrupted))


def test_the_rows_of_many_threads_are_all_there(tmp_path: Path) -> None:
    store = store_at(tmp_path / "a.db")
    store.add_program(PROGRAM, "a program")
    done = []

    def write(part: int) -> None:
        done.extend(store.add_measurement(graph, measurement(graph)) for graph in GRAPHS[part::16])

    in_threads([lambda part=part: write(part) for part in range(16)])  # type: ignore[misc]
    assert done == [True] * len(GRAPHS)
    count = store.file.read(lambda connection: connection.execute("SELECT count(*) FROM measurement").fetchone()[0])
    assert count == len(GRAPHS)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_of_a_process_that_is_writing_can_write(tmp_path: Path) -> None:
    together = Together(Database(tmp_path / "a.db"))
    together.write(named("before"))
    with together._leading:
        child = os.fork()
        if child == 0:
            try:
                Together(Database(tmp_path / "a.db")).write(named("another"))
                together.write(named("child"))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    assert names(Database(tmp_path / "a.db")) == ["another", "before", "child"]
