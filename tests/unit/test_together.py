"""Processes that share a GPU in a benchmark: what is timed has it to itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep

import pytest

from benchmarks.together import ASKS, Sharing, asked_no_more, running, undisturbed

ROOT = Path(__file__).parents[2]
LINUX = pytest.mark.skipif(
    not sys.platform.startswith("linux"),
    reason="GPUs are shared on Linux alone, where /proc tells who has started whom",
)
HANGS = """
import time
from benchmarks.together import undisturbed
with undisturbed():
    time.sleep(99)
"""
WORKS = """
import sys, time
from pathlib import Path
while not Path(sys.argv[2]).exists():
    with open(sys.argv[1], "a") as file:
        file.write(f"{time.monotonic()}\\n")
    time.sleep(0.01)
"""
STARTS = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {WORKS!r}, *sys.argv[1:]])
"""
TIMES = """
import sys, time
from pathlib import Path
from benchmarks.together import undisturbed
for _ in range(2):
    with undisturbed(), undisturbed():
        begin = time.monotonic()
        time.sleep(0.4)
        with open(sys.argv[1], "a") as file:
            file.write(f"{begin} {time.monotonic()}\\n")
"""


def start(script: str, asks: Path, *args: Path) -> subprocess.Popen[bytes]:
    variables = {**os.environ, ASKS: str(asks), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, args)], env=variables, cwd=ROOT, start_new_session=True
    )


@contextmanager
def ended(*processes: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        for one in processes:
            if one.poll() is None:
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()


def wait_for(file: Path) -> None:
    until = monotonic() + 60
    while not file.exists():
        assert monotonic() < until, f"nobody has written {file.name}"
        sleep(0.01)


def spans(file: Path) -> list[tuple[float, float]]:
    return [(float(begin), float(end)) for begin, end in map(str.split, file.read_text().splitlines())]


@LINUX
def test_what_is_timed_stops_all_others_of_its_gpu_and_no_other(tmp_path: Path) -> None:
    over, ticks, timed = tmp_path / "over", [tmp_path / f"ticks{i}" for i in range(3)], tmp_path / "timed"
    with Sharing() as sharing:
        beside = [
            start(script, tmp_path / f"asks{i}", ticks[i], over) for i, script in enumerate((WORKS, STARTS, WORKS))
        ]
        with ended(*beside):
            for file in ticks:
                wait_for(file)
            times = [start(TIMES, tmp_path / f"asks{i}", timed.with_name(f"timed{i}")) for i in (8, 9)]
            with ended(*times):
                for gpu, one, number in (("0", beside[0], 0), ("0", beside[1], 1), ("1", beside[2], 2)):
                    sharing.joined(gpu, one.pid, tmp_path / f"asks{number}")
                for one, number in zip(times, (8, 9), strict=True):
                    sharing.joined("0", one.pid, tmp_path / f"asks{number}")
                assert [one.wait(60) for one in times] == [0, 0]
                for one in times:
                    sharing.left("0", one.pid)
            sleep(0.1)
            over.touch()
            assert [one.wait(60) for one in beside] == [0, 0, 0]
    alone = sorted([*spans(timed.with_name("timed8")), *spans(timed.with_name("timed9"))])
    assert len(alone) == 4
    assert all(end <= begin for (_, end), (begin, _) in pairwise(alone)), "one after the other"
    for number, file in enumerate(ticks):
        seen = [float(line) for line in file.read_text().splitlines()]
        inside = [tick for tick in seen for begin, end in alone if begin < tick < end]
        assert bool(inside) == (number == 2), "who shares no GPU goes on"
        assert seen[-1] > alone[-1][1], "and all go on afterwards"


@contextmanager
def one_alone(folder: Path, works: str) -> Iterator[tuple[Sharing, subprocess.Popen[bytes], subprocess.Popen[bytes]]]:
    """A process that works, which is stopped, and another for which it is."""
    with Sharing() as sharing:
        beside = start(works, folder / "asks0", folder / "ticks", folder / "over")
        alone = start(HANGS, folder / "asks1")
        with ended(beside, alone):
            wait_for(folder / "ticks")
            sharing.joined(None, beside.pid, folder / "asks0")
            sharing.joined(None, alone.pid, folder / "asks1")
            wait_for(folder / "asks1-answer")
            yield sharing, beside, alone
            (folder / "over").touch()


@LINUX
def test_who_ends_while_it_is_alone_keeps_nobody_waiting(tmp_path: Path) -> None:
    with one_alone(tmp_path, WORKS) as (sharing, beside, alone):
        late = start(WORKS, tmp_path / "asks2", tmp_path / "late", tmp_path / "over")
        with ended(late):
            sharing.joined(None, late.pid, tmp_path / "asks2")
            alone.kill()
            alone.wait()
            sharing.left(None, alone.pid)
            (tmp_path / "over").touch()
            assert [beside.wait(60), late.wait(60)] == [0, 0]


@LINUX
def test_what_a_process_leaves_behind_is_stopped_no_more(tmp_path: Path) -> None:
    """Else it would be for good: nobody finds it any more once its parent is gone."""
    ticks = tmp_path / "ticks"
    with one_alone(tmp_path, STARTS) as (sharing, parent, _):
        before = ticks.stat().st_size
        sleep(0.2)
        assert ticks.stat().st_size == before
        assert sharing.lost_s(None, parent.pid) > 0.2
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        sharing.left(None, parent.pid)
        until = monotonic() + 60
        while ticks.stat().st_size == before:
            assert monotonic() < until, "its child is stopped still"
            sleep(0.01)


def test_time_in_which_others_are_alone_is_nobody_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ASKS, str(tmp_path / "asks"))
    before = monotonic()
    assert running() >= before
    (tmp_path / "asks-lost").write_text("40.5")
    assert running() < before + 1
    for name in ("asks", "asks-answer"):
        (tmp_path / name).touch()
    asked_no_more(tmp_path / "asks")
    assert list(tmp_path.iterdir()) == [], "whoever comes next asks anew"
    assert running() >= before


def test_who_shares_with_nobody_does_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ASKS, raising=False)
    with undisturbed(), undisturbed():
        pass
