"""What of tuning failed lately: for which launch and sizes, until something since went well, and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fuseplan.tuning_db import Box, DefaultTiming, Run, Store, clock
from fuseplan.tuning_db.resume import failed_lately, failures
from stored import HERE, PROGRAM, store_at

SMALL, LARGE = Box.of({"s0": (1, 1024)}), Box.of({"s0": (1025, 2048)})
BOTH = ("quick", "full")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = store_at(tmp_path / "tuning.db")
    found.add_program(PROGRAM, "GPT-2", {})
    return found


def ran(
    store: Store, state: str, launch: str = "plain", sizes: Box = SMALL, effort: str = "quick", **whys: str
) -> None:
    """One run, and what became of the defaults: `eager="error"`."""
    run = Run(PROGRAM, HERE, effort=effort)
    store.add_run(run)
    for name, status in whys.items():
        store.add_default_timing(
            DefaultTiming(PROGRAM, HERE, name, launch, sizes, status, 1.0 if status == "ok" else None, run=run.key)
        )
    store.add_run(replace(run, state=state, changed_at=clock.now()))


def lately(store: Store, launch: str = "plain", sizes: Box = SMALL, efforts: tuple[str, ...] = BOTH) -> bool:
    return failed_lately(store, PROGRAM, HERE, launch, sizes, efforts) is not None


def test_each_launch_fails_by_itself(store: Store) -> None:
    ran(store, "failed", "plain", eager="error")
    ran(store, "finished", "cudagraph", inductor="ok")
    assert lately(store, "plain")
    assert not lately(store, "cudagraph")
    ran(store, "failed", "cudagraph", inductor="error")
    assert [one.launch for one in failures(store)] == ["cudagraph", "plain"]
    assert f"fuseplan tune {PROGRAM[:12]} --launch cudagraph --again" in str(failures(store)[0])
    ran(store, "finished", "plain", eager="ok")
    assert [one.launch for one in failures(store)] == ["cudagraph"]


def test_other_sizes_may_work(store: Store) -> None:
    ran(store, "failed", sizes=LARGE, inductor="out-of-memory")
    assert lately(store, sizes=LARGE)
    assert not lately(store, sizes=SMALL)
    ran(store, "finished", sizes=SMALL, inductor="ok")
    assert lately(store, sizes=LARGE)


def test_who_tries_less_need_not_try(store: Store) -> None:
    ran(store, "failed", effort="quick", eager="error")
    assert not lately(store, efforts=("full",))
    ran(store, "failed", effort="full", eager="error")
    assert lately(store, efforts=BOTH)
    assert lately(store, efforts=("full",))
    assert len(failures(store)) == 1


def test_a_run_that_came_to_nothing_counts_for_all(store: Store) -> None:
    ran(store, "failed")
    assert lately(store, "plain")
    assert lately(store, "cudagraph", LARGE)
    ran(store, "finished", inductor="ok")
    assert not failures(store)


@pytest.mark.parametrize(
    ("whys", "why"),
    [
        ({"inductor": "error", "eager": "crashed", "nvfuser-greedy": "refused"}, "inductor: error, "),
        ({"eager": "crashed", "nvfuser-greedy": "refused"}, "eager: crashed, "),
        ({"inductor": "ok", "nvfuser-greedy": "refused"}, "nvfuser-greedy: refused, "),
    ],
)
def test_why(store: Store, whys: dict[str, str], why: str) -> None:
    ran(store, "failed", **whys)
    (one,) = failures(store)
    assert one.why == why
