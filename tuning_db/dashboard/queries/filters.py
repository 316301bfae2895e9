"""The filters of the bar as SQL, and what there is to choose from."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from fuseplan.tuning_db.dashboard.ask import Filters
from fuseplan.tuning_db.dashboard.queries.values import text

NVFUSER = """(SELECT version FROM environment_executor
  WHERE environment_id = environment.id AND executor = 'nvfuser')"""
DEVICE = "coalesce(environment.gpu, environment.cpu)"
STANDING = "coalesce(plan.word, CASE plan.status WHEN 'quarantined' THEN 'failed' ELSE plan.status END)"
MODEL = """CASE WHEN instr(program.name, ', graph ') > 0
     THEN substr(program.name, 1, instr(program.name, ', graph ') - 1) ELSE program.name END"""
"""What a program's name begins with: the graphs of one model differ in their number."""

OF_ENVIRONMENT = f"""(:gpu = '' OR {DEVICE} = :gpu) AND (:torch = '' OR environment.torch = :torch)
   AND (:nvfuser = '' OR coalesce({NVFUSER}, 'none') = :nvfuser)"""
OF_PROGRAM = f"(:model = '' OR {MODEL} = :model)"


def of_place(table: str) -> str:
    """The condition on a table with a launch, beside `environment` and `program`. No value is in it."""
    return f"{OF_ENVIRONMENT} AND {OF_PROGRAM} AND (:launch = '' OR {table}.launch = :launch)"


def of_time(column: str) -> str:
    """The condition on when something happened: on that day or later, on that day or earlier."""
    return f"(:since = '' OR {column} >= :since) AND (:until = '' OR substr({column}, 1, 10) <= :until)"


def bound(filters: Filters) -> dict[str, str]:
    """The values of those conditions."""
    return dict(vars(filters))


@dataclass(frozen=True)
class Choices:
    """What there is to choose from, in each filter."""

    gpu: tuple[str, ...] = ()
    torch: tuple[str, ...] = ()
    nvfuser: tuple[str, ...] = ()
    launch: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    """At most MOST_MODELS: a longer list is typed, not chosen."""


MOST_MODELS = 500


def choices(connection: sqlite3.Connection) -> Choices:
    """Choices that the whole database leaves, whatever the filters."""

    def column(sql: str) -> tuple[str, ...]:
        return tuple(text(row[0]) for row in connection.execute(sql) if text(row[0]))

    return Choices(
        column(f"SELECT DISTINCT {DEVICE} FROM environment ORDER BY 1"),
        column("SELECT DISTINCT torch FROM environment ORDER BY 1"),
        column(f"SELECT DISTINCT coalesce({NVFUSER}, 'none') FROM environment ORDER BY 1"),
        ("plain", "cudagraph"),
        column(f"SELECT DISTINCT {MODEL} FROM program WHERE name IS NOT NULL ORDER BY 1 LIMIT {MOST_MODELS}"),
    )
