"""How long it takes to merge the databases of 16 shards of 10,000 rows each, which overlap: once, and once more.

Each shard has a tenth of its programs, and of its regions with what was measured of them, in common with the next one, as shards
have that were split otherwise before. The files are made anew each time.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from benchmarks.given import numbers
from benchmarks.lookup import ENVIRONMENTS, PER_REGION, program_rows, put_rows, region_rows
from benchmarks.result import ROOT
from fuseplan.tuning_db.columns import Row
from fuseplan.tuning_db.files import Database
from fuseplan.tuning_db.schema import ALL, ENVIRONMENT
from fuseplan.tuning_db.tables import Table

PROGRAM_ROWS, REGION_ROWS = 4, PER_REGION + 1
OF_PROGRAMS = 0.2
"""Of the rows of a shard, so many are programs with a trace and two plans; the others are regions and measurements."""
IN_COMMON = 0.1
LIMIT_S = 20.0
AT = "2026-11-20T12:00:00.000Z"


def measure(arguments: list[str]) -> dict[str, Any]:
    """With so many shards of so many rows."""
    shards, rows = numbers("merging", __doc__, arguments, shards=16, rows=10_000)
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=build) as folder:
        files = [Path(folder) / f"shard-{number}.db" for number in range(shards)]
        held = [make(file, number, rows) for number, file in enumerate(files)]
        into = Path(folder) / "all.db"
        first, again = merged(files, into), merged(files, into)
        rows_merged = rows_of(Database(into))
        size = into.stat().st_size
    return {
        "shards": shards, "rows_of_a_shard": max(held), "rows": sum(held), "rows_merged": rows_merged, "file_bytes": size,
        "first": first, "again": again, "limit_s": LIMIT_S,
    }  # fmt: skip


def make(path: Path, number: int, rows: int) -> int:
    """Fill the database of a shard, and return how many rows it has."""
    programs, regions = round(rows * OF_PROGRAMS / PROGRAM_ROWS), round(rows * (1 - OF_PROGRAMS) / REGION_ROWS)
    database = Database(path)
    made: list[tuple[Table, Row]] = [(ENVIRONMENT, place.row()) for place in ENVIRONMENTS]
    for count, rows_of_one in ((programs, program_rows), (regions, region_rows)):
        first = round(number * count * (1 - IN_COMMON))
        made += [(table, dated(row)) for one in range(first, first + count) for table, row in rows_of_one(one)]
    database.write(partial(put_rows, rows=made))
    held = rows_of(database)
    database.close()
    return held


def dated(row: Row) -> Row:
    """The row as of one moment: else what two shards have in common would differ in when it was made."""
    return {name: AT if name in ("changed_at", "measured_at") else value for name, value in row.items()}


def rows_of(database: Database) -> int:
    """All rows that move between files."""
    each = " + ".join(f"(SELECT count(*) FROM {table.name})" for table in ALL)
    return int(database.read(lambda connection: connection.execute(f"SELECT {each}").fetchone()[0]))


def merged(files: list[Path], into: Path) -> dict[str, float]:
    """The seconds of the command, Python's start included, and those of the processor, which other processes disturb less."""
    verb = ["db", "merge", *map(str, files), "--db", str(into)]
    begin, before = perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", "from fuseplan.cli import main; main()", *verb], check=True, capture_output=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": perf_counter() - begin, "cpu_s": cpu_s}
