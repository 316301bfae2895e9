"""`fuseplan tune traces/ --shard 3/16`: which programs a machine tunes does not hang on the machine, and all shards are all programs."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from fuseplan.capture.trace.calls import Calls
from fuseplan.capture.trace.format import Trace
from fuseplan.cli import main
from fuseplan.errors import OptionError
from fuseplan.measure.environment import environment
from fuseplan.plan import Plan
from fuseplan.tune import agenda, tune
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.traces import traces_of
from fuseplan.tuning_db import DefaultTiming, Places, Store, StoredPlan
from fuseplan.tuning_db.exchange import merge
from fuseplan.tuning_db.files import Database
from replaying import ReplayingPool
from stored_rows import exported

SHARDS = 3


def perceptron(layers: int, size: int) -> nn.Sequential:
    return nn.Sequential(*(layer for _ in range(layers) for layer in (nn.Linear(size, size), nn.GELU())))


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    """Programs of three kinds of layers; those of one kind are of different depths."""
    found = []
    for size in (8, 16, 24):
        for layers in (1, 2, 3):
            with torch.no_grad():
                found += traces_of(perceptron(layers, size), torch.randn(4, size), name=f"mlp {layers}x{size}")
            torch._dynamo.reset()
    return found


@pytest.fixture
def folder(traces: list[Trace], tmp_path: Path) -> Path:
    return written(tmp_path / "traces", traces)


def written(folder: Path, traces: list[Trace]) -> Path:
    folder.mkdir()
    for number, trace in enumerate(traces):
        (folder / f"{number:02}.json").write_text(trace.to_text())
    return folder


def shards_of(programs: Any, count: int = SHARDS, **settings: Any) -> list[set[str]]:
    return [
        {item.key for item in agenda(programs, shard=(number, count), **settings).items}
        for number in range(1, count + 1)
    ]


@contextmanager
def replayed(device: str, effort: Effort) -> Iterator[ReplayingPool]:
    yield ReplayingPool()


def test_all_shards_are_all_programs_and_layers_stay_together(traces: list[Trace], folder: Path) -> None:
    found = shards_of(folder)
    assert sum(map(len, found)) == len(traces) == len(set[str]().union(*found))
    kinds = {frozenset(trace.key for trace in traces if trace.name.endswith(f"x{size}")) for size in (8, 16, 24)}
    assert set(map(frozenset, found)) == kinds


def test_what_else_is_on_a_machine_does_not_count(traces: list[Trace], folder: Path, tmp_path: Path) -> None:
    expected = shards_of(folder)
    mixed = random.Random(0).sample(traces, len(traces))
    twice = [*mixed, *(replace(trace, name=f"rank 1 {trace.name}", calls=(Calls({}, 9, 0.5),)) for trace in traces)]
    assert shards_of(written(tmp_path / "elsewhere", twice)) == expected
    assert shards_of(sorted(folder.iterdir(), reverse=True)) == expected
    assert shards_of(mixed) == expected
    store = Store.open(os.environ)
    for number, trace in enumerate(traces):  # by which tuning puts them in another order
        store.add_default_timing(DefaultTiming(trace.key, environment("cpu"), "eager", wall_us=10.0**number))
    store.add_plan(StoredPlan(traces[4].key, environment("cpu"), Plan("inductor"), wall_us=5.0))
    store.close()
    assert shards_of(folder) == shards_of(folder, device="cpu", top=9) == expected


def test_another_process_splits_alike(folder: Path) -> None:
    files = [str(path) for path in sorted(folder.iterdir(), reverse=True)]
    changed = {"PYTHONHASHSEED": "7", "LC_ALL": "C", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-c",
        "from fuseplan.cli import main; main()",
        "tune",
        *files,
        "--shard",
        "2/3",
        "--dry-run",
        "--json",
    ]
    ran = subprocess.run(command, capture_output=True, check=True, env={**os.environ, **changed})
    told = json.loads(ran.stdout)
    here = agenda(folder, shard="2/3")
    assert here.chosen is not None
    assert told["shard"]["split"] == here.chosen.split.key
    assert {item["program"] for item in told["items"]} == {item.key for item in here.items}


def test_a_dry_run_shows_the_work_of_every_shard(folder: Path) -> None:
    ran = CliRunner().invoke(main, ["tune", str(folder), "--shard", "2/4", "--dry-run"])
    assert ran.exit_code == 0, ran.output
    *_, head, first, second, third, fourth, last = ran.output.splitlines()
    assert head.split() == ["shard", "programs", "predicted", "work"]
    assert [line.split()[0] for line in (first, second, third, fourth)] == ["1/4", "2/4", "3/4", "4/4"]
    assert [line.endswith(", this one") for line in (first, second, third, fourth)] == [False, True, False, False]
    assert last.startswith("shard 2/4 of split ")
    assert " of 9 programs; all take " in last
    told = json.loads(CliRunner().invoke(main, ["tune", str(folder), "--shard", "2/4", "--dry-run", "--json"]).output)
    assert sum(one["programs"] for one in told["shard"]["shards"]) == 9
    assert len(told["items"]) == told["shard"]["shards"][1]["programs"]


def test_a_program_is_in_one_shard_for_each_box_of_its_sizes() -> None:
    x = torch.randn(48, 4)
    torch._dynamo.mark_dynamic(x, 0)
    with torch.no_grad():
        (trace,) = traces_of(lambda x: (x * 2).relu() + x.shape[0], x, name="dynamic")
    (name,) = [symbol["name"] for symbol in trace.fields["symbols"]]
    small, large = Calls({name: 48}, 10), Calls({name: 300}, 5)
    for given in ([replace(trace, calls=(small, large))], [replace(trace, calls=(one,)) for one in (large, small)]):
        boxes = [[item.sizes.text for item in agenda(given, shard=(number, 2)).items] for number in (1, 2)]
        assert sorted(map(len, boxes)) == [1, 1]
    assert {box for shard in boxes for box in shard} == {f"{name}=33..64", f"{name}=257..512"}


def test_shards_are_merged_to_what_all_programs_are_tuned_to(traces: list[Trace], tmp_path: Path) -> None:
    some = traces[::2]
    paths = [tmp_path / f"shard-{number}.db" for number in range(1, 3)]
    tuned = [
        tune(some, shard=(number, 2), db=path, workers=replayed, progress=Silent())
        for number, path in enumerate(paths, 1)
    ]
    assert sorted(one.program for shard in tuned for one in shard) == sorted(trace.key for trace in some)
    merged = []
    for name, order in (("a", paths), ("b", [*paths[::-1], *paths])):
        into = Database(tmp_path / f"{name}.db")
        assert all(merge(into, path).complete for path in order)
        merged.append(exported(into))
        into.close()
    assert merged[0] == merged[1]
    store = Store(Places(tmp_path / "a.db"))
    assert {plan.program: plan.plan for plan in store.plans() if plan.status in ("tuned", "default")} == {
        one.program: one.plan for shard in tuned for one in shard
    }
    store.close()
    assert all(item.known is not None for item in agenda(some, db=tmp_path / "a.db").items)


def test_a_shard_that_holds_no_program_is_done(folder: Path) -> None:
    ran = CliRunner().invoke(main, ["tune", str(folder), "--shard", "10/10", "--effort", "none"])
    assert ran.exit_code == 0, ran.output
    assert ran.stdout == "this shard holds no program: there are more shards than programs\n"


@pytest.mark.parametrize("arguments", [["{folder}", "--shard", "0/16"], ["{folder}", "--shard", "17/16"], ["{folder}", "--shard", "x/y"],
                                       ["--queue", "--shard", "1/2"], ["a-name", "--shard", "1/2"]])  # fmt: skip
def test_a_wrong_call_is_one_line(folder: Path, arguments: list[str]) -> None:
    ran = CliRunner().invoke(main, ["tune", *(argument.format(folder=folder) for argument in arguments)])
    assert ran.exit_code == 2
    assert (ran.stdout, len(ran.stderr.splitlines())) == ("", 1)
    assert "shard" in ran.stderr
    assert not Path(os.environ["FUSEPLAN_DB"]).exists()


def test_what_waits_in_a_database_is_not_split() -> None:
    with pytest.raises(OptionError, match="another on each machine"):
        agenda(None, shard="1/2")
