"""The store between processes, threads and forks, on places that cannot be written, and while files come and go."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fuseplan.errors import StoreError
from fuseplan.tuning_db import Box, DefaultTiming, Hit, Miss, Places, Repeats, Run, Store, layers
from fuseplan.tuning_db.columns import MAX_TRACE
from fuseplan.tuning_db.files import Database
from fuseplan.tuning_db.layers import SHIPPED, network_file_system, places
from fuseplan.tuning_db.patience import Patience
from fuseplan.tuning_db.upkeep import check
from fuseplan.tuning_db.words import traces_of
from stored import (
    AT,
    CPU,
    GELU,
    HERE,
    NVFUSER,
    PROGRAM,
    RELU,
    TRACE,
    drift,
    fill,
    measurement,
    plan,
    question,
    store_at,
)

LOOK = """
import sys
sys.path[:0] = [sys.argv[2]]
from pathlib import Path
from stored import question, store_at
found = store_at(Path(sys.argv[1])).find_plan(question())
print(type(found).__name__, "torch" in sys.modules, "sqlite_utils" in sys.modules)
"""


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tuning.db")
    fill(store)
    again = store_at(tmp_path / "tuning.db")
    assert again.find_measurements(GELU.key, CPU) == (measurement(GELU, environment=CPU, device_us=20.0),)
    timings = again.find_default_timings(PROGRAM, HERE)
    assert timings == (DefaultTiming(PROGRAM, HERE, "eager", wall_us=300.0, run="5" * 32, measured_at=AT),)
    assert len(again.plans()) == 3
    assert again.find_measurements("99" * 32, HERE) == Miss(
        "no such region", "nothing is measured here of region 999999999999"
    )


def test_a_lookup_needs_neither_torch_nor_sqlite_utils(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    store_at(path).add_plan(plan())
    tests = str(Path(__file__).parents[2])
    ran = subprocess.run([sys.executable, "-c", LOOK, str(path), tests], check=True, capture_output=True, text=True)
    assert ran.stdout.split() == ["Hit", "False", "False"]


@pytest.mark.parametrize("pause", [0.0, 1.2], ids=["just after a write", "later"])
def test_what_is_remembered_falls_when_another_process_writes(tmp_path: Path, pause: float) -> None:
    path = tmp_path / "tuning.db"
    mine, other = store_at(path), store_at(path)
    assert mine.find_plan(question()).reason == "no such program"  # type: ignore[union-attr]
    for wall in (100.0, 90.0, 80.0):
        changed = plan(wall_us=wall, changed_at=f"2026-11-20T12:00:00.{1000 - int(wall):03}Z")
        other.add_plan(changed)
        for _ in range(3):
            assert mine.find_plan(question()) == Hit(changed, "user")
        time.sleep(pause)


def test_one_row_again_is_no_second_row(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    for _ in range(2):
        fill(store_at(path))
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM measurement").fetchone() == (3,)
    assert connection.execute("SELECT count(*) FROM plan").fetchone() == (3,)


def test_an_older_row_does_not_replace_a_later_one(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tuning.db")
    later = plan(wall_us=50.0, changed_at="2026-11-21T12:00:00.000Z")
    store.add_plan(later)
    store.add_plan(plan())
    assert store.find_plan(question()) == Hit(later, "user")


def test_a_name_once_given_stays(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tuning.db")
    store.add_program(PROGRAM, "GPT-2")
    store.add_plan(plan())
    store.add_program(PROGRAM)
    connection = sqlite3.connect(tmp_path / "tuning.db")
    assert connection.execute("SELECT name FROM program").fetchall() == [("GPT-2",)]


def test_a_program_keeps_its_trace_for_each_box_of_sizes(tmp_path: Path) -> None:
    store, wide = store_at(tmp_path / "tuning.db"), Box.of({"s0": (1, 64)})
    store.add_program(PROGRAM, "GPT-2", trace=TRACE)
    store.add_program(PROGRAM, "GPT-2")  # who has none to give takes none away
    store.add_program(PROGRAM, trace=TRACE + " " * MAX_TRACE, sizes=wide)  # too long
    assert (store.find_trace(PROGRAM), store.find_trace(PROGRAM, wide)) == (TRACE, None)
    assert traces_of(store, "GPT-2") == traces_of(store, PROGRAM[:6]) == [TRACE]
    assert traces_of(store, "") == traces_of(store, "ffff") == []
    store.add_plan(plan(plan=NVFUSER))
    assert traces_of(store, plan(plan=NVFUSER).key[:8]) == [TRACE]


def test_a_damaged_trace_is_none(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    fill(store_at(path))
    sqlite3.connect(path, isolation_level=None).execute("UPDATE trace SET json = replace(json, 'GPT', 'BERT')")
    assert store_at(path).find_trace(PROGRAM) is None
    assert [problem.table for problem in check(Database(path))] == ["trace"]


def test_mistakes_of_the_caller_are_errors(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tuning.db")
    with pytest.raises(StoreError, match="came with region"):
        store.add_measurement(GELU, measurement(RELU))
    with pytest.raises(StoreError, match="which is no time"):
        store.add_measurement(RELU, measurement(device_us=float("nan")))
    with pytest.raises(StoreError, match="CHECK"):
        store.add_measurement(RELU, measurement(device_us=-1.0))
    with pytest.raises(StoreError, match="run 7777"):
        store.add_plan(plan(run="7" * 32))
    with pytest.raises(StoreError, match="no plan with a key that begins with 'abc'"):
        store.pin("abc", "pinned")
    assert isinstance(store.find_plan(question()), Miss)


@pytest.mark.parametrize("where", ["no home", "a file in the way", "a folder", "in /proc", "a long name"])
def test_a_place_that_cannot_be_written(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("")
    paths = {
        "a file in the way": tmp_path / "file" / "tuning.db",
        "in /proc": Path("/proc/fuseplan/tuning.db"),
        "a long name": tmp_path / f"{'t' * 300}.db",
    }
    if where == "a folder":
        (tmp_path / "tuning.db").mkdir()
        paths[where] = tmp_path / "tuning.db"
    store = Store(Places(paths.get(where)))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert store.add_plan(plan()) is False
        assert store.add_measurement(RELU, measurement()) is False
        assert store.find_plan(question()) == Hit(plan(), "memory")
        assert store.find_measurements(RELU.key, HERE) == (measurement(),)
    assert sum("kept in memory" in str(warning.message) for warning in warned) == 1


def test_what_was_kept_in_memory_goes_into_the_file_when_it_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "tuning.db"
    path.parent.write_text("in the way")
    store = store_at(path)
    with pytest.warns(UserWarning, match="kept in memory"):
        assert store.add_plan(plan()) is False
    path.parent.unlink()
    assert store.add_plan(plan(launch="cudagraph"))
    assert store_at(path).find_plan(question()) == Hit(plan(), "user")
    assert store.find_plan(question()) == Hit(plan(), "user")


READ_ONLY = """
import os, sys, warnings
sys.path[:0] = [sys.argv[2]]
from pathlib import Path
from stored import NVFUSER, plan, question, store_at
warnings.simplefilter("ignore")
if os.getuid() == 0:
    os.setuid(65534)
store = store_at(Path(sys.argv[1]))
print(store.find_plan(question()).layer, store.add_plan(plan(plan=NVFUSER, launch="cudagraph")))
print(store.find_plan(question()).layer, store.find_plan(question(launch="cudagraph")).layer)
"""


def test_a_file_that_may_only_be_read() -> None:
    with TemporaryDirectory() as folder:  # not pytest's, which nobody but its owner may enter
        path = Path(folder) / "tuning.db"
        store_at(path).add_plan(plan())
        path.chmod(0o444)
        Path(folder).chmod(0o555)
        tests = str(Path(__file__).parents[2])
        ran = subprocess.run([sys.executable, "-c", READ_ONLY, str(path), tests], capture_output=True, text=True)
    assert ran.stderr == ""
    assert ran.stdout.split() == ["user", "False", "user", "memory"]


@pytest.mark.parametrize("how", ["deleted", "replaced", "folder deleted"])
def test_a_file_that_goes_while_it_is_open(tmp_path: Path, how: str) -> None:
    path, other = tmp_path / "cache" / "tuning.db", tmp_path / "other.db"
    store, reader = store_at(path), store_at(path)
    store.add_plan(plan())
    assert isinstance(reader.find_plan(question()), Hit)
    fast = plan(plan=NVFUSER, wall_us=1.0, changed_at="2026-11-22T12:00:00.000Z")
    store_at(other).add_plan(fast)
    if how == "replaced":
        other.rename(path)
    elif how == "deleted":
        path.unlink()
    else:
        shutil.rmtree(path.parent)
    assert reader.find_plan(question()) == (
        Hit(fast, "user")
        if how == "replaced"
        else Miss("no such program", "no plan is stored for program abababababab")
    )
    assert store.add_plan(plan(launch="cudagraph"))
    assert store_at(path).find_plan(question(launch="cudagraph")) == Hit(plan(launch="cudagraph"), "user")


def test_forked_children_use_the_file_on_their_own(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    store = store_at(path)
    store.add_plan(plan())
    stop = threading.Event()

    def keep_writing() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            store.add_measurement(RELU, measurement(variant=f"parent {number}"))

    writer = threading.Thread(target=keep_writing)
    writer.start()
    children = []
    for child in range(1, 4):
        pid = os.fork()
        if pid == 0:
            good = True
            for number in range(5):
                good &= store.add_measurement(RELU, measurement(variant=f"child {child} {number}"))
                good &= isinstance(store.find_plan(question()), Hit)
            os._exit(0 if good else 1)
        children.append(pid)
    codes = [os.waitpid(pid, 0)[1] for pid in children]
    stop.set()
    writer.join()
    assert codes == [0, 0, 0]
    found = store.find_measurements(RELU.key, HERE)
    assert not isinstance(found, Miss)
    assert sum(one.variant.startswith("child") for one in found) == 15
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_who_waits_for_others_waits_longer_while_they_get_on(tmp_path: Path) -> None:
    """Five seconds for a file that nobody changes; while others commit, six times as long."""
    path, now = tmp_path / "tuning.db", [0.0]
    fill(store_at(path))
    stuck, busy = (Patience(path, 5.0, lambda: now[0]) for _ in range(2))
    now[0] = 4.9
    assert stuck.lasts()
    now[0] = 5.1
    assert not stuck.lasts()
    for second in range(6, 31, 3):
        store_at(path).add_plan(plan(wall_us=float(second), changed_at=f"2026-11-21T12:00:{second:02}.000Z"))
        now[0] = second
        assert busy.lasts()
    store_at(path).add_plan(plan(wall_us=1.0, changed_at="2026-11-22T12:00:00.000Z"))
    now[0] = 40
    assert not busy.lasts()


def test_threads_share_a_store(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tuning.db")
    kept: list[bool] = []

    def work(name: int) -> None:
        for number in range(10):
            kept.append(store.add_measurement(RELU, measurement(variant=f"{name} {number}")))
            store.find_plan(question())

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kept == [True] * 40
    assert len(store.find_measurements(RELU.key, HERE)) == 40  # type: ignore[arg-type]


def test_counters(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tuning.db")
    store.find_plan(question())
    store.add_plan(plan())
    for _ in range(2):
        store.find_plan(question())
    store.find_plan(question(launch="cudagraph"))
    expected = {"plan hits": 2, "plan misses: no such program": 1, "plan misses: other launch": 1}
    assert store.counts() == expected
    assert store.persist_counts()
    store.count("fallbacks", 3)
    assert store.persist_counts()
    connection = sqlite3.connect(tmp_path / "tuning.db")
    assert dict(connection.execute("SELECT event, count FROM counter")) == {**expected, "fallbacks": 3}


def test_where_the_layers_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "SHIPPED", SHIPPED)  # which no other test is to find
    assert places({"XDG_CACHE_HOME": "/c", "HOME": "/h"}).user == Path("/c/fuseplan/tuning.db")
    assert places({"XDG_CACHE_HOME": "relative", "HOME": "/h"}).user == Path("/h/.cache/fuseplan/tuning.db")
    assert places({"FUSEPLAN_DB": "/f.db", "HOME": "/h"}, "/named.db").user == Path("/named.db")
    assert places({}).user is None
    assert places({}).packaged == SHIPPED


def test_a_network_file_system_is_told_of(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "30 22 0:40 / /home rw,relatime shared:1 - nfs4 server:/home rw\n"
        "31 30 0:41 / /home/local\\040disk rw - ext4 /dev/sdb1 rw\n"
    )
    assert network_file_system(Path("/home/ada/.cache/tuning.db"), mounts) == "nfs4"
    assert network_file_system(Path("/home/local disk/tuning.db"), mounts) is None
    assert network_file_system(Path("/var/tuning.db"), mounts) is None
    assert network_file_system(Path("/var/tuning.db"), tmp_path / "none") is None


def test_a_run_is_stored_with_what_refers_to_it(tmp_path: Path) -> None:
    store = Store(Places(None))
    run = Run(PROGRAM, HERE)
    with pytest.warns(UserWarning, match="no home folder"):
        store.add_run(run)
    assert store.add_plan(plan(run=run.key)) is False
    assert store.add_run(replace(run, state="finished")) is False


def test_of_what_guards_see_the_last_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process that runs under a plan adds a row an hour, for ever."""
    monkeypatch.setattr("fuseplan.tuning_db.measured.MOST_DRIFT", 20)
    store = store_at(tmp_path / "a.db")
    store.add_drift(drift(plan="ab" * 16))
    moments = [f"2026-11-20T{hour:02}:00:00.000Z" for hour in range(24)]
    for moment in (moments[23], *moments):  # one is from elsewhere, whose clock is ahead
        assert store.add_drift(drift(measured_at=moment))
    assert [one.measured_at for one in store.find_drift(drift().plan)] == moments[4:]
    assert len(store.find_drift("ab" * 16)) == 1


def test_repeats_keep_nanoseconds() -> None:
    repeats = Repeats((1.23456, 2.0), wall=(1e6,))
    assert repeats.to_json() == '{"device":[1.235,2.0],"wall":[1000000.0]}'
    assert Repeats.from_json(repeats.to_json()) == Repeats((1.235, 2.0), wall=(1e6,))
    for bad in ('{"device":[NaN]}', "[]", '{"other":[]}', '{"device":["1"]}', '{"device":[-1.0]}', "{", "[" * 9999):
        with pytest.raises(StoreError):
            Repeats.from_json(bad)
