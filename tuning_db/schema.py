"""What a tuning database looks like: the tables, indexes and views of the present schema.

Rows refer to each other by small integers, since a file holds a million measurements; what a row *is* (its key, its
digest) never depends on them, so that two files can be merged.
"""

from __future__ import annotations

import sqlite3

from fuseplan.tuning_db import columns
from fuseplan.tuning_db.columns import Column, Row, columns_of
from fuseplan.tuning_db.environment import Environment
from fuseplan.tuning_db.records import DefaultTiming, Drift, Measurement, Run, StoredPlan
from fuseplan.tuning_db.tables import Table

APPLICATION_ID = 0x66757365  # "fuse"
VERSION = 6
"""2: plans are of format 2. 3: versions of executors are rows. 4: moves of plans are data. 5: there is a table of drift. 6: plans have
an objective."""

ENVIRONMENT = Table(
    "environment",
    "Kinds of machines with one set of versions: what a timing is true for.",
    columns_of(Environment),
    Environment,
    ("(device = 'cpu') = (gpu IS NULL)", "(device = 'cpu') = (cpu IS NOT NULL)"),
)
PROGRAM = Table(
    "program",
    "What one Dynamo graph became. The name is for people.",
    {"key": columns.key(), "name": columns.text(400, null=True), "changed_at": columns.MOMENT},
)
TRACE = Table(
    "trace",
    "Programs as they can be run again elsewhere: the Dynamo graph as JSON, with neither weights nor data; and how"
    " often each was called while it was recorded.",
    {
        "key": columns.key(32),
        "program": columns.reference("program"),
        "sizes": columns.SIZES,
        "json": columns.text(columns.MAX_TRACE),
        "calls": columns.COUNT_FROM_0,
        "changed_at": columns.MOMENT,
    },
    first="calls",
)
GRAPH = Table(
    "graph",
    "ATen graphs of programs, as canonical JSON.",
    {"key": columns.key(), "ops": columns.COUNT, "json": columns.text(columns.MAX_GRAPH)},
)
PROGRAM_GRAPH = Table(
    "program_graph",
    "Which graphs a program became, and in what role.",
    {
        "program": columns.reference("program"),
        "graph": columns.reference("graph"),
        "role": columns.one_of(columns.ROLES),
    },
)
REGION = Table(
    "region",
    "Pieces of graphs that one executor runs as a unit; equal pieces of all programs are one row.",
    {"key": columns.key(), "title": columns.text(400), "ops": columns.COUNT, "json": columns.text(columns.MAX_GRAPH)},
)
GRAPH_REGION = Table(
    "graph_region",
    "Which regions a graph was cut into, and how often each stands in it.",
    {"graph": columns.reference("graph"), "region": columns.reference("region"), "times": Column("integer", "{} > 0")},
)
RUN = Table(
    "run",
    "Runs of tuning: how hard, how far predicted times of whole plans were off, and what of the machine is recorded.",
    columns_of(Run),
    Run,
)
MEASUREMENT = Table(
    "measurement",
    "What came of running a region under one executor and variant, failures included.",
    columns_of(Measurement),
    Measurement,
    ("status <> 'ok' OR device_us IS NOT NULL",),
)
DEFAULT_TIMING = Table(
    "default_timing",
    "How fast a program ran under the plans that nobody tuned.",
    columns_of(DefaultTiming),
    DefaultTiming,
    ("status <> 'ok' OR wall_us IS NOT NULL",),
)
PLAN = Table(
    "plan",
    "Plans with their evidence: the race, and each region as it was predicted and measured. `word` is a person's, and"
    " counts more than `status`.",
    columns_of(StoredPlan),
    StoredPlan,
    # What was only predicted takes no race away, be it later; what failed has shown more than any prediction.
    first="wall_us IS NOT NULL OR best_default IS NOT NULL OR status = 'quarantined'",
)
DRIFT = Table(
    "drift",
    "How fast plans were in production beside the default, as guards saw it from time to time.",
    columns_of(Drift),
    Drift,
)

ALL = (
    ENVIRONMENT, PROGRAM, TRACE, GRAPH, PROGRAM_GRAPH, REGION, GRAPH_REGION, RUN, MEASUREMENT, DEFAULT_TIMING, PLAN, DRIFT,
)  # fmt: skip
"""The tables of rows that move between files, each after those that it refers to."""
BY_NAME = {table.name: table for table in ALL}

TABLES = {
    "schema": f"""CREATE TABLE schema (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    version INTEGER NOT NULL,
    made_by TEXT NOT NULL,
    {columns.MOMENT.sql("made_at")}
) STRICT""",
    **{table.name: table.create for table in ALL},
    "environment_executor": f"""CREATE TABLE environment_executor (
    environment_id INTEGER NOT NULL REFERENCES environment(id) ON DELETE CASCADE,
    {columns.text(100).sql("executor")},
    {columns.text(200).sql("version")},
    PRIMARY KEY (environment_id, executor)
) STRICT, WITHOUT ROWID""",
    "counter": f"""CREATE TABLE counter (
    day TEXT NOT NULL CHECK (day GLOB '20[0-9][0-9]-[01][0-9]-[0-3][0-9]'),
    {columns.text(400).sql("event")},
    {columns.COUNT.sql("count")},
    PRIMARY KEY (day, event)
) STRICT, WITHOUT ROWID""",
}

INDEXES = {
    "plan_of_program": "CREATE INDEX plan_of_program ON plan(program_id)",
    "plan_of_environment": "CREATE INDEX plan_of_environment ON plan(environment_id)",
    "plan_of_run": "CREATE INDEX plan_of_run ON plan(run_id) WHERE run_id IS NOT NULL",
    "default_timing_of_program": "CREATE INDEX default_timing_of_program ON default_timing(program_id, environment_id)",
    "default_timing_of_environment": "CREATE INDEX default_timing_of_environment ON default_timing(environment_id)",
    "default_timing_of_run": "CREATE INDEX default_timing_of_run ON default_timing(run_id) WHERE run_id IS NOT NULL",
    # Covers slowest_regions, which would otherwise read every row of the largest table.
    "measurement_of_region": """CREATE INDEX measurement_of_region
    ON measurement(region_id, environment_id, status, device_us, executor, variant)""",
    "measurement_of_run": "CREATE INDEX measurement_of_run ON measurement(run_id) WHERE run_id IS NOT NULL",
    "measurement_failed": "CREATE INDEX measurement_failed ON measurement(measured_at) WHERE status <> 'ok'",
    "drift_of_program": "CREATE INDEX drift_of_program ON drift(program_id)",
    "drift_of_environment": "CREATE INDEX drift_of_environment ON drift(environment_id)",
    "trace_of_program": "CREATE INDEX trace_of_program ON trace(program_id)",
    "program_graph_of_program": "CREATE INDEX program_graph_of_program ON program_graph(program_id)",
    "program_graph_of_graph": "CREATE INDEX program_graph_of_graph ON program_graph(graph_id)",
    "graph_region_of_graph": "CREATE INDEX graph_region_of_graph ON graph_region(graph_id)",
    "graph_region_of_region": "CREATE INDEX graph_region_of_region ON graph_region(region_id)",
    "run_of_program": "CREATE INDEX run_of_program ON run(program_id)",
    "run_of_environment": "CREATE INDEX run_of_environment ON run(environment_id)",
}

VIEWS = {
    "tuned_vs_default": """CREATE VIEW tuned_vs_default AS
SELECT coalesce(program.name, substr(program.key, 1, 12)) AS program,
       coalesce(environment.gpu, environment.cpu) AS device,
       environment.torch, plan.launch, plan.sizes, plan.objective, coalesce(plan.word, plan.status) AS status,
       plan.wall_us AS plan_us, plan.best_default, plan.best_default_us,
       round(plan.best_default_us / plan.wall_us, 4) AS speedup,
       plan.noise_us, plan.changed_at, plan.key AS plan_key, program.key AS program_key
  FROM plan JOIN program ON program.id = plan.program_id JOIN environment ON environment.id = plan.environment_id
 ORDER BY speedup DESC""",
    # Its fastest timing of each region is one step in an index: grouping a million rows takes three times as long.
    "slowest_regions": """CREATE VIEW slowest_regions AS
SELECT region.title AS region, region.ops, coalesce(environment.gpu, environment.cpu) AS device, environment.torch,
       best.device_us, best.executor, best.variant, region.key AS region_key
  FROM region JOIN environment JOIN measurement AS best ON best.id =
       (SELECT id FROM measurement WHERE region_id = region.id AND environment_id = environment.id AND status = 'ok'
         ORDER BY device_us LIMIT 1)
 ORDER BY best.device_us DESC""",
    "failures": """CREATE VIEW failures AS
SELECT 'measurement' AS what, measurement.measured_at AS happened_at, measurement.status, measurement.detail,
       measurement.executor || ' ' || measurement.variant AS who, region.title AS subject, region.key AS subject_key
  FROM measurement JOIN region ON region.id = measurement.region_id WHERE measurement.status <> 'ok'
UNION ALL
SELECT 'default', default_timing.measured_at, default_timing.status, default_timing.detail, default_timing.name,
       coalesce(program.name, substr(program.key, 1, 12)), program.key
  FROM default_timing JOIN program ON program.id = default_timing.program_id WHERE default_timing.status <> 'ok'
UNION ALL
SELECT 'plan', plan.changed_at, plan.status, plan.detail, plan.key,
       coalesce(program.name, substr(program.key, 1, 12)), program.key
  FROM plan JOIN program ON program.id = plan.program_id WHERE plan.status = 'quarantined'""",
}

NOTES = {
    **{table.name: table.note for table in ALL},
    "schema": "One row: the version of what follows, and which fuseplan made the file.",
    "environment_executor": "Which version of which executor such a machine has: beside torch, whose own operators are ATen's.",
    "counter": "Hits, misses and fallbacks by day, of processes that asked for it with the option `counters`.",
    "tuned_vs_default": "Each plan beside the best default, the largest gain first.",
    "slowest_regions": "The fastest timing of each region and device, the slowest region first.",
    "failures": "All that did not work: regions, defaults and quarantined plans, with the reason.",
}
"""What each table and view holds, for whoever looks at a file with a tool of theirs."""

OBJECTS = {**TABLES, **INDEXES, **VIEWS}
"""Every object of the schema by name, as SQLite itself keeps its text."""


def everything(connection: sqlite3.Connection) -> list[tuple[Table, Row]]:
    """All good rows of a small database, each after those that it refers to."""
    return [(table, row) for table in ALL for row in table.good(connection)]
