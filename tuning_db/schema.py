"""What a tuning database looks like: the tables, indexes and views of the present schema, as SQL.

Rows refer to each other by small integers, since a file holds a million measurements; what a row *is* (its key, its
digest) never depends on them, so that two files can be merged.
"""

from __future__ import annotations

APPLICATION_ID = 0x66757365  # "fuse"
VERSION = 4
"""2: plans are of format 2. 3: versions of executors are rows. 4: moves of plans are data."""

STATUSES = ("ok", "refused", "compile-error", "error", "wrong", "timeout", "crashed", "out-of-memory")
"""Of a timing: what came of it. Only `ok` has a time that counts."""
PLAN_STATUSES = ("tuned", "default", "unverified", "quarantined")
WORDS = ("pinned", "disabled")
"""What a person said about a plan; stands beside its status, so that taking it back leaves what was there."""
ROLES = ("inference", "forward", "backward")
RUN_STATES = ("running", "finished", "interrupted", "failed")


def _one_of(column: str, words: tuple[str, ...]) -> str:
    return f"CHECK ({column} IN ({', '.join(map(repr, words))}))"


def _key(column: str = "key", length: int = 64) -> str:
    return f"CHECK (length({column}) = {length} AND {column} NOT GLOB '*[^0-9a-f]*')"


def _at_most(column: str, length: int) -> str:
    return f"CHECK (length({column}) <= {length})"


def _time(column: str) -> str:
    two, three = "[0-9]" * 2, "[0-9]" * 3
    return f"CHECK ({column} GLOB '20{two}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9].{three}Z')"


def _measured(column: str) -> str:
    # A year of microseconds is 3.2e13: whatever is longer, or negative, is no time.
    return f"CHECK ({column} >= 0 AND {column} < 1e14)"


_DIGEST = "digest BLOB NOT NULL CHECK (length(digest) = 16)"
_UNIQUE_DIGEST = "digest BLOB NOT NULL UNIQUE CHECK (length(digest) = 16)"
_MAX_PLAN = 16 * 2**20
_MAX_GRAPH = 64 * 2**20
MAX_TRACE = 8 * 2**20
"""Characters of a trace; one of 10,000 calls takes about 3 million. A longer one is not kept."""
MAX_EVIDENCE = 4 * 2**20
"""Characters of the evidence for a plan: some ten thousand regions."""

TABLES = {
    "schema": f"""CREATE TABLE schema (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    version INTEGER NOT NULL,
    made_by TEXT NOT NULL,
    made_at TEXT NOT NULL {_time("made_at")}
) STRICT""",
    "environment": f"""CREATE TABLE environment (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE {_key(length=32)},
    device TEXT NOT NULL {_at_most("device", 40)},
    gpu TEXT {_at_most("gpu", 200)},
    gpu_sms INTEGER,
    gpu_l2_mib INTEGER,
    gpu_memory_gib INTEGER,
    cpu TEXT {_at_most("cpu", 200)},
    cpu_isa TEXT {_at_most("cpu_isa", 200)},
    cpu_threads INTEGER,
    cpu_compiler TEXT {_at_most("cpu_compiler", 200)},
    torch TEXT NOT NULL {_at_most("torch", 100)},
    cuda TEXT {_at_most("cuda", 100)},
    matmul_precision TEXT NOT NULL {_at_most("matmul_precision", 40)},
    cudnn_tf32 INTEGER NOT NULL CHECK (cudnn_tf32 IN (0, 1)),
    fp16_reduction INTEGER NOT NULL CHECK (fp16_reduction IN (0, 1)),
    bf16_reduction INTEGER NOT NULL CHECK (bf16_reduction IN (0, 1)),
    candidates TEXT NOT NULL {_at_most("candidates", 40)},
    protocol TEXT NOT NULL {_at_most("protocol", 40)},
    {_DIGEST},
    CHECK ((device = 'cpu') = (gpu IS NULL)),
    CHECK ((device = 'cpu') = (cpu IS NOT NULL))
) STRICT""",
    "environment_executor": f"""CREATE TABLE environment_executor (
    environment_id INTEGER NOT NULL REFERENCES environment(id) ON DELETE CASCADE,
    executor TEXT NOT NULL {_at_most("executor", 100)},
    version TEXT NOT NULL {_at_most("version", 200)},
    PRIMARY KEY (environment_id, executor)
) STRICT, WITHOUT ROWID""",
    "program": f"""CREATE TABLE program (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE {_key()},
    name TEXT {_at_most("name", 400)},
    changed_at TEXT NOT NULL {_time("changed_at")},
    {_DIGEST}
) STRICT""",
    "trace": f"""CREATE TABLE trace (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE {_key(length=32)},
    program_id INTEGER NOT NULL REFERENCES program(id) ON DELETE CASCADE,
    sizes TEXT NOT NULL {_at_most("sizes", 2000)},
    json TEXT NOT NULL {_at_most("json", MAX_TRACE)},
    calls INTEGER NOT NULL DEFAULT 0 CHECK (calls >= 0),
    changed_at TEXT NOT NULL {_time("changed_at")},
    {_DIGEST}
) STRICT""",
    "graph": f"""CREATE TABLE graph (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE {_key()},
    ops INTEGER NOT NULL CHECK (ops >= 0),
    json TEXT NOT NULL {_at_most("json", _MAX_GRAPH)},
    {_DIGEST}
) STRICT""",
    "program_graph": f"""CREATE TABLE program_graph (
    id INTEGER PRIMARY KEY,
    program_id INTEGER NOT NULL REFERENCES program(id) ON DELETE CASCADE,
    graph_id INTEGER NOT NULL REFERENCES graph(id) ON DELETE CASCADE,
    role TEXT NOT NULL {_one_of("role", ROLES)},
    {_UNIQUE_DIGEST}
) STRICT""",
    "region": f"""CREATE TABLE region (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE {_key()},
    title TEXT NOT NULL {_at_most("title", 400)},
    ops INTEGER NOT NULL CHECK (ops >= 0),
    json TEXT NOT NULL {_at_most("json", _MAX_GRAPH)},
    {_DIGEST}
) STRICT""",
    "graph_region": f"""CREATE TABLE graph_region (
    id INTEGER PRIMARY KEY,
    graph_id INTEGER NOT NULL REFERENCES graph(id) ON DELETE CASCADE,
    region_id INTEGER NOT NULL REFERENCES region(id) ON DELETE CASCADE,
    times INTEGER NOT NULL CHECK (times > 0),
    {_UNIQUE_DIGEST}
) STRICT""",
    "run": f"""CREATE TABLE run (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE {_key(length=32)},
    program_id INTEGER REFERENCES program(id) ON DELETE CASCADE,
    environment_id INTEGER NOT NULL REFERENCES environment(id) ON DELETE CASCADE,
    effort TEXT NOT NULL {_at_most("effort", 40)},
    seed INTEGER NOT NULL,
    state TEXT NOT NULL {_one_of("state", RUN_STATES)},
    fuseplan TEXT NOT NULL {_at_most("fuseplan", 100)},
    host TEXT {_at_most("host", 200)},
    driver TEXT {_at_most("driver", 100)},
    clocks TEXT {_at_most("clocks", 200)},
    error_median REAL CHECK (error_median >= 0),
    error_p90 REAL CHECK (error_p90 >= 0),
    audited INTEGER NOT NULL DEFAULT 0 CHECK (audited >= 0),
    audit_error REAL CHECK (audit_error >= 0),
    audit_within REAL CHECK (audit_within BETWEEN 0 AND 1),
    started_at TEXT NOT NULL {_time("started_at")},
    changed_at TEXT NOT NULL {_time("changed_at")},
    {_DIGEST}
) STRICT""",
    "measurement": f"""CREATE TABLE measurement (
    id INTEGER PRIMARY KEY,
    region_id INTEGER NOT NULL REFERENCES region(id) ON DELETE CASCADE,
    environment_id INTEGER NOT NULL REFERENCES environment(id) ON DELETE CASCADE,
    run_id INTEGER REFERENCES run(id),
    executor TEXT NOT NULL {_at_most("executor", 100)},
    variant TEXT NOT NULL {_at_most("variant", 200)},
    status TEXT NOT NULL {_one_of("status", STATUSES)},
    device_us REAL {_measured("device_us")},
    host_us REAL {_measured("host_us")},
    compile_s REAL {_measured("compile_s")},
    peak_bytes INTEGER CHECK (peak_bytes >= 0),
    repeats TEXT NOT NULL {_at_most("repeats", 2**20)},
    detail TEXT NOT NULL {_at_most("detail", 4000)},
    measured_at TEXT NOT NULL {_time("measured_at")},
    predicted_us REAL {_measured("predicted_us")},
    spread REAL {_measured("spread")},
    {_UNIQUE_DIGEST},
    CHECK (status <> 'ok' OR device_us IS NOT NULL)
) STRICT""",
    "default_timing": f"""CREATE TABLE default_timing (
    id INTEGER PRIMARY KEY,
    program_id INTEGER NOT NULL REFERENCES program(id) ON DELETE CASCADE,
    environment_id INTEGER NOT NULL REFERENCES environment(id) ON DELETE CASCADE,
    run_id INTEGER REFERENCES run(id),
    name TEXT NOT NULL {_at_most("name", 100)},
    launch TEXT NOT NULL {_at_most("launch", 40)},
    sizes TEXT NOT NULL {_at_most("sizes", 2000)},
    status TEXT NOT NULL {_one_of("status", STATUSES)},
    wall_us REAL {_measured("wall_us")},
    device_us REAL {_measured("device_us")},
    host_us REAL {_measured("host_us")},
    peak_bytes INTEGER CHECK (peak_bytes >= 0),
    repeats TEXT NOT NULL {_at_most("repeats", 2**20)},
    detail TEXT NOT NULL {_at_most("detail", 4000)},
    measured_at TEXT NOT NULL {_time("measured_at")},
    {_UNIQUE_DIGEST},
    CHECK (status <> 'ok' OR wall_us IS NOT NULL)
) STRICT""",
    "plan": f"""CREATE TABLE plan (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE {_key(length=32)},
    program_id INTEGER NOT NULL REFERENCES program(id) ON DELETE CASCADE,
    environment_id INTEGER NOT NULL REFERENCES environment(id) ON DELETE CASCADE,
    run_id INTEGER REFERENCES run(id),
    launch TEXT NOT NULL {_at_most("launch", 40)},
    sizes TEXT NOT NULL {_at_most("sizes", 2000)},
    status TEXT NOT NULL {_one_of("status", PLAN_STATUSES)},
    word TEXT {_one_of("word", WORDS)},
    json TEXT NOT NULL {_at_most("json", _MAX_PLAN)},
    predicted_us REAL {_measured("predicted_us")},
    wall_us REAL {_measured("wall_us")},
    device_us REAL {_measured("device_us")},
    host_us REAL {_measured("host_us")},
    noise_us REAL {_measured("noise_us")},
    peak_bytes INTEGER CHECK (peak_bytes >= 0),
    best_default TEXT {_at_most("best_default", 100)},
    best_default_us REAL {_measured("best_default_us")},
    moves TEXT NOT NULL {_at_most("moves", 2**20)},
    evidence TEXT NOT NULL DEFAULT '' {_at_most("evidence", MAX_EVIDENCE)},
    detail TEXT NOT NULL {_at_most("detail", 4000)},
    changed_at TEXT NOT NULL {_time("changed_at")},
    {_DIGEST}
) STRICT""",
    "counter": f"""CREATE TABLE counter (
    day TEXT NOT NULL CHECK (day GLOB '20[0-9][0-9]-[01][0-9]-[0-3][0-9]'),
    event TEXT NOT NULL {_at_most("event", 400)},
    count INTEGER NOT NULL CHECK (count >= 0),
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
       environment.torch, plan.launch, plan.sizes, coalesce(plan.word, plan.status) AS status,
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
    "schema": "One row: the version of what follows, and which fuseplan made the file.",
    "environment": "Kinds of machines with one set of versions: what a timing is true for.",
    "environment_executor": "Which version of which executor such a machine has: beside torch, whose own operators are ATen's.",
    "program": "What one Dynamo graph became. The name is for people.",
    "trace": "Programs as they can be run again elsewhere: the Dynamo graph as JSON, with neither weights nor data; and how"
    " often each was called while it was recorded.",
    "graph": "ATen graphs of programs, as canonical JSON.",
    "program_graph": "Which graphs a program became, and in what role.",
    "region": "Pieces of graphs that one executor runs as a unit; equal pieces of all programs are one row.",
    "graph_region": "Which regions a graph was cut into, and how often each stands in it.",
    "run": "Runs of tuning: how hard, how far predicted times of whole plans were off, and what of the machine is recorded.",
    "measurement": "What came of running a region under one executor and variant, failures included.",
    "default_timing": "How fast a program ran under the plans that nobody tuned.",
    "plan": "Plans with their evidence: the race, and each region as it was predicted and measured. `word` is a person's, and"
    " counts more than `status`.",
    "counter": "Hits, misses and fallbacks by day, of processes that asked for it with the option `counters`.",
    "tuned_vs_default": "Each plan beside the best default, the largest gain first.",
    "slowest_regions": "The fastest timing of each region and device, the slowest region first.",
    "failures": "All that did not work: regions, defaults and quarantined plans, with the reason.",
}
"""What each table and view holds, for whoever looks at a file with a tool of theirs."""

OBJECTS = {**TABLES, **INDEXES, **VIEWS}
"""Every object of the schema by name, as SQLite itself keeps its text."""
