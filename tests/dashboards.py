"""Databases for the tests of the dashboard: small ones by hand, large ones in bulk, all through the store's own tables."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from fuseplan.plan import Plan
from fuseplan.segment.moves import Move
from fuseplan.tuning_db import Box, DefaultTiming, Environment, Run, StoredPlan
from fuseplan.tuning_db.columns import Row
from fuseplan.tuning_db.records import trace_key
from fuseplan.tuning_db.schema import DEFAULT_TIMING, ENVIRONMENT, PLAN, PROGRAM, RUN, TRACE
from fuseplan.tuning_db.tables import Table
from stored import CPU, HERE, INDUCTOR, NVFUSER, having
from stored_rows import database_of

Rows = list[tuple[Table, Row]]
LATER = having(HERE, nvfuser="0.2.40")
"""The same machine with a newer nvFuser: a plan without nvFuser is stale there, and one with it a miss."""
DEFAULTS = ("eager", "inductor", "nvfuser-greedy")


def key(number: object) -> str:
    """The key of a made-up program."""
    return sha256(f"program {number}".encode()).hexdigest()


def at(minute: int) -> str:
    """A moment, so many minutes after a beginning."""
    return f"2026-11-{1 + minute // 1440:02}T{minute // 60 % 24:02}:{minute % 60:02}:00.000Z"


def program(number: object, name: str | None = None, *, calls: int = 0, sizes: str = "", minute: int = 0) -> Rows:
    """A program, and how often it was called."""
    rows: Rows = [(PROGRAM, {"key": key(number), "name": name, "changed_at": at(minute)})]
    if calls:
        traced = {
            "key": trace_key(key(number), sizes),
            "program": key(number),
            "sizes": sizes,
            "json": "{}",
            "calls": calls,
        }
        rows.append((TRACE, {**traced, "changed_at": at(minute)}))
    return rows


def timing(number: object, name: str, wall: float | None, *, place: Environment = HERE, **fields: object) -> Rows:
    """How fast a default was; no time is a failure."""
    status = "ok" if wall is not None else "error"
    made = DefaultTiming(key(number), place, name, status=status, wall_us=wall, measured_at=at(0))
    return [(DEFAULT_TIMING, replace(made, **fields).row())]  # type: ignore[arg-type]


def planned(
    number: object, *, place: Environment = HERE, plan: Plan = INDUCTOR, launch: str = "plain", **fields: object
) -> Rows:
    """A plan of a program."""
    made = StoredPlan(key(number), place, replace(plan, launch=launch), changed_at=at(0))  # type: ignore[call-arg]
    return [(PLAN, replace(made, **fields).row())]  # type: ignore[arg-type]


def raced(
    number: object, walls: Sequence[float | None], tuned: float | None, *, noise: float | None = 1.0, status: str = "tuned",
    place: Environment = HERE, launch: str = "plain", **fields: object,
) -> Rows:  # fmt: skip
    """The defaults of a program, and the plan that raced them."""
    rows: Rows = []
    for name, wall in zip(DEFAULTS, walls, strict=False):
        rows += timing(number, name, wall, place=place, launch=launch)
    return rows + planned(number, place=place, launch=launch, status=status, wall_us=tuned, noise_us=noise, **fields)


def write(path: Path, *parts: Iterable[tuple[Table, Row]]) -> Path:
    """A database of these rows."""
    rows: Rows = [(ENVIRONMENT, place.row()) for place in (HERE, CPU, LATER)]
    database_of([*rows, *(row for part in parts for row in part)], path).close()
    return path


def one_row(path: Path) -> Path:
    """One program, tuned."""
    return write(path, program(1, "only", calls=1000), raced(1, (300.0, 150.0, 200.0), 100.0))


def all_regressions(path: Path) -> Path:
    """Plans that are slower than every default, as only a person's word can make them run."""
    rows: Rows = []
    for number in range(40):
        rows += program(number, f"slow {number}", calls=10)
        rows += raced(number, (300.0, 150.0, 200.0), 160.0 + 10 * number, word="pinned")
    return write(path, rows)


def extremes(path: Path) -> Path:
    """What a column may hold at the ends of its range, and nothing at all."""
    largest, least = 9.9e13, 1e-9
    return write(
        path,
        program("huge", "huge", calls=2**53), raced("huge", (largest, largest, largest), least, noise=largest),
        program("tiny", "tiny", calls=1), raced("tiny", (least, least, least), largest, noise=0.0, word="pinned"),
        program("zero", "zero", calls=1), raced("zero", (0.0, 0.0, 0.0), 0.0, noise=0.0),
        program("null"), planned("null", status="tuned"), timing("null", "eager", None, detail="crashed"),
        program("no defaults", "no defaults"), planned("no defaults", wall_us=5.0, noise_us=None),
        program("best only", "best only"), planned("best only", wall_us=5.0, best_default="inductor", best_default_us=10.0),
        program("failed", "failed"), timing("failed", "eager", 10.0), timing("failed", "inductor", None),
        program("peak", "peak"), planned("peak", wall_us=5.0, peak_bytes=2**62),
        program("numbers 2", "numbers 2"), raced("numbers 2", (9.0, 100.0, 20.0), 9.0, status="default"),
        program("numbers 10", "numbers 10"), raced("numbers 10", (1000.0, 5.0, 20.0), 4.0),
    )  # fmt: skip


HOSTILE = (
    "<script>window.hurt = 1</script>", "</script><img src=x onerror='window.hurt = 2'>", '"><svg onload="window.hurt = 3">',
    "{{ 7 * 7 }}{% raw %}", "=HYPERLINK(\"http://evil.example\")", "\u202egnp.evil\u202c", "\u05e9\u05dc\u05d5\u05dd عالم", "🔥🧮 fused 👩‍👩‍👧",
    "a\nb\tc", "'; DROP TABLE plan; --", "${window.hurt = 4}", "javascript:alert(1)", "x" * 400, "é" * 400, "&lt;b&gt;&amp;",
    "%00%2e%2e/", "\u0000nul".replace("\u0000", "\x01"), "__proto__", "constructor", "<!--", "]]>", "graph, graph 1, graph 2",
)  # fmt: skip


def hostile(path: Path) -> Path:
    """Names and messages as somebody would write them who means harm; the longest message is of the length that fits."""
    rows: Rows = []
    for number, name in enumerate(HOSTILE):
        rows += program(number, name, calls=3)
        rows += raced(
            number,
            (30.0 + number, 15.0 + number, 20.0),
            10.0,
            moves=(Move("note", words=name * 20), Move(name, (1,), executor=name, role=name, target=name)),
            detail=(name * 4000)[:4000],
        )
    nasty = having(replace(HERE, gpu=HOSTILE[1], torch=HOSTILE[5][:90]), nvfuser=HOSTILE[0])
    rows = [
        (ENVIRONMENT, nasty.row()),
        *rows,
        *program("there", "there"),
        *raced("there", (3.0, 2.0), 1.0, place=nasty),
    ]
    return write(path, rows)


def many(path: Path, programs: int = 10_000) -> Path:
    """So many programs with three defaults each, the same at every call."""
    draw = random.Random(7)
    rows: Rows = []
    for number in range(programs):
        walls = [draw.uniform(200, 900), draw.uniform(150, 400), draw.uniform(150, 500)]
        chance = draw.random()
        best = min(walls)
        status, wall = ("tuned", best / draw.uniform(1.0, 2.2)) if chance < 0.7 else ("default", best)
        if chance > 0.95:
            status, wall = "unverified", None  # type: ignore[assignment]
        noise = None if wall is None else wall * draw.uniform(0.001, 0.02)
        rows += program(number, f"model {number % 40}, graph {number // 40}", calls=draw.randrange(1, 100_000))
        rows += raced(number, walls, wall, status=status, noise=noise, launch="cudagraph" if number % 3 == 0 else "plain",
                      changed_at=at(number % 20_000), best_default=DEFAULTS[walls.index(best)], best_default_us=best)  # fmt: skip
    return write(path, rows)


def mixed(path: Path, programs: int = 300) -> Path:
    """Everything that makes the sums of the overview hard: more runs, launches, sizes, machines, words and gaps."""
    draw = random.Random(11)
    rows: Rows = []
    runs = [
        Run(None, HERE, key=f"{number:032x}", started_at=at(0), changed_at=at(0), state="finished")
        for number in range(3)
    ]
    going = Run(None, HERE, key="f" * 32, started_at=at(0), changed_at=at(0), state="running")
    rows += [(RUN, run.row()) for run in (*runs, going)]
    box = Box.of({"s0": (1, 64)})
    for number in range(programs):
        sizes = box if number % 5 == 0 else Box()
        calls = draw.choice((0, 1, 17, 100_000))
        rows += program(
            number, None if number % 7 == 0 else f"model {number % 9}, graph {number}", calls=calls, sizes=sizes.text
        )
        for place in [HERE, *([CPU] if number % 4 == 0 else [LATER] if number % 4 == 1 else [])]:
            for launch in ("plain", "cudagraph")[: 1 + number % 2]:
                for run in runs[: draw.randrange(1, 4)]:
                    there = replace(run, environment=place)
                    minute = draw.randrange(20_000)
                    for name in DEFAULTS:
                        wall = None if draw.random() < 0.15 else draw.uniform(50, 1000)
                        rows += timing(number, name, wall, place=place, launch=launch, sizes=sizes, run=there.key,
                                       measured_at=at(minute))  # fmt: skip
                    if draw.random() < 0.1:
                        continue
                    rows += planned(
                        number, place=place, launch=launch, plan=draw.choice((INDUCTOR, NVFUSER, Plan.named("aten"))),
                        status=draw.choice(("tuned", "tuned", "default", "unverified", "quarantined")),
                        word=draw.choice((None, None, None, "pinned", "disabled")), sizes=sizes,
                        wall_us=None if draw.random() < 0.05 else draw.uniform(50, 800),
                        noise_us=None if draw.random() < 0.1 else draw.uniform(0, 20), run=there.key,
                        best_default="inductor", best_default_us=draw.uniform(50, 900), changed_at=at(minute),
                    )  # fmt: skip
    rows += program("running", "running") + timing("running", "eager", 12.0, run=going.key)
    return write(path, rows)
