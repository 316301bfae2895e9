"""Collecting rows: what is measured, by processes that compile together and measure alone, and what is kept of it."""

from __future__ import annotations

import json
import lzma
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from benchmarks.collect import __main__ as collect
from benchmarks.collect import crew as crews
from benchmarks.collect.crew import Crew, Item
from benchmarks.collect.devices import moved_to
from benchmarks.collect.generator import FAMILIES, program
from benchmarks.collect.rowfile import RowFile
from benchmarks.collect.tasks import Task, distinct, made_up, of_program, read_tasks, write_tasks
from benchmarks.search_tables import read_table
from fuseplan.graph import TensorType
from fuseplan.models import work_of
from fuseplan.models.rows import read_rows
from fuseplan.models.shipped import machine_of


def test_programs_are_always_the_same_in_two_types_with_views_and_from_tiny_to_a_gigabyte() -> None:
    graphs = [program(family, number, "cpu") for family in FAMILIES for number in range(2)]
    assert [program(family, 1, "cpu") for family in FAMILIES] == graphs[1::2]
    assert len({graph.key for graph in graphs}) == len(graphs)
    sizes = sorted(work_of(graph).bytes_in + work_of(graph).bytes_out for graph in graphs)
    assert sizes[0] < 20_000
    assert 2**27 < sizes[-1] <= 2**30
    types = Counter(kind.dtype for g in graphs for kind in g.types.values() if isinstance(kind, TensorType))
    assert types["bfloat16"] > 50 < types["float32"]
    assert sum(op.is_view for graph in graphs for op in graph.ops) > 30
    small = [program(family, 0, "cpu", 2**16) for family in ("pointwise", "softmax")]
    assert all(work_of(graph).bytes_in <= 2**16 for graph in small)


def test_a_graph_moved_to_a_gpu_has_the_types_that_it_has_there() -> None:
    here = program("layer-norm-backward", 1, "cpu")
    there = moved_to(here, "cuda:0")
    assert there.devices == ("cuda:0",)
    assert [op.target for op in there.ops] == [op.target for op in here.ops]
    norm = next(
        program("layer-norm", n, "cuda:0") for n in range(9) if "bfloat16" in program("layer-norm", n, "cpu").to_json()
    )
    (op,) = [op for op in norm.ops if op.target == "aten.native_layer_norm.default"]
    kinds = [value.type.dtype for value in op.outputs if isinstance(value.type, TensorType)]
    assert kinds == ["bfloat16", "float32", "float32"]


def test_a_model_becomes_islands_anchors_and_regions_that_hold_both() -> None:
    table = read_table(collect.ROWS.parents[1] / "benchmarks" / "collect" / "programs" / "gpt2-8x1024.json.gz")
    tasks = of_program(table, "cuda:0")
    families = Counter(task.family for task in tasks)
    assert set(families) == {"gpt2-8x1024", "gpt2-8x1024-anchors", "gpt2-8x1024-coarse"}
    assert families["gpt2-8x1024"] < 10  # equal layers are one
    for task in tasks:
        keys = dict(task.regions)
        assert all(choice in keys for cut in task.cuts for choice in cut.choices())
    assert len(distinct([*tasks, *tasks])) == len(tasks)


def small(number: int = 0) -> Task:
    task = made_up("pointwise", number, "cpu", 2**14)
    assert task is not None
    return task


def test_tasks_come_back_from_their_file(tmp_path: Path) -> None:
    tasks = [small(0), small(1)]
    write_tasks(tasks, tmp_path / "tasks.xz")
    assert read_tasks(tmp_path / "tasks.xz") == tasks


def test_rows_are_measured_checked_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way, with ATen and Inductor on this CPU."""
    monkeypatch.setattr(collect, "_calibrated", lambda device: {"bandwidth_gbs": 20.0})
    tasks, out = tmp_path / "tasks.xz", tmp_path / "rows.jsonl.xz"
    write_tasks([small(0)], tasks)
    asked = ["--device", "cpu", "--threads", "1", "--hands", "1", "--within-s", "170"]
    assert collect.main([*asked, "--tasks", str(tasks), "--out", str(out)]) == 0
    found = read_rows(out)
    assert {row.status for row in found.rows} == {"ok"}
    assert {row.executor for row in found.rows} == {"aten", "inductor"}
    assert all(row.device_us > 0 and row.family == "random-pointwise" for row in found.rows)
    (island,) = found.islands
    assert island.cuts[0].name == "maximal"
    assert all(key in {row.region for row in found.rows} for cut in island.cuts for _, key in cut.units)
    assert machine_of(found.header).bandwidth_gbs == 20.0


def test_what_a_killed_run_has_left_is_taken_over(tmp_path: Path) -> None:
    path, graph = tmp_path / "rows.jsonl.xz", small().island
    row = {"region": graph.key, "family": "f", "island": "i", "choice": "0", "executor": "aten", "variant": "default"}
    killed = RowFile(path, {"format": 1}, append=False)
    killed.graph(graph)
    killed.row({**row, "status": "ok", "device_us": 1.0, "host_us": 2.0})
    with killed.part.open("a") as file:
        file.write('{"region": "half a li')
    again = RowFile(path, {"format": 1, "environment": {"cpu": "a CPU"}}, append=False)
    assert again.measured() == {graph.key}
    again.row({**row, "status": "wrong"})  # it has one
    again.close()
    (kept,) = read_rows(path).rows
    assert (kept.status, kept.device_us) == ("ok", 1.0)
    other = program("pointwise", 1, "cpu", 2**14)
    more = RowFile(path, again.header, append=True)
    more.graph(other)
    more.row({**row, "region": other.key, "status": "timeout"})
    more.close()
    assert [one.status for one in read_rows(path).rows] == ["ok", "timeout"]
    with lzma.open(path, "rt") as file:
        assert json.loads(file.readline())["environment"] == {"cpu": "a CPU"}


FAKE = """
import json, os, sys, time
LOG = sys.argv[3]
def say(kind, **fields): print(json.dumps({"kind": kind, **fields}), flush=True)
def note(word, number):
    with open(LOG, "a") as file: file.write(f"{time.monotonic()} {os.getpid()} {word} {number}\\n")
say("Started")
held = []
for text in sys.stdin:
    asked = json.loads(text)
    if asked["kind"] == "CompileRegion":
        number = asked["number"]
        say("AtChoice", number=number, choice=["bad", "default"], stage="compiling")
        note("begin", number)
        if number == 3 and not asked["without"]: os._exit(1)
        if number == 5 and not asked["without"]: time.sleep(60)
        time.sleep(0.05)
        note("end", number)
        held.append(number)
        say("RegionCompiled", rows=[], kept=True)
    else:
        while held:
            number = held.pop(0)
            note("measure", number)
            time.sleep(0.02)
            note("measured", number)
            say("RegionMeasured", number=number, rows=[{"executor": "aten", "variant": "default", "status": "ok"}])
        say("Through")
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Processes that only say what they do, of which one dies and one hangs."""
    script, log = tmp_path / "fake.py", tmp_path / "log.txt"
    script.write_text(FAKE)
    monkeypatch.setattr(
        crews, "command", lambda device, threads: [sys.executable, str(script), device, str(threads), str(log)]
    )
    monkeypatch.setattr(crews, "PHASE_S", 1.0)
    monkeypatch.setattr(crews, "GRACE_S", 0.2)
    monkeypatch.setattr(crews, "CHOICE_S", 1.5)
    return log


def test_nothing_runs_beside_a_measurement_and_what_dies_or_hangs_costs_itself_alone(fake: Path) -> None:
    graph = small().island
    items = [Item(number, graph) for number in range(12)]
    rows: list[tuple[int, str]] = []

    def heard(item: Item, found: Sequence[Mapping[str, Any]]) -> None:
        rows.extend((item.number, row["status"]) for row in found)

    crew = Crew("cpu", 1, 3, 1, items, heard, monotonic() + 30)
    crew.run()
    assert sorted(number for number, status in rows if status == "ok") == list(range(12))
    assert sorted(one for one in rows if one[1] != "ok") == [(3, "crashed"), (5, "timeout")]
    assert not any(_lives(pid) for pid in {int(line.split()[1]) for line in fake.read_text().splitlines()})
    busy: set[str] = set()
    for _, pid, word, number in sorted(line.split() for line in fake.read_text().splitlines()):
        if word == "measure":
            assert not busy - {f"{pid} 5"}, "others were at work"
        if word in ("begin", "measure"):
            busy.add(f"{pid} {number}") if number not in ("3", "5") else None
        if word in ("end", "measured"):
            busy.discard(f"{pid} {number}")


def _lives(pid: int) -> bool:
    for _ in range(50):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    return True
