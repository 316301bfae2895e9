"""Launches of one program that race together: which cuts of each are tried, and what is kept of the verdict on all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.failures import line
from fuseplan.measure.jobs import OutcomeRow
from fuseplan.tuning.program.baseline import planned
from fuseplan.tuning.program.evidence import evidence_of, raced_of
from fuseplan.tuning.program.moves import moves_of
from fuseplan.tuning.program.propose import Candidate
from fuseplan.tuning.program.race import Verdict, among, decided
from fuseplan.tuning.program.result import Tuned, plan_to_store, store
from fuseplan.tuning.program.search import LaunchSearch
from fuseplan.tuning.program.services import Services
from fuseplan.tuning.program.vet_plans import Rows, holds_too_much, is_torchs
from fuseplan.tuning_db import Environment, StoredPlan
from fuseplan.tuning_db.evidence import Raced
from fuseplan.tuning_db.launches import faster_launch, of_launch

UNSUITED = {"cudagraph": "CUDA graphs do not suit it"}
"""What is said of a launch that is left out."""


def why_not(search: LaunchSearch, fit: Sequence[RaceEntry], rows: Rows, here: Environment) -> str:
    """Why a launch is left out of the race; nothing where it is in it, be it for a plan that is no default."""
    known = search.entries.of(fit)
    too_large = [_too_large(rows[entry.name], here.gpu_memory_gib) if search.called else "" for entry in known]
    if not any(entry.default for entry in known) and (not search.called or not known):
        bad = next((rows[entry.name] for entry in search.entries.raced if entry.default and entry.name in rows), None)
        return "no default of it runs" if bad is None else line(bad.detail or bad.status)
    return too_large[0] if all(too_large) else ""


def with_room(
    entries: Iterable[RaceEntry], rows: Rows, here: Environment, called: Sequence[LaunchSearch]
) -> list[RaceEntry]:
    """Entries without those whose graphs would hold too much of the GPU, where another launch that is `called` so races beside them, or at
    the edge of a box to which they pad: their rows refuse them.
    """
    found, beside = [], {name for search in called if search.called for name, _ in search.entries}
    for one in entries:
        may_be = planned(one).padded or one.name in beside
        why = _too_large(rows[one.name], here.gpu_memory_gib) if may_be else ""
        if why:
            rows[one.name] = replace(rows[one.name], status="refused", detail=why)
        else:
            found.append(one)
    return found


def _too_large(row: OutcomeRow, memory: float | None) -> str:
    if not holds_too_much(row, memory):
        return ""
    return f"its graphs would hold {(row.peak_bytes or 0) / 2**30:.1f} of the {memory} GiB of the GPU"


def left_out(reasons: Mapping[str, str]) -> str:
    """What is said of launches, by the reasons for which they are left out.

    >>> left_out({"plain": "", "cudagraph": "add is on the cpu"})
    'CUDA graphs do not suit it: add is on the cpu'
    """
    return "; ".join(f"{UNSUITED.get(launch, launch)}: {why}" for launch, why in reasons.items() if why)


def shared_out(worth: Mapping[str, Sequence[Candidate]], races: Mapping[str, int]) -> dict[str, int]:
    """How many cuts of each launch race: together no more than one launch had alone, those that are thought to be the fastest,
    and the best of each.

    >>> from fuseplan.plan import Plan
    >>> slow, fast = ([Candidate(Plan("aten"), us + more) for more in range(4)] for us in (90.0, 40.0))
    >>> shared_out({"plain": slow, "cudagraph": fast}, {"plain": 4, "cudagraph": 4})
    {'plain': 1, 'cudagraph': 3}
    """
    if len(worth) == 1:
        return dict(races)
    counts = {launch: min(1, races[launch], len(found)) for launch, found in worth.items()}
    rest = [
        (candidate.predicted_us, launch)
        for launch, found in worth.items()
        for candidate in found[counts[launch] : races[launch]]
    ]
    more = max(0, max(races.values()) - sum(counts.values()))
    for _, launch in sorted(rest, key=lambda one: one[0])[:more]:
        counts[launch] += 1
    return counts


def keep_launches(
    services: Services,
    searches: Sequence[LaunchSearch],
    able: Sequence[LaunchSearch],
    tried: Sequence[LaunchSearch],
    verdict: Verdict,
) -> Tuned:
    """Write down the fastest plan of all launches; and that of each other of which more was `tried` than defaults, and that was in the race
    for long enough, if a look-up that may take either takes the fastest all the same. Return the verdict for people.
    """
    rows, entries = verdict.rows, [entry for search in searches for entry in search.entries.raced]
    winning = next(search for search in able if verdict.winner.name in search.entries)
    best = _plan_of(services, winning, searches, verdict)
    assert best is not None  # since it won
    for search in tried:
        other = None if search is winning else _plan_of(services, search, searches, verdict)
        if other is not None and faster_launch([best, other]) is best:
            store(services, search.problem.program, other, search.entries.own, search.entries.own_rows(rows))
    program, default = winning.problem.program, verdict.best_default
    store(services, program, best, winning.entries.own, winning.entries.own_rows(rows))
    return Tuned(
        program.key, program.name, program.launch, best.status, verdict.winner.plan, verdict.winner.name, best.wall_us,
        default.name, rows[default.name].wall_us, verdict.result.noise, best.peak_bytes, best.moves,
        raced_of(entries, rows), detail=program.objective.unmet(best.peak_bytes),
    )  # fmt: skip


def _plan_of(
    services: Services, search: LaunchSearch, searches: Sequence[LaunchSearch], verdict: Verdict
) -> StoredPlan | None:
    """The plan of one launch as the database is to have it, with what is known of the others; None where nobody can tell."""
    found = among(verdict, search.entries.raced)
    if found is None:
        return None
    found = decided(found, search.problem.program.objective, search.entries.raced)
    rows, entries = search.entries.own_rows(found.rows), search.entries
    if verdict.winner.name not in search.entries and is_torchs(found.winner) and not found.rows[found.winner.name].how:
        return None  # what lost was not judged, and what else this launch could be has not raced: it is not known to be the best
    winner = entries.own_of(found.winner.name)
    best = entries.own_of(found.best_default.name) if found.best_default.name in entries else None
    if best is None:  # none of its own has a time
        best = replace(found.best_default, name=f"{found.best_default.name} of another launch")
        rows[best.name] = found.rows[found.best_default.name]
    plan = planned(winner)
    return plan_to_store(
        services, search.problem.program, replace(found, winner=winner, best_default=best, rows=rows), entries.own,
        moves_of(search.knowledge, plan), evidence_of(search.knowledge, plan),
        [one for other in searches if other is not search for one in _beside(other, verdict)],
    )  # fmt: skip


def _beside(search: LaunchSearch, verdict: Verdict) -> list[Raced]:
    """What raced of another launch. What was predicted stands in the evidence of its own plan."""
    raced = raced_of(search.entries.own, search.entries.own_rows(verdict.rows))
    return [replace(one, name=of_launch(one.name, search.launch), predicted_us=None) for one in raced]
