"""What tuning does in a thread of its own while workers are busy."""

from __future__ import annotations

import threading

import pytest

from fuseplan.tuning.meanwhile import Meanwhile


def test_it_passes_beside_what_asks_for_it() -> None:
    go = threading.Event()
    work = Meanwhile(lambda: go.wait(60), "waiting")
    go.set()
    assert work.result() is True
    assert work.result() is True


def test_what_it_raises_is_raised_where_its_result_is_wanted() -> None:
    def fail() -> None:
        raise KeyError("what is wanted")

    work = Meanwhile(fail, "failing")
    with pytest.raises(KeyError, match="what is wanted"):
        work.result()
