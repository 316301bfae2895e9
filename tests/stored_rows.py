"""Hypothesis strategies for rows of the tuning database that fit together, and databases filled with them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hypothesis import strategies as st

from fuseplan.judge.output import JudgedOutput
from fuseplan.plan import Plan
from fuseplan.segment.moves import Move
from fuseplan.tuning_db import (
    Box,
    DefaultTiming,
    Evidence,
    Measurement,
    Raced,
    RegionEvidence,
    Repeats,
    Run,
    StoredPlan,
)
from fuseplan.tuning_db.columns import Row
from fuseplan.tuning_db.exchange.export import lines
from fuseplan.tuning_db.files import Database
from fuseplan.tuning_db.programs import region_row
from fuseplan.tuning_db.records import trace_key
from fuseplan.tuning_db.schema import (
    DEFAULT_TIMING,
    ENVIRONMENT,
    GRAPH,
    GRAPH_REGION,
    MEASUREMENT,
    PLAN,
    PROGRAM,
    PROGRAM_GRAPH,
    REGION,
    RUN,
    TRACE,
)
from fuseplan.tuning_db.tables import RowWriter, Table
from stored import BOTH, CPU, GELU, HERE, INDUCTOR, NVFUSER, RELU, graph_of

Rows = list[tuple[Table, Row]]

ENVIRONMENTS = (HERE, CPU, replace(HERE, torch="2.13.0"))
PROGRAMS = ("ab" * 32, "cd" * 32)
# The same graphs under other names, too: one key, two spellings, of which merging must always keep the same.
GRAPHS = (RELU, GELU, graph_of("aten.relu.default", "aten.gelu.default", size=8))

times = st.none() | st.floats(0, 1e13, exclude_max=True)
names = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=8)
moments = st.builds("2026-11-{:02}T12:00:00.000Z".format, st.integers(1, 28))
repeats = st.builds(Repeats, st.lists(st.floats(0, 1e6), max_size=3).map(tuple))
statuses = st.sampled_from(("refused", "error", "wrong", "timeout"))
environments = st.sampled_from(ENVIRONMENTS)
boxes = st.sampled_from((Box(), Box.of({"s0": (1, 64)}), Box.of({"s0": (65, 512), "s1": (1, 8)})))
runs = st.builds(
    Run, st.none() | st.sampled_from(PROGRAMS), environments, state=st.sampled_from(("running", "finished")),
    host=st.none() | names, key=st.sampled_from(("5" * 32, "6" * 32)), started_at=moments, changed_at=moments,
)  # fmt: skip
run_keys = st.none() | st.sampled_from(("5" * 32, "6" * 32))
failures = st.builds(
    Measurement, st.sampled_from(GRAPHS).map(lambda graph: graph.key), environments, names, names, statuses,
    times, times, detail=names, run=run_keys, measured_at=moments,
)  # fmt: skip
measurements = failures | st.builds(
    Measurement, st.sampled_from(GRAPHS).map(lambda graph: graph.key), environments,
    st.sampled_from(("aten", "inductor")), device_us=st.floats(0, 1e6), host_us=times, repeats=repeats,
    peak_bytes=st.none() | st.integers(0, 2**40), run=run_keys, measured_at=moments, predicted_us=times,
    spread=st.none() | st.floats(0, 5),
)  # fmt: skip
timings = st.builds(
    DefaultTiming, st.sampled_from(PROGRAMS), environments, st.sampled_from(("eager", "inductor")), sizes=boxes,
    wall_us=st.floats(0, 1e6), repeats=repeats, run=run_keys, measured_at=moments,
)  # fmt: skip
short = st.none() | st.integers(0, 10**9).map(lambda us: us / 8)  # evidence keeps times to the nanosecond
errors = st.floats(0, allow_infinity=False)
outputs = st.lists(st.builds(JudgedOutput, names, names, errors, errors, errors), max_size=3).map(tuple)
raced = st.builds(
    Raced, names, st.booleans(), statuses, names, short, walls=st.lists(st.just(2.5), max_size=3).map(tuple),
    how=st.just("") | names, outputs=outputs,
)  # fmt: skip
of_regions = st.builds(RegionEvidence, st.just("forward"), st.integers(-1, 9), names, names, names, device_us=short)
evidence = st.builds(
    Evidence,
    st.lists(raced, max_size=2).map(tuple),
    st.lists(of_regions, max_size=2).map(tuple),
    searched=st.booleans(),
)
plans = st.builds(
    StoredPlan, st.sampled_from(PROGRAMS), environments,
    st.sampled_from((INDUCTOR, NVFUSER, BOTH, Plan.named("eager"))),
    status=st.sampled_from(("tuned", "default", "unverified", "quarantined")),
    word=st.sampled_from((None, None, "pinned", "disabled")), sizes=boxes, wall_us=times, predicted_us=times,
    moves=st.lists(st.builds(Move, names, change_us=st.none() | st.floats(-1e6, 1e6), words=names), max_size=2).map(tuple), evidence=evidence, detail=names, run=run_keys, changed_at=moments,
)  # fmt: skip


def trace_row(program: str, sizes: str, name: str, moment: str, calls: int = 0) -> Row:
    """A trace of a program; its name stands for all that two traces of one program may differ in."""
    text = json.dumps({"format": "fuseplan trace 1", "key": program, "name": name}, separators=(",", ":"))
    return {
        "key": trace_key(program, sizes), "program": program, "sizes": sizes, "json": text, "calls": calls,
        "changed_at": moment,
    }  # fmt: skip


@st.composite
def contents(draw: st.DrawFn) -> Rows:
    """Rows of all tables, each after those that it refers to."""
    rows: Rows = [(ENVIRONMENT, environment.row()) for environment in ENVIRONMENTS]
    for key in PROGRAMS:
        rows.append((PROGRAM, {"key": key, "name": draw(st.none() | names), "changed_at": draw(moments)}))
        for sizes in draw(st.sets(boxes, max_size=2)):
            rows.append((TRACE, trace_row(key, sizes.text, draw(names), draw(moments), draw(st.integers(0, 2)))))
    for graph in GRAPHS:
        rows.append((GRAPH, {"key": graph.key, "ops": len(graph.ops), "json": graph.to_json()}))
        rows.append((REGION, {**region_row(graph), "title": draw(st.sampled_from(("one", "two")))}))
    rows.append((PROGRAM_GRAPH, {"program": PROGRAMS[0], "graph": GELU.key, "role": "inference"}))
    rows.append((GRAPH_REGION, {"graph": GELU.key, "region": RELU.key, "times": draw(st.integers(1, 3))}))
    for key in ("5" * 32, "6" * 32):
        rows.append((RUN, replace(draw(runs), key=key).row()))
    rows += [(MEASUREMENT, one.row()) for one in draw(st.lists(measurements, max_size=4))]
    rows += [(DEFAULT_TIMING, one.row()) for one in draw(st.lists(timings, max_size=3))]
    rows += [(PLAN, one.row()) for one in draw(st.lists(plans, max_size=4))]
    return rows


def database_of(rows: Sequence[tuple[Table, Row]], path: Path | None = None) -> Database:
    """A database that holds these rows."""
    database = Database(path)

    def put(connection: object) -> None:
        writer = RowWriter(connection)  # type: ignore[arg-type]
        for table, row in rows:
            writer.put(table, row)

    database.write(put)
    return database


def exported(database: Database) -> list[str]:
    """All that two databases have in common when they hold the same."""
    return database.read(lambda connection: list(lines(connection)))
