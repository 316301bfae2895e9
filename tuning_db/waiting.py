"""Which programs have a trace, and which a plan that counts, out of one layer."""

from __future__ import annotations

import sqlite3

from fuseplan.tuning_db.environment import Environment
from fuseplan.tuning_db.lookup import environments

Place = tuple[str, str]
"""The key of a program, and the box of its sizes."""
Planned = tuple[Environment, str]
"""Where a plan counts, and its objective as the database spells it."""
_TRACED = "SELECT program.key, trace.sizes FROM trace JOIN program ON program.id = trace.program_id"
_PLANNED = (
    "SELECT DISTINCT program.key, plan.sizes, environment.key, plan.objective FROM plan JOIN program ON program.id = plan.program_id"
    " JOIN environment ON environment.id = plan.environment_id"
    " WHERE (plan.word IS NOT NULL OR plan.status IN ('tuned', 'default'))"
)
"""A plan that was predicted alone, or has failed, is none; one that a person has disabled is: somebody said no."""


def traced(connection: sqlite3.Connection) -> list[Place]:
    """All that there is a trace of."""
    return [(str(key), str(sizes)) for key, sizes in connection.execute(_TRACED)]


def planned(connection: sqlite3.Connection) -> list[tuple[Place, Planned]]:
    """What has a plan, in which environment, and for which objective."""
    known = environments(connection)
    rows = connection.execute(_PLANNED)
    return [
        ((str(key), str(sizes)), (known[place], str(objective))) for key, sizes, place, objective in rows if place in known
    ]  # fmt: skip
