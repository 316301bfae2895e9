"""Every number of the overview against SQL that was written for this file alone, straight on the database."""

from __future__ import annotations

import math
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

import dashboards
from fuseplan.plan import Plan
from fuseplan.tuning_db.dashboard.ask import Ask
from fuseplan.tuning_db.dashboard.pages import overview, programs
from fuseplan.tuning_db.dashboard.reader import readers
from stored import HERE, NVFUSER, having

FILTERS = (
    {},
    {"launch": "cudagraph"},
    {"gpu": "a CPU"},
    {"gpu": "NVIDIA H200", "nvfuser": "0.2.40"},
    {"torch": "2.11.0", "model": "model 3"},
    {"since": "2026-11-04", "until": "2026-11-09"},
    {"model": "no such model"},
)

# The plan of each place, by comparing it with all others there; the defaults beside it, each by a query of its own.
VIEWS = """
CREATE TEMP VIEW standing AS SELECT plan.*, (word = 'pinned') IS TRUE AS p, (status != 'quarantined' AND (word IS NULL OR word != 'disabled')) AS u
  FROM plan;
CREATE TEMP TABLE chosen AS SELECT * FROM standing AS one WHERE NOT EXISTS (
  SELECT 1 FROM standing AS other WHERE other.program_id = one.program_id AND other.environment_id = one.environment_id
     AND other.launch = one.launch AND other.sizes = one.sizes
     AND (other.p, other.u, other.status != 'unverified', other.changed_at, other.key)
       > (one.p, one.u, one.status != 'unverified', one.changed_at, one.key));
CREATE TEMP TABLE timed AS SELECT chosen.id AS plan, d.id, name, d.wall_us, (d.run_id = chosen.run_id) IS TRUE AS same, measured_at
  FROM chosen JOIN default_timing AS d ON d.program_id = chosen.program_id AND d.environment_id = chosen.environment_id
   AND d.launch = chosen.launch AND d.sizes = chosen.sizes WHERE d.status = 'ok' AND d.wall_us > 0;
CREATE INDEX timed_plan ON timed(plan);
CREATE TEMP TABLE shown AS SELECT id, program_id, environment_id, launch, sizes, changed_at, wall_us, noise_us, best_default_us,
    coalesce(word, iif(status = 'quarantined', 'failed', status)) AS word,
    (SELECT wall_us FROM timed WHERE plan = chosen.id AND name = 'eager' ORDER BY same DESC, measured_at DESC, id DESC LIMIT 1) AS t_eager,
    (SELECT wall_us FROM timed WHERE plan = chosen.id AND name = 'inductor' ORDER BY same DESC, measured_at DESC, id DESC LIMIT 1) AS t_inductor,
    (SELECT wall_us FROM timed WHERE plan = chosen.id AND name = 'nvfuser-greedy' ORDER BY same DESC, measured_at DESC, id DESC LIMIT 1) AS t_greedy
  FROM chosen;
CREATE TEMP TABLE row AS SELECT shown.*, coalesce((SELECT sum(calls) FROM trace WHERE trace.program_id = shown.program_id
      AND trace.sizes = shown.sizes), 0) AS calls, coalesce(
    (SELECT min(t) FROM (SELECT t_eager AS t UNION ALL SELECT t_inductor UNION ALL SELECT t_greedy)), nullif(best_default_us, 0)) AS best,
    word IN ('tuned', 'default', 'pinned') AND wall_us > 0 AS raced FROM shown;
INSERT INTO row (program_id, environment_id, launch, sizes, changed_at, word, t_eager, t_inductor, t_greedy, raced)
  SELECT d.program_id, d.environment_id, d.launch, d.sizes, max(d.measured_at),
         iif(sum(run.state = 'running') > 0, 'running', 'failed'),
         (SELECT wall_us FROM default_timing AS e WHERE e.program_id = d.program_id AND e.environment_id = d.environment_id AND e.launch = d.launch
             AND e.sizes = d.sizes AND name = 'eager' AND wall_us > 0 AND status = 'ok' ORDER BY measured_at DESC, id DESC LIMIT 1),
         (SELECT wall_us FROM default_timing AS e WHERE e.program_id = d.program_id AND e.environment_id = d.environment_id AND e.launch = d.launch
             AND e.sizes = d.sizes AND name = 'inductor' AND wall_us > 0 AND status = 'ok' ORDER BY measured_at DESC, id DESC LIMIT 1),
         (SELECT wall_us FROM default_timing AS e WHERE e.program_id = d.program_id AND e.environment_id = d.environment_id AND e.launch = d.launch
             AND e.sizes = d.sizes AND name = 'nvfuser-greedy' AND wall_us > 0 AND status = 'ok' ORDER BY measured_at DESC, id DESC LIMIT 1), 0
    FROM default_timing AS d LEFT JOIN run ON run.id = d.run_id LEFT JOIN plan ON plan.program_id = d.program_id
         AND plan.environment_id = d.environment_id AND plan.launch = d.launch AND plan.sizes = d.sizes
   WHERE plan.id IS NULL GROUP BY d.program_id, d.environment_id, d.launch, d.sizes;
"""
WHERE = """JOIN program ON program.id = program_id JOIN environment ON environment.id = environment_id
 WHERE ifnull(gpu, cpu) LIKE ifnull(:gpu, '%') AND torch LIKE ifnull(:torch, '%') AND ifnull((SELECT version FROM environment_executor WHERE environment_id = environment.id
   AND executor = 'nvfuser'), 'none') LIKE ifnull(:nvfuser, '%')
   AND launch LIKE ifnull(:launch, '%') AND (:model IS NULL OR name LIKE :model || ', graph %')
   AND date(row.changed_at) BETWEEN ifnull(:since, '2000') AND ifnull(:until, '2100')"""


@pytest.fixture(scope="module", params=["mixed", "extremes", "all_regressions", "one_row", "hostile"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("numbers") / "tuning.db"
    made: Path = getattr(dashboards, request.param)(path)
    return made


def asked(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    for name, function in (("ln", math.log), ("exp", math.exp), ("sqrt", math.sqrt)):  # not every SQLite has them
        connection.create_function(name, 1, lambda x, function=function: None if x is None else function(x))
    connection.executescript("PRAGMA temp_store = MEMORY;" + VIEWS)
    return connection


def loaded(path: Path, values: dict[str, str]) -> overview.Overview:
    return overview.load(next(iter(readers([path]).values())), Ask(values))


def test_every_number_of_the_overview(database: Path) -> None:
    connection = asked(database)
    for values in FILTERS:
        page = loaded(database, values)
        names = {
            "gpu": None,
            "torch": None,
            "nvfuser": None,
            "launch": None,
            "model": None,
            "since": None,
            "until": None,
            **values,
        }

        def row(sql: str, names: dict[str, str | None] = names) -> tuple[object, ...]:
            found: tuple[object, ...] = connection.execute(f"{sql.format(where=WHERE)}", names).fetchone()
            return found

        assert (page.slots, page.programs) == row("SELECT count(*), count(DISTINCT program_id) FROM row {where}")
        for word, times in page.standings.items():
            assert (times,) == row(f"SELECT count(*) FROM row {{where}} AND row.word = '{word}'"), word
        for gain, column in zip(page.gains, ("best", "t_eager", "t_inductor", "t_greedy"), strict=True):
            expected = row(
                f"""SELECT count(*), exp(avg(ln(s))), sqrt(sum(n * n)) / count(*), total(s > 1 + n), total(s * (1 + n) < 1), min(s), max(s)
                FROM (SELECT {column} / wall_us AS s, coalesce(noise_us / wall_us, 0.0) AS n FROM row {{where}} AND raced AND {column} > 0)"""
            )
            told = (gain.programs, gain.geomean, gain.noise, gain.faster, gain.slower)
            assert told == tuple(pytest.approx(one, rel=1e-9) if one is not None else None for one in expected[:5]), (
                values
            )
            assert gain.same == gain.programs - gain.faster - gain.slower
            if gain.programs:
                assert sum(gain.bins) == gain.programs
                ratios = [row[0] for row in connection.execute(
                    f"SELECT {column} / wall_us FROM row {WHERE} AND raced AND {column} > 0 ORDER BY 1", names)]  # fmt: skip
                assert gain.median == pytest.approx((ratios[(len(ratios) - 1) // 2] + ratios[len(ratios) // 2]) / 2)
                assert gain.low == pytest.approx(_quantile(ratios, 0.1))
                assert gain.high == pytest.approx(_quantile(ratios, 0.9))
        expected = row(
            """SELECT total(calls * (best - wall_us)) / 1e6, sqrt(total(calls * ifnull(noise_us, 0) * calls * ifnull(noise_us, 0))) / 1e6,
                      total(calls * best) / 1e6, total(calls)
            FROM (SELECT *, row_number() OVER (PARTITION BY program_id, environment_id, row.sizes ORDER BY wall_us) AS place FROM row {where}
                     AND raced AND best > 0 AND calls > 0) WHERE place = 1"""
        )
        told = (page.saved.seconds or 0.0, page.saved.noise_s, page.saved.of_s, page.saved.calls)
        assert told == pytest.approx(expected, rel=1e-9), values
        noises = [row[0] for row in connection.execute(
            f"SELECT noise_us / wall_us FROM row {WHERE} AND raced AND best > 0 AND noise_us IS NOT NULL ORDER BY 1", names)]  # fmt: skip
        assert page.noise == (pytest.approx(_quantile(noises, 0.5)) if noises else None)
        assert page.noise_p90 == (pytest.approx(_quantile(noises, 0.9)) if noises else None)
        assert (page.unmeasured_noise,) == row(
            "SELECT count(*) FROM row {where} AND raced AND best > 0 AND noise_us IS NULL"
        )
        verdicts = [slot.verdict for slot in (*page.best, *page.worst)]
        assert verdicts == ["good"] * len(page.best) + ["regression"] * len(page.worst)
        fastest = row(
            "SELECT max(best / wall_us) FROM row {where} AND raced AND best / wall_us > 1 + ifnull(noise_us / wall_us, 0)"
        )[0]
        assert (page.best[0].speedup() if page.best else None) == pytest.approx(fastest)


def _quantile(ordered: list[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def test_the_table_holds_the_same_rows(database: Path) -> None:
    connection = asked(database)
    for values in FILTERS:
        names = {
            "gpu": None,
            "torch": None,
            "nvfuser": None,
            "launch": None,
            "model": None,
            "since": None,
            "until": None,
            **values,
        }
        sql = f"""SELECT program.key, row.word, row.wall_us, t_eager, t_inductor, t_greedy, iif(raced, best / wall_us, NULL)
            FROM row {WHERE} ORDER BY 1, 2, 3, 4, 5, 6"""
        expected = connection.execute(sql, names).fetchall()
        page = programs.load(next(iter(readers([database]).values())), Ask(values))
        place = {column.id: number for number, column in enumerate(page.columns)}
        chosen = ("key", "standing", "plan_us", "eager_us", "inductor_us", "nvfuser_greedy_us", "speedup")
        rows = [tuple(row[place[name]] for name in chosen) for row in page.rows]
        rows = [(row[0], str(row[1]).removesuffix(" (stale)"), *row[2:]) for row in rows]
        assert sorted(rows, key=repr) == sorted(expected, key=repr)


def test_which_plans_are_stale(tmp_path: Path) -> None:
    """Of four programs tuned before nvFuser was upgraded: who uses it missed since, who does not may do better by now."""
    later = dashboards.LATER
    rows: dashboards.Rows = []
    for number, plan in enumerate((Plan.named("inductor"), NVFUSER, Plan.named("eager"), Plan.named("inductor"))):
        rows += dashboards.program(number, f"p{number}")
        rows += dashboards.planned(number, plan=plan, wall_us=5.0, best_default="eager", best_default_us=6.0)
    rows += dashboards.planned(3, place=later, wall_us=5.0, changed_at=dashboards.at(100))
    other = having(replace(HERE, gpu="another"), nvfuser="0.9")
    rows = [
        (dashboards.ENVIRONMENT, other.row()),
        *rows,
        *dashboards.planned(0, place=other, changed_at=dashboards.at(200)),
    ]
    path = dashboards.write(tmp_path / "tuning.db", rows)
    page = programs.load(next(iter(readers([path]).values())), Ask())
    standings = {(row[0], row[18]): row[4] for row in page.rows}
    assert standings[("p0", "0.2.36")] == "tuned (stale)"
    assert standings[("p1", "0.2.36")] == "tuned"
    assert standings[("p2", "0.2.36")] == "tuned (stale)"
    assert standings[("p3", "0.2.36")] == "tuned", "it was tuned anew there"
    assert loaded(path, {}).stale == 2


@pytest.mark.parametrize("place", range(len(programs.COLUMNS)))
def test_every_column_sorts_and_nothing_is_last(tmp_path_factory: pytest.TempPathFactory, place: int) -> None:
    path = tmp_path_factory.mktemp("sorted") / "tuning.db"
    reader = next(iter(readers([dashboards.extremes(path)]).values()))
    name = programs.IDS[place]
    up = [row[place] for row in programs.load(reader, Ask({"sort": name, "order": "up"})).rows]
    down = [row[place] for row in programs.load(reader, Ask({"sort": name, "order": "down"})).rows]
    held = [cell for cell in up if cell is not None]
    assert up == held + [None] * (len(up) - len(held))
    assert down[len(held) :] == [None] * (len(up) - len(held))
    assert sorted(map(str, down)) == sorted(map(str, up))
    if programs.COLUMNS[place].numeric:
        assert held == sorted(held)  # type: ignore[type-var]
        assert [cell for cell in down if cell is not None] == sorted(held, reverse=True)  # type: ignore[type-var]
    if name == "program":
        assert up.index("numbers 2") < up.index("numbers 10")
