"""What tuning does in a thread of its own while workers are busy, and the garbage collector meanwhile."""

from __future__ import annotations

import gc
import threading

import pytest

from fuseplan.garbage import no_collection
from fuseplan.tuning.program.background import Background


def test_it_passes_beside_what_asks_for_it() -> None:
    go = threading.Event()
    work = Background(lambda: go.wait(60), "waiting")
    go.set()
    assert work.result() is True
    assert work.result() is True


def test_what_it_raises_is_raised_where_its_result_is_wanted() -> None:
    def fail() -> None:
        raise KeyError("what is wanted")

    work = Background(fail, "failing")
    with pytest.raises(KeyError, match="what is wanted"):
        work.result()


def test_nothing_is_collected_until_the_last_of_several_threads_is_done() -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with no_collection():
            entered.set()
            leave.wait(60)

    work = Background(other, "solving")
    entered.wait(60)
    with no_collection():
        assert not gc.isenabled()
    assert not gc.isenabled()
    leave.set()
    work.result()
    assert gc.isenabled()
