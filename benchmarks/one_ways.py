"""The ways of one model against each other, in a process of its own. `ways` starts it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.fleet import Task
from benchmarks.timing import compared
from benchmarks.traced_programs import look_at_each
from fuseplan.capture.trace.format import Trace
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import OutcomeRow, RacePlans, VetPlan
from fuseplan.measure.race import Rule
from fuseplan.plan import Plan
from fuseplan.rewrites.found import SiteFound
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program.baseline import settings_entries
from fuseplan.tuning.program.problem import ProgramLaunch, captured, problem_of
from fuseplan.tuning.program.rewriting import rewrites_of
from fuseplan.tuning.program.services import Services
from fuseplan.tuning.traces import box_of

DEFAULT, PREFERRED = "torch.compile", "all that is preferred"
ROUNDS = (15, 25)


def run(task: Task) -> None:
    """All programs of the model."""
    look_at_each(task, partial(_raced, task.arguments["launch"], tuple(task.arguments["ways"])))


def _raced(
    launch: str, only: tuple[str, ...], services: Services, effort: Effort, trace: Trace
) -> Iterator[dict[str, Any]]:
    """All that is found of one program, as it is found: of ways that begin as `only` says, if it names any."""
    found = captured(services, trace)
    if isinstance(found, str):
        yield {"failures": {"capturing": found}}
        return
    device, text = services.environment.device, trace.to_json()
    problem = problem_of(found, ProgramLaunch(trace.key, trace.name, launch, box_of(trace)), effort, device)
    entries = [RaceEntry(DEFAULT, Plan("inductor", launch=launch), default=True), *by_kind(found.sites, launch)]
    settings = {one.name: PREFERRED for one in settings_entries(problem)}
    if problem.rewrites:
        entries.append(RaceEntry(PREFERRED, Plan("inductor", problem.rewrites, launch=launch)))
    else:
        settings = dict.fromkeys(settings, DEFAULT)
    entries += settings_entries(problem)
    entries = [one for one in entries if one.default or not only or one.name.startswith(only)]
    if len(entries) == 1:
        yield {"ways": []}
        return
    yield {"ways": [one.name for one in entries[1:]]}
    vetted = services.carry_out("compiling and checking", [VetPlan(text, one) for one in entries])
    rows = [row for outcome in vetted for row in outcome.rows]
    right = [one for one in entries if _status(rows, one.name) == "ok"]
    yield {"failures": {one.name: _status(rows, one.name) for one in entries if one not in right}}
    if right[:1] != entries[:1] or len(right) == 1:
        return
    rule = Rule(by=("wall_us",), most=ROUNDS[1], least=ROUNDS[0], hopeless=1e9)
    (outcome,) = services.carry_out(f"racing, {launch}", [RacePlans(text, tuple(right), DEFAULT, rule)])
    race = outcome.race
    if race is None:
        yield {"failures": {DEFAULT: f"{outcome.status}: {outcome.detail}"}}
        return
    able = {row.name for row in outcome.rows if row.status == "ok"}
    base = {one.name: settings.get(one.name, DEFAULT) for one in right[1:]}
    yield {
        "noise": race.noise, "rounds": race.rounds,
        "device_us": {row.name: row.device_us for row in outcome.rows},
        "gains": {name: compared(race, to, name) for name, to in base.items() if {name, to} <= able},
    }  # fmt: skip


def by_kind(sites: Sequence[SiteFound], launch: str) -> Iterator[RaceEntry]:
    """The program with the sites of one kind alone written otherwise: each in the way to try first, and in each word's."""
    for kind in dict.fromkeys(site.kind for site in sites):
        own = [site for site in sites if site.kind == kind and site.ways]
        first: Mapping[Any, str] = {site.named: site.preferred or site.ways[0] for site in own}
        words = dict.fromkeys(word for site in own for word, _ in site.rivals)
        ways = {", ".join(sorted(set(first.values()))): first}
        ways |= {
            word: {**first, **{one.named: way for one in own for w, way in one.rivals if w == word}} for word in words
        }
        seen: list[Mapping[Any, str]] = []
        for word, chosen in ways.items():
            if chosen and chosen not in seen:
                seen.append(chosen)
                yield RaceEntry(f"{kind} {word}", Plan("inductor", rewrites_of(sites, chosen), launch=launch))


def _status(rows: Sequence[OutcomeRow], name: str) -> str:
    """How one was judged."""
    row = next((row for row in rows if row.name == name), OutcomeRow(name, "error", "it has no row"))
    return row.status if row.status == "ok" else f"{row.status}: {row.detail}"
