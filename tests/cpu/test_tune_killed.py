"""`kill -9` at random moments of a run on replayed timings: whoever starts it again comes to the same plans, and measures
nothing a second time that was kept."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SCRIPT = Path(__file__).with_name("killed_tuning.py")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kills", "model", "shard", "programs"),
    [
        (4, "roofline", [], 3),
        pytest.param(3, "roofline", ["2/2"], 2, marks=pytest.mark.exhaustive),
        pytest.param(50, "learned", [], 3, marks=[pytest.mark.exhaustive, pytest.mark.timeout(1200)]),
    ],
)
def test_killed_at_random_moments_and_started_again(
    kills: int, model: str, shard: list[str], programs: int, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), str(kills), str(seed), model, *shard],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    print(ran.stdout)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("killed.") == kills
    whole, *killed = sorted(tmp_path.glob("*.sqlite3"), key=lambda path: (path.stem != "whole", path))
    assert len(plans(whole)) == programs
    assert killed
    for database in killed:
        assert plans(database) == plans(whole)
        assert measured_anew(database.with_suffix(".log")) == []
        assert twice(database) == []
        assert set(measurements(database)) == set(measurements(whole))


def plans(database: Path) -> list[tuple[object, ...]]:
    """All that the database says of each plan, but for which run found it, and when."""
    columns = [row[1] for row in query(database, "PRAGMA table_info(plan)")]
    kept = [f"plan.{name}" for name in columns if name not in ("id", "program_id", "environment_id", "run_id")]
    kept = [name for name in kept if name not in ("plan.changed_at", "plan.digest")]
    return query(
        database,
        f"SELECT program.key, {', '.join(kept)} FROM plan JOIN program ON program.id = program_id ORDER BY 1, plan.key",
    )


def measurements(database: Path) -> list[tuple[object, ...]]:
    return query(
        database,
        "SELECT region.key, executor, variant, status, device_us, host_us"
        " FROM measurement JOIN region ON region.id = region_id",
    )


def twice(database: Path) -> list[tuple[object, ...]]:
    """What has two rows of times."""
    return query(
        database,
        "SELECT region_id, environment_id, executor, variant FROM measurement GROUP BY 1, 2, 3, 4 HAVING count(*) > 1",
    )


def measured_anew(log: Path) -> list[str]:
    """What was measured though it had been kept."""
    kept: set[str] = set()
    anew = []
    for line in log.read_text().splitlines():
        what, _, subject = line.partition(" ")
        if what == "kept":
            kept.add(subject)
        elif subject in kept:
            anew.append(subject)
    return anew


def query(database: Path, sql: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(database)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()
