"""The whole plans that need no search: the defaults, which are always in the race, and whole programs with other anchors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fuseplan.executors.known import known_executors
from fuseplan.measure.entry import RaceEntry
from fuseplan.plan import Plan, Rewrite
from fuseplan.rewrites.found import SiteFound
from fuseplan.segment import Segmentation
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program.kernel_search import searching_s
from fuseplan.tuning.program.knowledge import Knowledge
from fuseplan.tuning.program.problem import Problem, rewrites_of
from fuseplan.tuning.program.services import Services
from fuseplan.tuning_db import Environment, Miss

PROVEN = "proven"
"""What sites of a kind are called that are all written in their preferred ways, each proven to be the same."""
SEARCHING = "max-autotune-no-cudagraphs"
"""Inductor's mode in which it looks for kernels by itself."""


def searches(entry: RaceEntry) -> bool:
    """Whether Inductor looks for kernels by itself under the plan of an entry: that takes long."""
    return planned(entry).settings == SEARCHING


def planned(entry: RaceEntry) -> Plan:
    """The plan of an entry: in tuning each has one."""
    assert entry.plan is not None
    return entry.plan


def defaults(here: Environment, launch: str) -> list[RaceEntry]:
    """The plans that need no tuning; the first is the one that ties go to."""
    entries = [RaceEntry("inductor", Plan("inductor", launch=launch), default=True)]
    if launch == "plain":
        entries.append(RaceEntry("eager", Plan("eager"), default=True))
    for traits in known_executors():
        if traits.greedy_default and here.version(traits.name):
            name = f"{traits.name}-greedy"
            entries.append(RaceEntry(name, Plan("aten", launch=launch, name=name), default=True))
    return [entry for entry in entries if here.version("inductor") or entry.name != "inductor"]


def whole_candidates(problem: Problem, here: Environment, effort: Effort) -> list[RaceEntry]:
    """Whole-program plans that differ from the defaults in their anchors, or in Inductor's own mode."""
    if here.version("inductor") is None:
        return []
    rewrites, launch = problem.rewrites, problem.launch
    base = Plan("inductor", launch=launch)
    preferred = ", ".join(f"{kind} {PROVEN}" for kind in dict.fromkeys(one.kind for one in rewrites))
    entries = [RaceEntry(f"inductor, {preferred}", replace(base, rewrites=rewrites))] if rewrites else []
    if effort.name == "full":
        entries += [
            RaceEntry(f"inductor, {kind} {word}", replace(base, rewrites=chosen))
            for (kind, word), chosen in _rivals(problem.found.sites).items()
        ]
        if here.device != "cpu":
            searched = Plan("inductor", rewrites, settings=SEARCHING, launch=launch)
            name = "inductor max-autotune" + (f", {preferred}" if rewrites else "")
            graphs = (graph for _, graph in problem.found.graphs)
            entries.append(RaceEntry(name, searched, searching_s=searching_s(graphs)))
    return entries


def default_us(services: Services, knowledge: Knowledge) -> float | None:
    """What the best default takes: as it was raced here once, else eager by prediction."""
    program = knowledge.problem.program
    timed = services.store.find_default_timings(program.key, services.environment)
    raced = () if isinstance(timed, Miss) else timed
    walls = [one.wall_us for one in raced if one.launch == program.launch and one.status == "ok" and one.wall_us]
    return min(walls) if walls else knowledge.predict([Segmentation()] * len(knowledge.problem.graphs))


def _rivals(sites: Sequence[SiteFound]) -> dict[tuple[str, str], tuple[Rewrite, ...]]:
    """By kind and word, all sites of the kind that have a rival of that word under it, and all others as is preferred."""
    words = dict.fromkeys((site.kind, word) for site in sites for word, _ in site.rivals)
    return {(kind, word): rewrites_of({site: _way(site, kind, word) for site in sites}) for kind, word in words}


def _way(site: SiteFound, kind: str, word: str) -> str | None:
    return dict(site.rivals).get(word, site.preferred) if site.kind == kind else site.preferred
