"""Which plans are stale: something that they do not use has changed since, so that there may be a better one by now.

A look-up asks this for the machine that it runs on. Here the newest environment in the database that a plan may run in
stands for it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator

from fuseplan.tuning_db.environment import Environment
from fuseplan.tuning_db.lookup import environments

_LATEST = """SELECT environment.key, max(plan.changed_at) FROM environment
  JOIN plan ON plan.environment_id = environment.id AND plan.status IN ('tuned', 'default') GROUP BY environment.id"""
# That an older plan has failed since is no news of what is installed.
# An executor stands in a plan's JSON as a word of its own, or begins one, such as the name of a plan.
_PLANS = """SELECT plan.key, (SELECT json_group_array(value) FROM json_each(:executors) WHERE instr(plan.json, '"' || value))
  FROM plan JOIN environment ON environment.id = plan.environment_id
 WHERE environment.key = :older AND plan.status IN ('tuned', 'default') AND plan.word IS NOT 'disabled'
   AND (plan.program_id, plan.launch, plan.sizes, plan.objective) NOT IN (
       SELECT program_id, launch, sizes, objective FROM plan WHERE environment_id = (SELECT id FROM environment WHERE key = :newer))"""


def newest_here(connection: sqlite3.Connection) -> list[Environment]:
    """The environment of each machine in which something was tuned last."""
    known = environments(connection)
    ordered = sorted(connection.execute(_LATEST).fetchall(), key=lambda row: str(row[1]), reverse=True)
    newest: list[Environment] = []
    for key, _ in ordered:
        if key in known and not any(known[key].is_machine_of(one) for one in newest):
            newest.append(known[key])
    return newest


def stale_plans(connection: sqlite3.Connection) -> frozenset[str]:
    """Their keys."""
    return frozenset(_stale(connection))


def _stale(connection: sqlite3.Connection) -> Iterator[str]:
    known = environments(connection)
    latest = {key: changed for key, changed in connection.execute(_LATEST).fetchall() if key in known}
    for older in latest:
        for newer in latest:
            if latest[newer] <= latest[older] or known[older].differences(known[newer], ()):
                continue
            executors = json.dumps(sorted(known[older].executors | known[newer].executors))
            found = connection.execute(_PLANS, {"executors": executors, "older": older, "newer": newer})
            for key, used in found:
                if _worth_another_look(known[older], known[newer], set(json.loads(used))):
                    yield key


def _worth_another_look(older: Environment, newer: Environment, needs: set[str]) -> bool:
    """Whether the plan may run in the newer one, and was not chosen there."""
    return not older.differences(newer, needs) and bool(older.other_differences(newer, needs))
