"""The whole plans that need no search: the defaults, which are always in the race, and whole programs with other anchors."""

from __future__ import annotations

from collections.abc import Sequence

from fuseplan.executors.known import known_executors
from fuseplan.host.settings import BUNDLES
from fuseplan.measure.entry import RaceEntry
from fuseplan.plan import Plan, Rewrite
from fuseplan.segment import Segmentation
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program.kernel_search import searching_s
from fuseplan.tuning.program.knowledge import Knowledge
from fuseplan.tuning.program.problem import Problem
from fuseplan.tuning.program.rewriting import Alternative, preferred_name, preferred_ways, rewrites_of
from fuseplan.tuning.program.services import Services
from fuseplan.tuning_db import Environment, Miss

SEARCHING = "max-autotune-no-cudagraphs"
"""Inductor's mode in which it looks for kernels by itself."""
SEARCHES = "Inductor would search for kernels"
"""Why a plan in that mode is not raced where seconds count."""
EAGER = RaceEntry("eager", Plan("eager"), default=True)


def searches(entry: RaceEntry) -> bool:
    """Whether Inductor looks for kernels by itself under the plan of an entry: that takes long."""
    return planned(entry).settings == SEARCHING


def planned(entry: RaceEntry) -> Plan:
    """The plan of an entry: in tuning each has one."""
    assert entry.plan is not None
    return entry.plan


def defaults(here: Environment, launch: str, *, cut_up: bool = True, eager: bool = True) -> list[RaceEntry]:
    """The plans that need no tuning, torch's own and those of ours that cut a program up; the first is the one that ties go to. Without
    `eager`, what torch.compile does is one of them.
    """
    entries = [RaceEntry("inductor", Plan("inductor", launch=launch), default=True)]
    if launch == "plain" and (eager or not here.version("inductor")):
        entries.append(EAGER)
    for traits in known_executors():
        if cut_up and traits.greedy_default and here.version(traits.name):
            name = f"{traits.name}-greedy"
            entries.append(RaceEntry(name, Plan("aten", launch=launch, name=name), default=True))
    return [entry for entry in entries if here.version("inductor") or entry.name != "inductor"]


def whole_candidates(
    problem: Problem, here: Environment, effort: Effort, others: Sequence[Alternative]
) -> list[RaceEntry]:
    """Whole-program plans that differ from the defaults in how sites are written, among them the `others` that differ from what
    is preferred there, or in Inductor's own mode.
    """
    if here.version("inductor") is None:
        return []
    rewrites, preferred = problem.rewrites, preferred_name(problem.found.sites)
    entries = [rewritten_entry(problem, preferred, rewrites)] if rewrites else []
    entries += [rewritten_entry(problem, one.name, rewrites_under(problem, one)) for one in others]
    if effort.name == "full" and here.device != "cpu":
        entries += settings_entries(problem)
        searched = Plan("inductor", rewrites, settings=SEARCHING, launch=problem.launch)
        name = ", ".join(filter(None, ("inductor max-autotune", preferred)))
        graphs = (graph for _, graph in problem.found.graphs)
        entries.append(RaceEntry(name, searched, searching_s=searching_s(graphs)))
    return entries


def settings_entries(problem: Problem) -> list[RaceEntry]:
    """The program with what is preferred of rewrites, under each bundle of settings that touches something in it."""
    backward = next((graph for role, graph in problem.found.graphs if role == "backward"), None)
    targets = {op.target for op in backward.ops} if backward is not None else set()
    preferred, found = preferred_name(problem.found.sites), list[RaceEntry]()
    for settings, bundle in BUNDLES.items():
        if any(part in target for part in bundle.touches for target in targets):
            plan = Plan("inductor", problem.rewrites, settings=settings, launch=problem.launch)
            found.append(RaceEntry(", ".join(filter(None, (f"inductor {settings}", preferred))), plan))
    return found


def rewritten_entry(problem: Problem, name: str, rewrites: tuple[Rewrite, ...]) -> RaceEntry:
    """The program as torch.compile would have it if it were written so."""
    return RaceEntry(f"inductor, {name}", Plan("inductor", rewrites, launch=problem.launch))


def rewrites_under(problem: Problem, other: Alternative) -> tuple[Rewrite, ...]:
    """What a plan says that differs from what is preferred in one decision."""
    sites = problem.found.sites
    return rewrites_of(sites, other.over(preferred_ways(sites)))


def default_us(services: Services, knowledge: Knowledge) -> float | None:
    """What the best default takes: as it was raced here once, else eager by prediction."""
    program = knowledge.problem.program
    timed = services.store.find_default_timings(program.key, services.environment)
    raced = () if isinstance(timed, Miss) else timed
    walls = [one.wall_us for one in raced if one.launch == program.launch and one.status == "ok" and one.wall_us]
    return min(walls) if walls else knowledge.predict([Segmentation()] * len(knowledge.problem.graphs))
