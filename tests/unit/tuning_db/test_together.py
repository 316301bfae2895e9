"""Writes of several threads: together on the disk, each with its own error, and none lost."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fuseplan.errors import StoreError
from fuseplan.tuning_db import together as together_module
from fuseplan.tuning_db.files import Database, Unwritable
from fuseplan.tuning_db.together import Together, _Entry
from stored import PROGRAM, graph_of, measurement, store_at

GRAPHS = [graph_of("aten.relu.default", size=size) for size in range(1, 65)]


def named(name: str) -> Callable[[sqlite3.Connection], None]:
    def work(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO counter VALUES ('2026-11-20', ?, 1) ON CONFLICT DO NOTHING", (name,))

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
    while len(together._queue.waiting) < len(works) - 1:
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


def unencodable(connection: sqlite3.Connection) -> None:
    "\ud800".encode()


@pytest.mark.parametrize(
    "bad",
    [named("x" * 1000), unencodable, lambda connection: connection.execute("SELECT ?", (object(),))],
    ids=["refused by the schema", "no text", "no value"],
)
def test_what_one_hears_beside_others_is_what_it_hears_alone(bad: Callable[[Any], Any], tmp_path: Path) -> None:
    with pytest.raises(Unwritable) as alone:
        Together(Database(tmp_path / "a.db")).write(bad)
    (tmp_path / "a.db").unlink()
    database = Slow(tmp_path / "a.db")
    together = Together(database)
    heard = []

    def write() -> None:
        try:
            together.write(bad)
        except Unwritable as error:
            heard.append(str(error))

    at_once(
        together, database, [partial(together.write, named("first")), write, partial(together.write, named("last"))]
    )
    assert heard == [str(alone.value)]
    assert names(database) == ["first", "last"]


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


def test_an_interrupt_anywhere_loses_nothing_of_others(tmp_path: Path) -> None:
    """Ctrl-C at each line in turn of what writes for all, but where `with` gives a lock back, which no signal cuts short."""
    database = Database(tmp_path / "a.db")
    code = Path(together_module.__file__).read_text().splitlines()
    for stop in range(1, 200):
        together, steps = Together(database), 0
        others = [_Entry(named(f"{stop} b")), _Entry(named(f"{stop} c"))]  # whose threads wait for their turn
        together._queue.waiting.update(dict.fromkeys(others))

        def interrupt(frame: Any, event: str, _: Any, stop: int = stop) -> Any:
            nonlocal steps
            ours = frame.f_code.co_filename == together_module.__file__
            if ours and event == "line" and "with " not in code[frame.f_lineno - 1]:
                steps += 1
                if steps == stop:
                    raise KeyboardInterrupt
            return interrupt

        before = sys.gettrace()
        sys.settrace(interrupt)
        try:
            with suppress(KeyboardInterrupt):
                together.write(named(f"{stop} a"))
        finally:
            sys.settrace(before)
        together.write(named(f"{stop} again"))
        assert all(one.done and one.error is None for one in others)
        assert {f"{stop} {name}" for name in ("again", "b", "c")} <= set(names(database))
        if steps < stop:
            return
    pytest.fail("it does not end")


def test_a_signal_during_a_write_whose_handler_writes_is_told_so(tmp_path: Path) -> None:
    together = Together(Database(tmp_path / "a.db"))
    heard = []

    def handler(*_: object) -> None:
        try:
            together.write(named("inner"))
        except Unwritable as error:
            heard.append(str(error))

    def work(connection: sqlite3.Connection) -> None:
        named("outer")(connection)
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.01)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        together.write(work)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == [f"{tmp_path / 'a.db'}: a write cannot begin within another one of the same thread"]
    together.write(named("later"))
    assert names(Database(tmp_path / "a.db")) == ["later", "outer"]


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
    with together._queue.leading:
        child = os.fork()
        if child == 0:
            try:
                Together(Database(tmp_path / "a.db")).write(named("another"))
                together.write(named("child"))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    assert names(Database(tmp_path / "a.db")) == ["another", "before", "child"]
