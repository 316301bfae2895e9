"""The rewrites of a plan, put into a Dynamo graph before anything is traced, so that gradients follow by themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import combinations

from torch._inductor import config
from torch.fx import GraphModule

from fuseplan.errors import PlanError
from fuseplan.log import logger
from fuseplan.plan import Plan, Rewrite
from fuseplan.rewrites.base import Draft, Site
from fuseplan.rewrites.kinds import KINDS
from fuseplan.rewrites.sites import Path, PlacedSite, graphs_in, shared, sites_of
from fuseplan.rewrites.unfolded import unfolded


@dataclass(frozen=True)
class Rewritten:
    """A Dynamo graph with rewrites in it, these with the digests of their sites, and a line on each site of their kinds."""

    gm: GraphModule
    rewrites: tuple[Rewrite, ...]
    lines: tuple[str, ...] = ()


def rewritten(gm: GraphModule, rewrites: tuple[Rewrite, ...]) -> Rewritten:
    """Return a copy of a Dynamo graph in which these sites are written in these ways; `gm` stays as it is. Free without any.

    PlanError says which of them does not fit: its site is not there or is another, or cannot be written so, or not beside
    another one.
    """
    if not rewrites:
        return Rewritten(gm, ())
    gm = unfolded(gm).gm
    lines: list[str] = []
    chosen: dict[PlacedSite, str] = {}
    for name in dict.fromkeys(one.kind for one in rewrites):
        placed = sites_of(name, gm)
        ways = {_site(placed, one): one.way for one in rewrites if one.kind == name}
        lines += [site.line(ways.get(site)) for site in placed]
        chosen |= ways
    _check_pairs(chosen)
    found = _Drafts(gm).finished(chosen)
    for site, way in chosen.items():
        logger.info("rewrite: %s", site.line(way))
    return Rewritten(found, tuple(site.rewrite(way) for site, way in chosen.items()), tuple(lines))


def known_to_torchs_cache(plan: Plan) -> AbstractContextManager[object]:
    """While it lasts, torch's cache of what AOTAutograd makes takes programs with the functions of the plan's rewrites.

    It refuses any function that it does not know, and then a program is traced anew at every start, which may take as long
    as all else. Under a plan without rewrites nothing changes: it shares what is kept.
    """
    functions: dict[str, str] = {}
    for name in dict.fromkeys(one.kind for one in plan.rewrites):  # torch's key holds them in their order
        functions |= KINDS[name].functions
    if not functions:
        return nullcontext()
    known = config.unsafe_marked_cacheable_functions
    patched: AbstractContextManager[object] = config.patch(unsafe_marked_cacheable_functions={**known, **functions})
    return patched


def _site(placed: Sequence[PlacedSite], one: Rewrite) -> PlacedSite:
    """The site that a rewrite means, which can be written so."""
    noun = KINDS[one.kind].noun
    # another version may find more, or fewer, before it
    meant = [site for site in placed if site.digest == one.digest]
    if not meant and one.site >= len(placed):
        raise PlanError(f"the plan speaks of {noun} {one.site}; the program has {len(placed)} of them")
    site = meant[0] if meant else placed[one.site]
    if one.digest not in (None, site.digest):
        raise PlanError(f"{site.noun} is another than the one that the plan was made for")
    refusal = site.reason(one.way)
    if refusal is not None:
        raise PlanError(f"{site.noun} cannot be {one.way}: {refusal}")
    return site


def _check_pairs(chosen: Mapping[PlacedSite, str]) -> None:
    """PlanError where two kinds would have the same node."""
    for (one, way), (other, its) in combinations(chosen.items(), 2):
        node = shared(one, way, other, its)
        if node is not None:
            raise PlanError(
                f"{one.noun} cannot be {way} beside {other.noun} as {its}: both would change {node.name} of the graph"
            )


@dataclass
class _Drafts:
    """A draft of each graph that has sites which are rewritten, and of those that it is nested in."""

    gm: GraphModule
    of: dict[Path, Draft] = field(default_factory=dict)

    def finished(self, chosen: Mapping[PlacedSite, str]) -> GraphModule:
        """The copy of the outermost graph."""
        graphs = {path: graph for path, graph, _ in graphs_in(self.gm)}
        for path in dict.fromkeys(site.path for site in chosen):
            for length in range(len(path) + 1):
                self.of.setdefault(path[:length], Draft(graphs[path[:length]]))
        for path, draft in self.of.items():
            for name in dict.fromkeys(site.name for site in chosen):
                ways: dict[Site, str] = {
                    site.found: way for site, way in chosen.items() if (site.name, site.path) == (name, path)
                }
                if ways:
                    KINDS[name].apply(draft, ways)
        return self._finished(())

    def _finished(self, path: Path) -> GraphModule:
        found = self.of[path].finished()
        for nested in self.of:
            if len(nested) == len(path) + 1 and nested[:-1] == path:
                setattr(found, nested[-1], self._finished(nested))
        return found
