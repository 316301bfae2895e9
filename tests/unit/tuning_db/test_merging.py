"""Databases of shards become one: in any order, by evidence, and a damaged one stays outside while the others go in."""

from __future__ import annotations

import errno
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fuseplan.cli import main
from fuseplan.errors import StoreError
from fuseplan.graph import Graph
from fuseplan.tuning_db import DefaultTiming, Run, Store, StoredPlan, files, foreign
from fuseplan.tuning_db.columns import Row
from fuseplan.tuning_db.exchange import merge, merge_whole
from fuseplan.tuning_db.files import Database
from fuseplan.tuning_db.tables import RowWriter, Table
from fuseplan.tuning_db.words import retune
from stored import (
    AT,
    BOTH,
    CPU,
    EVIDENCE,
    HERE,
    INDUCTOR,
    NVFUSER,
    TRACE,
    fill,
    graph_of,
    killed_over_a_write,
    measurement,
    plan,
    store_at,
)
from stored_rows import exported

SHARDS = 16
LATER, LATEST = "2026-11-21T12:00:00.000Z", "2026-11-22T12:00:00.000Z"


def merging(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["db", "merge", *map(str, arguments)])


# In any order


def shard_at(path: Path, number: int) -> Path:
    """A shard with programs and layers of its own, and with others that its neighbours have too, told otherwise."""
    rng, store = random.Random(number), store_at(path)
    for one in range(number, number + 3):
        program = f"{one % SHARDS:064x}"
        moment = f"2026-11-{rng.randint(1, 28):02}T12:00:00.000Z"
        run = Run(
            program,
            HERE,
            key=f"{one % SHARDS:032x}",
            state=rng.choice(("running", "finished")),
            started_at=AT,
            changed_at=moment,
        )
        trace = TRACE.replace("ab" * 32, program).replace("GPT-2", f"of {number}")
        graph = graph_of("aten.relu.default", size=8 + one % 5)
        store.add_run(run)
        store.add_program(program, f"of {number}", {"inference": graph}, trace=trace, calls=rng.randint(0, 2))
        store.add_regions(graph, [(graph, rng.randint(1, 2))])
        store.add_measurements(graph, measurements_of(graph, rng))
        timing = DefaultTiming(program, HERE, "inductor", wall_us=rng.uniform(1, 99), run=run.key, measured_at=moment)
        store.add_verdict(chosen(program, rng, run=run.key, changed_at=moment), [timing])
    store.close()
    return path


def measurements_of(graph: Graph, rng: random.Random) -> list[object]:
    return [
        measurement(graph, environment=rng.choice((HERE, CPU)), device_us=float(rng.randint(1, 3))) for _ in range(3)
    ]


def chosen(program: str, rng: random.Random, **fields: object) -> StoredPlan:
    status = rng.choice(("tuned", "default", "unverified", "quarantined"))
    wall = None if status == "unverified" else rng.uniform(1, 99)
    of = rng.choice((INDUCTOR, NVFUSER, BOTH))
    return plan(program=program, plan=of, status=status, wall_us=wall, evidence=EVIDENCE, **fields)


@pytest.mark.parametrize("orders", [25, pytest.param(100, marks=pytest.mark.exhaustive)])
def test_overlapping_shards_give_one_database_in_any_order(tmp_path: Path, orders: int) -> None:
    paths = [shard_at(tmp_path / f"shard-{number}.db", number) for number in range(SHARDS)]
    rng, found = random.Random(0), set[tuple[str, ...]]()
    for _ in range(orders):
        into = Database(None)
        for path in rng.sample(paths, SHARDS):
            assert merge(into, path).complete
        found.add(tuple(exported(into)))
        into.close()
    assert len(found) == 1
    (rows,) = found
    assert sum('"table":"program"' in line for line in rows) == SHARDS


def test_the_verb_gives_the_same_whatever_the_order_and_however_often(tmp_path: Path) -> None:
    paths = [shard_at(tmp_path / f"shard-{number}.db", number) for number in range(3)]
    ways = [*permutations(paths), (*paths, *paths, paths[1])]
    found = set()
    for number, way in enumerate(ways):
        into = tmp_path / f"all-{number}.db"
        told = merging(*way, "--db", into)
        assert told.exit_code == 0, told.output
        assert len(told.output.splitlines()) == len(set(way))
        found.add(tuple(exported(Database(into))))
    assert len(found) == 1


# By evidence


def merged(tmp_path: Path, *sides: StoredPlan) -> StoredPlan:
    """What stands of one plan that each of several shards tells otherwise, in whichever order they are merged."""
    paths = []
    for number, side in enumerate(sides):
        paths.append(tmp_path / f"side-{number}.db")
        store_at(paths[-1]).add_plan(side)
    found = []
    for number, order in enumerate(permutations(paths)):
        into = Database(tmp_path / f"merged-{number}.db")
        for path in order:
            merge(into, path)
        found += store_at(tmp_path / f"merged-{number}.db").plans()
    assert all(one == found[0] for one in found)
    return found[0]


RACED = plan(status="tuned", wall_us=100.0, best_default="inductor", best_default_us=150.0, evidence=EVIDENCE)
PREDICTED = plan(status="unverified", wall_us=None, predicted_us=90.0, changed_at=LATEST)


@pytest.mark.parametrize(
    "raced", [RACED, replace(RACED, status="default"), replace(RACED, status="quarantined", wall_us=None)]
)
def test_a_race_stands_over_a_prediction_that_is_later(tmp_path: Path, raced: StoredPlan) -> None:
    assert merged(tmp_path, raced, PREDICTED) == raced


def test_of_two_races_the_later_stands(tmp_path: Path) -> None:
    again = replace(RACED, wall_us=160.0, status="quarantined", detail="no faster here", changed_at=LATER)
    assert merged(tmp_path, RACED, again, PREDICTED) == again


def test_of_two_predictions_the_later_stands(tmp_path: Path) -> None:
    earlier = replace(PREDICTED, predicted_us=95.0, changed_at=LATER)
    assert merged(tmp_path, PREDICTED, earlier) == PREDICTED


def test_a_person_who_asks_for_another_race_is_heard_where_shards_are_merged(tmp_path: Path) -> None:
    store = store_at(tmp_path / "mine.db")
    store.add_plan(RACED)
    (changed,) = retune(store, RACED.key)
    (kept,) = store.plans()
    assert (kept.status, kept.wall_us) == (changed.status if changed.status == "unverified" else "unverified", 100.0)
    assert merged(tmp_path, RACED, kept) == kept


def test_a_prediction_takes_no_race_away_in_one_file_either(tmp_path: Path) -> None:
    store = store_at(tmp_path / "mine.db")
    store.add_plan(RACED)
    store.add_plan(PREDICTED)
    assert store.plans() == [RACED]


# Damaged ones


def overwritten(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"garbage" * 10)


def cut_short(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 4096 * 3)


def page_lost(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2 // 4096 * 4096)
        file.write(b"\xab" * 4096)


def row_changed(path: Path) -> None:
    database = Database(path)
    database.write(lambda connection: connection.execute("UPDATE plan SET wall_us = 1.0"))
    database.close()


def emptied(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [overwritten, cut_short, page_lost, row_changed, emptied])
def test_a_damaged_shard_is_refused_by_name_and_the_others_merge(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    paths = [shard_at(tmp_path / f"shard-{number}.db", number) for number in range(4)]
    good = [path for path in paths if path != paths[2]]
    damage(paths[2])
    content = paths[2].read_bytes()
    told = merging(*paths, "--db", tmp_path / "all.db")
    assert told.exit_code == 1
    assert [line for line in told.output.splitlines() if "shard-2.db" in line] == [
        line for line in told.output.splitlines() if "refused, since it is damaged" in line
    ]
    assert len(told.output.splitlines()) == len(paths)
    assert paths[2].read_bytes() == content
    others = Database(tmp_path / "others.db")
    merge_whole(others, good)
    assert exported(Database(tmp_path / "all.db")) == exported(others)
    fields = json.loads(merging(*paths, "--db", tmp_path / "all.db", "--json").output)
    assert [name for name, one in fields.items() if one["refused"]] == [str(paths[2])]


def test_a_shard_whose_writer_was_killed_is_refused_or_whole_until_its_shard_is_run_again(tmp_path: Path) -> None:
    """What it was writing then is not there: whoever opens the file to write takes it back."""
    paths = [shard_at(tmp_path / f"shard-{number}.db", number) for number in range(2)]
    before = exported(Database(paths[1]))
    killed_over_a_write(paths[1])
    told = merging(*paths, "--db", tmp_path / "all.db")
    assert told.exit_code == 1
    assert "shard-1.db: refused" in told.output
    mends = f"fuseplan db check --repair --db {paths[1]}"
    assert f"it has a write that was cut short): {mends} takes it back" in told.output
    again = tmp_path / "again.db"
    for suffix in ("", "-journal"):
        shutil.copy(f"{paths[1]}{suffix}", f"{again}{suffix}")
    assert mends.replace(str(paths[1]), str(again)) in merging("--salvage", again, "--db", tmp_path / "all.db").output
    CliRunner().invoke(main, ["db", "check", "--repair", "--db", str(again)])
    assert exported(Database(again)) == before
    store_at(paths[1]).add_program("ef" * 32)
    assert set(before) < set(exported(Database(paths[1])))
    assert merging(*paths, "--db", tmp_path / "all.db").exit_code == 0


def test_the_good_rows_of_a_damaged_shard_are_taken_by_who_asks(tmp_path: Path) -> None:
    path = shard_at(tmp_path / "shard.db", 1)
    row_changed(path)
    told = merging("--salvage", path, "--db", tmp_path / "all.db")
    assert told.exit_code == 1
    assert "3 program" in told.output
    assert Store.open({"FUSEPLAN_DB": str(tmp_path / "all.db")}).plans() == []


def test_a_file_that_was_named_by_mistake_is_no_damaged_shard(tmp_path: Path) -> None:
    fill(store_at(tmp_path / "a.db"))
    (tmp_path / "notes").write_text("some notes\n")
    with pytest.raises(StoreError, match="notes"):
        merge_whole(Database(tmp_path / "all.db"), [tmp_path / "a.db", tmp_path / "notes"])
    with pytest.raises(StoreError, match="into itself"):
        merge_whole(Database(tmp_path / "a.db"), [tmp_path / "a.db"])
    assert not (tmp_path / "all.db").exists()


@pytest.mark.parametrize("salvage", [False, True], ids=["whole", "salvage"])
def test_a_shard_that_is_being_tuned_is_written_to_while_it_is_merged(
    salvage: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are checked and put elsewhere for as long as it takes: nobody waits for that."""
    path = shard_at(tmp_path / "shard.db", 1)
    before, shard, put, added = exported(Database(path)), store_at(path), RowWriter.put, list[bool]()
    monkeypatch.setattr(files, "_WRITE_WAIT_S", 1.0)
    monkeypatch.setattr(files, "_COMMIT_WAIT_MS", 1000)

    def meanwhile(writer: RowWriter, table: Table, row: Row) -> bool:
        if not added:
            added.append(False)
            added.append(shard.add_program("ef" * 32))
        return put(writer, table, row)

    monkeypatch.setattr(RowWriter, "put", meanwhile)
    into = Database(tmp_path / "all.db")
    report = merge(into, path) if salvage else merge_whole(into, [path])[path]
    assert report.complete
    assert added == [False, True], "it is on the disk"
    assert exported(into) == before


def test_where_there_is_no_room_for_a_copy_the_shard_itself_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = shard_at(tmp_path / "shard.db", 1)
    monkeypatch.setattr(foreign, "TemporaryDirectory", full)
    into = Database(tmp_path / "all.db")
    assert merge_whole(into, [path])[path].complete
    assert exported(into) == exported(Database(path))
