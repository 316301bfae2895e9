"""Which of the plans that are known of a program is the one to run, and if none is, why not."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from fuseplan.errors import FuseplanError
from fuseplan.tuning_db.columns import Row
from fuseplan.tuning_db.environment import Difference, Environment, needs_of
from fuseplan.tuning_db.evidence import Evidence
from fuseplan.tuning_db.launches import faster_launch
from fuseplan.tuning_db.records import NO_MOVES, REASONS, Hit, Miss, Query, Stale, StoredPlan
from fuseplan.tuning_db.schema import ENVIRONMENT, PLAN
from fuseplan.tuning_db.sizes import STATIC, Box

_MOST = 256
"""Plans looked at of one program and layer: those for this environment first, then the latest."""

_SELECT = f"""{PLAN.select}
 WHERE plan.program_id = (SELECT id FROM program WHERE key = ?)
 ORDER BY environment_.key = ? DESC, plan.changed_at DESC LIMIT {_MOST}"""

_ENVIRONMENTS = ENVIRONMENT.select

_KNOWS = "SELECT 1 FROM plan WHERE program_id = (SELECT id FROM program WHERE key = ?) LIMIT 1"


@dataclass(frozen=True)
class UnparsedPlan:
    """A plan as one layer holds it, not parsed yet: most are for other machines. No row: it is damaged."""

    key: str
    layer: str
    rank: int
    """The place of its layer: the highest hides the same plan in others."""
    row: Row | None
    environment: Environment | None


def candidates(connection: sqlite3.Connection, query: Query, layer: str, rank: int) -> list[UnparsedPlan]:
    """Candidates for a program in one layer, by an indexed query, and their environments by another."""
    found = connection.execute(_SELECT, (query.program, query.environment.key)).fetchall()
    rows = [(str(values[0]), PLAN.logical(values)) for values in found]
    places = {str(row["environment"]) for _, row in rows if row is not None}
    known = environments(connection, places) if places else {}
    return [
        UnparsedPlan(key, layer, rank, row, None if row is None else known.get(str(row["environment"])))
        for key, row in rows
    ]


def knows(connection: sqlite3.Connection, program: str) -> list[bool]:
    """Whether one layer has a plan for this program, be it for another machine."""
    return [connection.execute(_KNOWS, (program,)).fetchone() is not None]


def environment_of(connection: sqlite3.Connection, key: object) -> Environment | None:
    """The environment of this key; None if its row is damaged."""
    return environments(connection, [str(key)]).get(str(key))


def environments(connection: sqlite3.Connection, keys: Collection[str] | None = None) -> dict[str, Environment]:
    """Environments of a layer by key, all or those of these keys, but those whose row is damaged."""
    where = "" if keys is None else f" WHERE key IN ({', '.join('?' * len(keys))})"
    rows = connection.execute(_ENVIRONMENTS + where, tuple(keys or ())).fetchall()
    found = ((str(values[0]), _environment(values)) for values in rows)
    return {key: environment for key, environment in found if environment is not None}


@lru_cache(maxsize=256)
def _environment(values: tuple[object, ...]) -> Environment | None:
    """The environment of a row as it was read; None if it is damaged. Remembered, since each look-up meets the same few rows again."""
    row = ENVIRONMENT.logical(values)
    return None if row is None else Environment.of(row)


def choose(query: Query, found: Sequence[UnparsedPlan]) -> Hit | Stale | Miss:
    """The best of what all layers hold: a pinned plan, else one for just this environment, else a stale one."""
    highest = _highest(found)
    if not highest:
        return no_plan(query.program)
    judged = [(judge(query, candidate), candidate) for candidate in highest]
    usable = [_Usable.of(answer, candidate) for answer, candidate in judged if not isinstance(answer, Miss)]
    if not usable:
        misses = [answer for answer, _ in judged if isinstance(answer, Miss)]
        return min(misses, key=lambda miss: (REASONS.index(miss.reason), miss.detail.count(","), miss.detail))
    latest: dict[tuple[str, str], _Usable] = {}
    for one in usable:  # in one slot the latest counts, not the fastest: it is what the newest race found
        slot = (one.answer.plan.launch, one.answer.plan.sizes.text)
        if slot not in latest or (one.standing, one.changed_at) > (latest[slot].standing, latest[slot].changed_at):
            latest[slot] = one
    standing = max(one.standing for one in latest.values())
    highest_standing = [one for one in latest.values() if one.standing == standing]
    if len(highest_standing) == 1:
        return highest_standing[0].answer  # with no key of a plan made, which takes a good part of a look-up's time
    last = {one.answer.plan.key: one for one in highest_standing}
    best = faster_launch([one.answer.plan for one in last.values()], lambda plan: last[plan.key].evidence())
    return next(one.answer for one in latest.values() if one.answer.plan is best)


def no_plan(program: str) -> Miss:
    """No layer has any plan of this program."""
    return Miss("no such program", f"no plan is stored for program {program[:12]}")


def boxes(query: Query, found: Sequence[UnparsedPlan]) -> list[Box]:
    """The boxes of sizes within which this program has a plan here, whatever its sizes are now."""
    inside = []
    for candidate in _highest(found):
        box = Box.parse(str(candidate.row["sizes"])) if candidate.row is not None else STATIC
        corner = replace(query, sizes={**query.sizes, **{name: low for name, low, _ in box.spans}})
        if box != STATIC and box not in inside and not isinstance(judge(corner, candidate), Miss):
            inside.append(box)
    return inside


def _highest(found: Sequence[UnparsedPlan]) -> list[UnparsedPlan]:
    """Each plan as the highest layer that holds it has it."""
    highest: dict[str, UnparsedPlan] = {}
    for candidate in found:
        known = highest.get(candidate.key)
        if known is None or candidate.rank > known.rank:
            highest[candidate.key] = candidate
    return list(highest.values())


@dataclass(frozen=True)
class _Usable:
    answer: Hit | Stale
    standing: tuple[bool, bool, bool, int]
    changed_at: tuple[str, str]
    row: Row | None

    @staticmethod
    def of(answer: Hit | Stale, candidate: UnparsedPlan) -> _Usable:
        stored = answer.plan
        standing = (stored.word == "pinned", stored.status != "unverified", isinstance(answer, Hit), candidate.rank)
        return _Usable(answer, standing, (stored.changed_at, candidate.key), candidate.row)

    def evidence(self) -> Evidence:
        """What the answer was told without, since few have a use for it."""
        stored = self.answer.plan
        try:
            return StoredPlan.of({**(self.row or {}), "moves": NO_MOVES}, stored.environment).evidence
        except FuseplanError:
            return stored.evidence


def judge(query: Query, candidate: UnparsedPlan) -> Hit | Stale | Miss:
    """Whether a plan may be run for this question."""
    row, environment, name = candidate.row, candidate.environment, f"plan {candidate.key[:12]}"
    if row is None or environment is None:
        return Miss("row damaged", f"the row of {name} is damaged: see fuseplan db check")
    miss = _other_environment(environment.differences(query.environment, ())) or _other_question(query, row)
    if miss is not None:
        return miss
    try:
        # Who runs a plan has no use for its evidence and moves, and reading those may take longer than all the rest.
        stored = StoredPlan.of({**row, "evidence": "", "moves": NO_MOVES}, environment)
    except FuseplanError as error:
        return Miss("failed validation", f"{name}: {error}")
    needs = needs_of(stored.plan)
    miss = _other_environment(environment.versions_apart(query.environment, needs)) or _withheld(query, stored, name)
    if miss is not None:
        return miss
    rest = environment.other_differences(query.environment, needs)
    return Stale(stored, candidate.layer, rest) if rest else Hit(stored, candidate.layer)


def _other_environment(differing: Sequence[Difference]) -> Miss | None:
    """Why a plan is not for this place, or None."""
    return Miss("other environment", "other " + ", ".join(map(str, differing))) if differing else None


def _other_question(query: Query, row: Row) -> Miss | None:
    """Why a plan is no answer to what is asked, wherever it is for, or None."""
    if row["objective"] != str(query.objective):
        return Miss("other objective", f"other objective {row['objective']} -> {query.objective}")
    if query.launch is not None and row["launch"] != query.launch:
        return Miss("other launch", f"other launch {row['launch']} -> {query.launch}")
    return None


def _withheld(query: Query, stored: StoredPlan, name: str) -> Miss | None:
    """Why a plan that is for this place is not used, or None."""
    outside = stored.sizes.why_not(query.sizes)
    if outside is not None:
        return Miss("outside the tuned sizes", f"outside the tuned sizes: {outside}")
    forbidden = [] if query.kinds is None else sorted({one.kind for one in stored.plan.rewrites} - set(query.kinds))
    if forbidden:
        return Miss(
            "rewrites forbidden", f"{name} has rewrites of {', '.join(forbidden)}, which option rewrites forbids"
        )
    resting = sorted({one.kind for one in stored.plan.rewrites} & set(query.unpromised))
    if resting:
        return Miss(
            "weights not promised",
            f"{name} has rewrites of {', '.join(resting)}, for which option weights promises nothing",
        )
    if stored.word == "disabled":
        return Miss("disabled", f"{name} was disabled by hand")
    if stored.status == "quarantined":
        return Miss("quarantined", f"{name} failed here: {stored.detail}")
    if stored.status == "unverified" and stored.word != "pinned" and not query.unverified:
        return Miss("unverified", f"{name} is unverified: fuseplan db verify, tune, or ask with unverified=True")
    return None
