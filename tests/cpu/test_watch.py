"""`fuseplan tune --queue --watch`: a service that tunes what waits while the device is idle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from fuseplan import watch as watching
from fuseplan.cli import main
from fuseplan.errors import ExecutorError, OptionError, StoreError
from fuseplan.measure import idle
from fuseplan.measure.idle import why_busy
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program.result import Tuned
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.traces import traces_of
from fuseplan.tuning_db import Places, Store
from fuseplan.watch import watch
from replaying import ReplayingPool

FUSEPLAN = (sys.executable, "-c", "from fuseplan.cli import main; main(prog_name='fuseplan')")


def waits(path: Path, number: int) -> str:
    """Put a program there that is like no other."""
    torch._dynamo.reset()

    def program(x: Tensor) -> Tensor:
        return (x * number).relu()

    (trace,) = traces_of(program, torch.ones(4), name=f"times {number}")
    store = Store(Places(path))
    assert store.add_program(trace.key, trace.name, trace=trace.to_json())
    store.close()
    return trace.key


@contextmanager
def replayed(device: str, effort: Effort) -> Iterator[ReplayingPool]:
    yield ReplayingPool(times={"eager": 900.0, "inductor": 300.0})


class EnoughError(Exception):
    """Nobody waits any longer."""


def heard(service: Iterator[Tuned]) -> list[Tuned]:
    """All verdicts until then."""
    found = []
    with suppress(EnoughError):
        for one in service:
            found.append(one)  # noqa: PERF402 -- what came before the end counts
    return found


class CrowdedError(ExecutorError):
    """Somebody else holds the device's memory."""


def test_one_that_finds_no_device_is_tried_again_and_ends_no_service(own_database: Path) -> None:
    first, pauses, opened = waits(own_database, 2), list[float](), list[str]()

    @contextmanager
    def crowded(device: str, effort: Effort) -> Iterator[ReplayingPool]:
        opened.append(device)
        if len(opened) == 1:
            raise CrowdedError("no worker process can be started")
        yield ReplayingPool(times={"eager": 900.0, "inductor": 300.0})

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise EnoughError

    service = watch(every_s=7.0, busy=lambda device: None, pause=pause, workers=crowded, progress=Silent())
    assert [one.program for one in heard(service)] == [first]
    assert len(opened) == 2


def test_one_that_never_finds_a_device_is_left(own_database: Path) -> None:
    waits(own_database, 2)
    pauses, opened = list[float](), list[str]()

    @contextmanager
    def crowded(device: str, effort: Effort) -> Iterator[ReplayingPool]:
        opened.append(device)
        raise CrowdedError("no worker process can be started")
        yield

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 6:
            raise EnoughError

    service = watch(every_s=7.0, busy=lambda device: None, pause=pause, workers=crowded, progress=Silent())
    assert heard(service) == []
    assert len(opened) == 3


def test_what_waits_for_a_busy_device_keeps_nobody_else_waiting() -> None:
    def item(name: str, *devices: str) -> Any:
        return SimpleNamespace(name=name, kind=SimpleNamespace(devices=devices))

    asked = list[str]()

    def busy(device: str) -> str | None:
        asked.append(device)
        return f"{device} is at work" if device in ("cuda:0", "cuda:1") else None

    items = [item("first", "cuda:0", "cuda:1"), item("second", "cuda:1"), item("third", "cuda:0", "cuda:2")]
    found, reason = watching._first_idle(items, busy)
    assert found is not None
    assert (found[0].name, found[1], reason, asked) == ("third", "cuda:2", "", ["cuda:0", "cuda:1", "cuda:2"])
    assert watching._first_idle(items[:2], busy) == (None, "first waits: cuda:0 is at work")
    assert watching._first_idle([], busy) == (None, "")


def test_what_comes_to_wait_is_tuned_while_nobody_else_is_at_work(own_database: Path) -> None:
    first = waits(own_database, 2)
    reasons, pauses, second = iter(["cpu is at work 90% of its time", None, None]), [], ""

    def pause(seconds: float) -> None:
        nonlocal second
        pauses.append(seconds)
        if len(pauses) == 2:  # the first is done
            second = waits(own_database, 3)
        if len(pauses) == 3:
            raise EnoughError

    service = watch(every_s=7.0, busy=lambda device: next(reasons), pause=pause, workers=replayed, progress=Silent())
    assert [one.program for one in heard(service)] == [first, second]
    assert pauses == [7.0] * 3


def test_what_fails_is_not_begun_again(own_database: Path) -> None:
    key = waits(own_database, 2)

    @contextmanager
    def failing(device: str, effort: Effort) -> Iterator[ReplayingPool]:
        yield ReplayingPool(bad={"eager": "crashed", "inductor": "crashed"})

    def pause(seconds: float) -> None:
        raise EnoughError

    verdicts = heard(watch(busy=lambda device: None, pause=pause, workers=failing, progress=Silent()))
    assert [(one.program, one.status) for one in verdicts] == [(key, "failed")]


def test_a_prediction_is_nothing_to_wait_for(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="a service measures, and effort none does not"):
        next(watch(effort="none"))
    with pytest.raises(StoreError, match="there is no file"):
        next(watch(db=tmp_path / "none.db"))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--watch"], "name a TRACE, or give --queue or --stale."),
        (["--watch", "a.json"], "--watch goes with --queue."),
        (["--queue", "--watch", "--top", "1"], "--top does not go with --watch, which has no end."),
        (["--queue", "--watch", "--dry-run"], "--dry-run does not go with --watch, which has no end."),
        (["--queue", "--watch", "--effort", "none"], "a service measures, and effort none does not"),
    ],
)
def test_a_wrong_call(words: list[str], complaint: str) -> None:
    ran = CliRunner().invoke(main, ["tune", *words])
    assert ran.exit_code == 2
    assert f"Error: {complaint}" in ran.stderr


def test_ctrl_c_ends_it(own_database: Path) -> None:
    Store(Places(own_database)).file.write(lambda connection: None)
    with subprocess.Popen(
        [*FUSEPLAN, "tune", "--queue", "--watch", "--json"], stderr=subprocess.PIPE, text=True, env=os.environ
    ) as service:
        assert service.stderr is not None
        assert service.stderr.readline().startswith("waiting for programs to tune")
        time.sleep(2.0)
        service.send_signal(signal.SIGINT)
        assert service.wait(60) == 130
        assert "interrupted" in service.stderr.read()


def test_a_device_is_idle_that_is_found_so_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = iter([0.0, 0.0, 0.3, 0.0])
    assert why_busy("cuda:1", lambda device: next(shares), 0.0) == "cuda:1 is at work 30% of its time"
    assert why_busy("cpu", lambda device: 0.2, 0.0) is None
    monkeypatch.setattr(idle, "_ticks", iter([(100, 1000), (175, 1100)]).__next__)
    assert idle._busy_cpu() == 0.75
    monkeypatch.undo()
    found = idle._busy_cpu()
    assert found is not None
    assert 0.0 <= found <= 1.0
