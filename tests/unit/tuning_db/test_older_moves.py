"""Moves in what commit 4a9fd47 wrote, a file and an export of it: sentences become data, and no word is lost."""

from __future__ import annotations

import gzip
import shutil
import sqlite3
from pathlib import Path

import pytest

from fuseplan.plan import Plan
from fuseplan.segment.moves import Move
from fuseplan.tuning_db import Hit, StoredPlan
from fuseplan.tuning_db.exchange import import_file, merge
from fuseplan.tuning_db.files import Database
from fuseplan.tuning_db.upkeep import check
from stored import BOTH, question, store_at

OLDER = Path(__file__).parent / "older"
FILE, EXPORT = OLDER / "moves_1.sqlite3", OLDER / "moves_1.jsonl.gz"

TOLD = [
    Move("peel-both", region=0, role="forward", change_us=-4.2),
    Move("recompute", (0,), 0, target="aten.exp", role="forward", change_us=0.8),
    Move("run", region=3, executor="inductor", role="forward", change_us=0.0),
    Move("recompute", (0,), 3, target="aten.exp", role="forward"),
    Move("merge-up", (0,), 1, target="aten.exp", role="forward", change_us=-11.5),
    Move("reuse", (0,), 3, target="aten.exp", role="backward", change_us=2.0),
    Move("evict", (3,), target="aten.add", role="backward", change_us=-0.1),
    Move("run", (4,), executor="nvfuser", target="aten.relu", role="backward", change_us=7.0),
    Move("merge-up", (0,), 1, target="aten.exp", role="backward", change_us=-4.2),
    Move("merge-down", (2,), 3, target="aten.gelu", role="backward", change_us=0.8),
    Move("run", region=2, executor="nvfuser", role="backward", change_us=0.0),
    Move("peel-head", region=40, role="forward", times=3, change_us=-4.2),
    Move("note", role="inference", change_us=-1.5, words="split op 7 (aten.neg) and 2 more off the region at op 3"),
    Move("run", region=3, executor="inductor", variant="padded", role="inference", change_us=1.0),
    Move("keep", region=3, role="inference"),
    Move("reuse", (5,), target="aten.exp", role="inference"),
]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A copy of the file, which the first who opens it brings up."""
    shutil.copy(FILE, tmp_path / "tuning.db")
    return tmp_path / "tuning.db"


def sentences() -> list[list[str]]:
    """What the file says of the moves of its plans, as it stands."""
    connection = sqlite3.connect(f"file:{FILE}?mode=ro&immutable=1", uri=True)
    found = [moves.split("\n") if moves else [] for (moves,) in connection.execute("SELECT moves FROM plan")]
    connection.close()
    return sorted(found)


def check_plans(plans: list[StoredPlan]) -> None:
    """All plans of the older file are there, with the same words for their moves."""
    assert sorted([move.line for move in plan.moves] for plan in plans) == sentences()
    (cut,) = (plan for plan in plans if plan.plan == BOTH)
    assert list(cut.moves) == TOLD
    (odd,) = (plan for plan in plans if plan.plan == Plan.named("eager"))
    assert [move.name for move in odd.moves] == ["note"] * 3


def test_a_file_is_brought_up(here: Path) -> None:
    answer = store_at(here).find_plan(question())
    assert isinstance(answer, Hit)
    check_plans(store_at(here).plans())
    assert check(Database(here)) == []


def test_an_export_is_taken(tmp_path: Path) -> None:
    database = Database(tmp_path / "new.db")
    report = import_file(database, EXPORT, trust="replay")
    assert report.refused == []
    check_plans(store_at(tmp_path / "new.db").plans())
    plain = tmp_path / "tampered.jsonl"
    plain.write_bytes(
        gzip.decompress(EXPORT.read_bytes()).replace(b"peel the views at both", b"peel the views at some")
    )
    assert "digest does not fit" in str(import_file(Database(tmp_path / "other.db"), plain).refused)


def test_a_file_is_merged(tmp_path: Path) -> None:
    report = merge(Database(tmp_path / "new.db"), FILE)
    assert report.refused == []
    check_plans(store_at(tmp_path / "new.db").plans())
    assert merge(Database(tmp_path / "new.db"), EXPORT.parent / FILE.name).taken.total() == 0


def test_a_damaged_row_stays_for_the_check_to_find(here: Path) -> None:
    connection = sqlite3.connect(here)
    connection.execute("UPDATE plan SET moves = 'evict op 3' WHERE moves LIKE 'forward%'")
    connection.commit()
    connection.close()
    assert len(store_at(here).plans()) == len(sentences()) - 1
    assert len(check(Database(here))) == 1
