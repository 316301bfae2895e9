"""Mutated database files: flipped bits, holes, other schemas, rows full of nonsense; and what must hold for each.

No crash, no hang, no wrong plan. ``python tests/mutations.py 10000`` runs as many as one likes.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from fuseplan.errors import StoreError
from fuseplan.segment.moves import Move
from fuseplan.tuning_db import DefaultTiming, Evidence, Miss, Repeats, Run, StoredPlan
from fuseplan.tuning_db.exchange import Bounds, import_file
from fuseplan.tuning_db.files import Database
from fuseplan.tuning_db.schema import ALL
from fuseplan.tuning_db.upkeep import check
from stored import (
    CPU,
    GELU,
    HERE,
    NVFUSER,
    OTHER_PROGRAM,
    PROGRAM,
    RELU,
    TRACE,
    fill,
    measurement,
    plan,
    question,
    store_at,
)

LIMIT_S = 2.0


def flip_bits(path: Path, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 1, 3, 50))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return "bits flipped"


def flip_header(path: Path, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    data[rng.randrange(100)] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return "header changed"


def truncate(path: Path, rng: random.Random) -> str:
    path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)])
    return "cut short"


def zero_page(path: Path, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    page = rng.randrange(len(data) // 4096)
    data[page * 4096 : (page + 1) * 4096] = bytes(4096) if rng.random() < 0.7 else rng.randbytes(4096)
    path.write_bytes(data)
    return "page overwritten"


def swap_pages(path: Path, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    first, second = (rng.randrange(len(data) // 4096) * 4096 for _ in range(2))
    data[first : first + 4096], data[second : second + 4096] = data[second : second + 4096], data[first : first + 4096]
    path.write_bytes(data)
    return "pages swapped"


def other_schema(path: Path, rng: random.Random) -> str:
    table = rng.choice([table.name for table in ALL])
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS id, i AS key FROM n"
    _execute(path, rng.choice((
        f"DROP TABLE {table}; CREATE VIEW {table} AS {endless}",
        f"ALTER TABLE {table} RENAME TO hidden; CREATE VIEW {table} AS SELECT * FROM hidden",
        f"DROP TABLE {table}; CREATE TABLE {table} (id INTEGER PRIMARY KEY, key, digest)",
        f"DROP TABLE {table}",
        f"ALTER TABLE {table} ADD COLUMN more TEXT",
        f"CREATE TRIGGER hostile BEFORE INSERT ON {table} BEGIN SELECT count(*) FROM ({endless}); END",
        f"CREATE TRIGGER hostile AFTER UPDATE ON {table} BEGIN DELETE FROM plan; END",
        "DROP INDEX plan_of_program; CREATE INDEX plan_of_program ON plan(json)",
        "PRAGMA user_version = 0", "PRAGMA user_version = 77", "PRAGMA application_id = 0", "DELETE FROM schema",
    )))  # fmt: skip
    return "schema swapped"


NONSENSE = (
    "'[' || replace(hex(zeroblob(50000)), '0', '[')", "'{\"kind\":\"whole\"}'", "NULL", "'NaN'", "-1.0", "1e300",
    "9e999", "-9223372036854775808", "9223372036854775807", "CAST(x'ff00fe' AS TEXT)", "x'00'", "zeroblob(5000000)",
    "char(27) || '[2J'", "'''; DROP TABLE plan; --'", "char(0) || 'x'", "'9999-99-99T99:99:99.999Z'", "''",
    "'../../../../etc/passwd'", "hex(zeroblob(3000000))",
)  # fmt: skip


def nonsense(path: Path, rng: random.Random) -> str:
    """Values that CHECKs and types would refuse: whoever writes a hostile file leaves them out."""
    table = rng.choice(ALL)
    column = table.stored(rng.choice([*table.columns, "digest"]))
    _execute(
        path,
        "PRAGMA ignore_check_constraints = ON; PRAGMA foreign_keys = OFF;"
        f"UPDATE OR REPLACE {table.name} SET {column} = {rng.choice(NONSENSE)}",
    )
    return "nonsense in rows"


def shuffled(path: Path, rng: random.Random) -> str:
    """Values of one row in another: all well-formed, and wrong."""
    table = rng.choice([table for table in ALL if table.name in ("plan", "environment", "program", "measurement")])
    column = table.stored(rng.choice([name for name in table.columns if name != "key"]))
    _execute(
        path,
        f"UPDATE OR IGNORE {table.name} SET {column} = (SELECT {column} FROM {table.name} ORDER BY random() LIMIT 1)",
    )
    return "values shuffled"


MUTATIONS: tuple[Callable[[Path, random.Random], str], ...] = (
    flip_bits, flip_bits, flip_header, truncate, zero_page, zero_page, swap_pages, other_schema, nonsense, shuffled,
)  # fmt: skip


def _execute(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in script.split(";\n" if "TRIGGER" in script else ";"):
            with suppress(sqlite3.Error):  # STRICT refuses some nonsense: then the file stays as it was
                connection.execute(statement)


def originals(path: Path) -> dict[str, StoredPlan]:
    """Make the file that is mutated; its plans by key."""
    store = store_at(path)
    fill(store)
    for number in range(20):
        store.add_measurement(RELU, measurement(variant=f"v{number}", repeats=Repeats(tuple(map(float, range(50))))))
        store.add_plan(plan(launch="cudagraph", plan=NVFUSER, moves=(Move("peel-head", region=7),) * 50 * number))
    store.add_run(Run(OTHER_PROGRAM, CPU))
    store.add_default_timing(DefaultTiming(OTHER_PROGRAM, CPU, "eager", wall_us=1.0))
    plans = {stored.key: stored for stored in store.plans()}
    store.close()
    return plans


def complaints(original: Path, plans: dict[str, StoredPlan], seed: int) -> tuple[str, list[str]]:
    """Mutate a copy, use it in every way, and return what was done to it and what went wrong."""
    rng = random.Random(seed)
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuseplan" / "tuning.db"
        path.parent.mkdir()
        shutil.copy(original, path)
        kind = rng.choice(MUTATIONS)(path, rng)
        foreign = Path(folder) / "foreign.db"
        shutil.copy(path, foreign)
        for name, work in {
            "look-ups": lambda: _look_up(path, plans),
            "import": lambda: _import(foreign, Path(folder) / "own.db", plans),
        }.items():
            start = time.monotonic()
            try:
                wrong += work()
            except Exception as error:  # noqa: BLE001  # any is a complaint
                wrong.append(f"{name}: {type(error).__name__}: {error}")
            if time.monotonic() - start > 2 * LIMIT_S:  # two or more calls, of two seconds each at most
                wrong.append(f"{name} took {time.monotonic() - start:.1f} s")
    return kind, wrong


def _look_up(path: Path, plans: dict[str, StoredPlan]) -> list[str]:
    store = store_at(path)
    wrong = []
    for query in (
        question(),
        question(launch="cudagraph"),
        question(program=OTHER_PROGRAM, environment=CPU, sizes={"s0": 3}),
    ):
        start = time.monotonic()
        store.unknown(query.program)
        store.boxes(query)
        found = store.find_plan(query)
        if time.monotonic() - start > 3 * LIMIT_S:  # the three calls of a look-up
            wrong.append(f"a look-up took {time.monotonic() - start:.1f} s")
        if not isinstance(found, Miss) and not _same(found.plan, plans):
            wrong.append(f"a wrong plan: {found.plan}")
        if not isinstance(found, Miss) and (found.plan.program, found.plan.environment) != (
            query.program,
            query.environment,
        ):
            wrong.append("the plan of another program or place")
    for region in (RELU, GELU):
        measured = store.find_measurements(region.key, HERE)
        good = {(measurement().device_us, RELU.key), (None, RELU.key)}
        records = () if isinstance(measured, Miss) else measured
        wrong += [f"a wrong measurement: {one}" for one in records if (one.device_us, one.region) not in good]
    store.find_default_timings(PROGRAM, HERE)
    if store.find_trace(PROGRAM) not in (None, TRACE):
        wrong.append("a wrong trace")
    store.add_plan(plan(launch="cudagraph"))
    if isinstance(store.find_plan(question(launch="cudagraph")), Miss):
        wrong.append("a plan that was just stored is not found")
    with suppress(StoreError):  # a file that is not ours any more, or newer
        check(Database(path))
    return wrong


def _import(foreign: Path, own: Path, plans: dict[str, StoredPlan]) -> list[str]:
    into = Database(own)
    with suppress(StoreError):
        import_file(into, foreign, trust="replay", bounds=Bounds(LIMIT_S))
    wrong = [f"after import: {problem}" for problem in check(into)] if own.exists() else []
    return wrong + [f"import of {stored.key}" for stored in store_at(own).plans() if not _same(stored, plans)]


def _same(stored: StoredPlan, plans: dict[str, StoredPlan]) -> bool:
    """A look-up leaves the evidence and the moves where they are."""
    good = (plans.get(stored.key), plan(launch="cudagraph"))
    return any(one is not None and stored in (one, replace(one, evidence=Evidence(), moves=())) for one in good)


def main(count: int, first: int = 0) -> int:
    """Run `count` mutations; print each complaint with the seed that brings it back."""
    warnings.simplefilter("ignore")
    kinds: Counter[str] = Counter()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        original = Path(folder) / "original.db"
        plans = originals(original)
        for seed in range(first, first + count):
            kind, wrong = complaints(original, plans, seed)
            kinds[kind] += 1
            failed += bool(wrong)
            for text in wrong:
                print(f"seed {seed}, {kind}: {text[:500]}", flush=True)
    print(f"{count} mutated files, {failed} with complaints: {dict(kinds)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
