"""Whole plans that take less memory and more time, which race where memory counts: losses in chunks, a forward that is computed again
block by block, a smaller budget of what it keeps for the backward, what host aten saves, and all of these together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest

from fuseplan.host.settings import SPARING
from fuseplan.measure.entry import RaceEntry
from fuseplan.plan import SAVING, Plan, Rewrite
from fuseplan.rewrites.found import SiteFound
from fuseplan.tuning.program.problem import Problem
from fuseplan.tuning.program.rewriting import Alternative, Named, preferred_name, preferred_ways, rewrites_of
from fuseplan.tuning_db import Environment

_Written = tuple[str, tuple[Rewrite, ...]]
"""What a program is called that is written in some ways, and what a plan says of them."""


def sparing_entries(problem: Problem, here: Environment) -> list[RaceEntry]:
    """Entries for them, those first that promise to fit into much less, since there may be no time for all."""
    sites = problem.found.sites
    as_usual: _Written = preferred_name(sites), problem.rewrites
    thrifty = [(one.name, rewrites_of(sites, one.over(preferred_ways(sites)))) for one in sparing_ways(sites)]
    under = list(SPARING) if problem.trains else []
    found: list[RaceEntry] = []
    if here.version("inductor") is not None:
        alone = [_under_inductor(problem, "default", one) for one in thrifty]
        budgets = [_under_inductor(problem, settings, as_usual) for settings in reversed(under)]
        both = [_under_inductor(problem, settings, one) for one in thrifty for settings in reversed(under)]
        found += filter(None, chain(*zip_longest(alone, both[: len(under)], budgets)))
        found += both[len(under) :]
    if problem.trains:
        found += [
            RaceEntry(
                _named(f"aten saving {saving}", name), Plan("aten", rewrites, saving=saving, launch=problem.launch)
            )
            for name, rewrites in (as_usual, *thrifty[:1])
            for saving in SAVING
        ]
    return found


def sparing_ways(sites: Sequence[SiteFound]) -> list[Alternative]:
    """Of each kind all its sites in a way that takes less memory, the least first; other kinds make room for them."""
    return list(_ways_of_kinds(sites))


def _ways_of_kinds(sites: Sequence[SiteFound]) -> Iterator[Alternative]:
    for kind, way in dict.fromkeys((site.kind, way) for site in sites for way in site.sparing):
        ways: dict[Named, str | None] = {}
        for site in sites:
            if site.kind == kind and way in site.sparing:
                ways |= {**dict.fromkeys(site.excludes), site.named: way}
        yield Alternative(f"{kind} {way}", ways)


def _under_inductor(problem: Problem, settings: str, written: _Written) -> RaceEntry:
    name, rewrites = written
    host = "inductor" if settings == "default" else f"inductor {settings}"
    return RaceEntry(_named(host, name), Plan("inductor", rewrites, settings=settings, launch=problem.launch))


def _named(host: str, written: str) -> str:
    return ", ".join(filter(None, (host, written)))
