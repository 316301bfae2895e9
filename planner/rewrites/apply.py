"""The rewrites of a plan, put into a Dynamo graph before anything is traced, so that gradients follow by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch._inductor import config
from torch.fx import GraphModule

from fuseplan.errors import PlanError
from fuseplan.plan import Plan, Rewrite
from fuseplan.rewrites.base import Draft, Kind, Site
from fuseplan.rewrites.kinds import KINDS


@dataclass(frozen=True)
class Rewritten:
    """A Dynamo graph with rewrites in it, these with the digests of their sites, and a line on each site of their kinds."""

    gm: GraphModule
    rewrites: tuple[Rewrite, ...]
    lines: tuple[str, ...] = ()


def rewritten(gm: GraphModule, rewrites: tuple[Rewrite, ...]) -> Rewritten:
    """Return a copy of a Dynamo graph in which these sites are written in these ways; `gm` stays as it is. Free without any.

    PlanError says which of them does not fit: its site is not there or is another, or cannot be written so.
    """
    if not rewrites:
        return Rewritten(gm, ())
    lines: list[str] = []
    chosen: list[tuple[Kind[Any], dict[Site, str]]] = []
    known: list[Rewrite] = []
    for name in dict.fromkeys(one.kind for one in rewrites):
        kind = _kind(name)
        sites = kind.find(gm)
        ways = {_site(kind, sites, one): one.way for one in rewrites if one.kind == name}
        lines += [kind.describe(site, ways.get(site)) for site in sites]
        chosen.append((kind, ways))
        known += [Rewrite(name, site.number, way, site.digest) for site, way in ways.items()]
    draft = Draft(gm)
    for kind, ways in chosen:
        kind.apply(draft, ways)
    return Rewritten(draft.finished(), tuple(known), tuple(lines))


def known_to_torchs_cache(plan: Plan) -> AbstractContextManager[object]:
    """While it lasts, torch's cache of what AOTAutograd makes takes programs with the functions of the plan's rewrites.

    It refuses any function that it does not know, and then a program is traced anew at every start, which may take as long
    as all else. Under a plan without rewrites nothing changes: it shares what is kept.
    """
    functions: dict[str, str] = {}
    for name in {one.kind for one in plan.rewrites}:
        functions |= _kind(name).functions
    if not functions:
        return nullcontext()
    known = config.unsafe_marked_cacheable_functions
    patched: AbstractContextManager[object] = config.patch(unsafe_marked_cacheable_functions={**known, **functions})
    return patched


def _kind(name: str) -> Kind[Any]:
    if name not in KINDS:
        raise PlanError(f"there is no kind of rewrite {name!r}; known are {', '.join(KINDS)}")
    return KINDS[name]


def _site(kind: Kind[Any], sites: Sequence[Site], one: Rewrite) -> Site:
    """The site that a rewrite means, which can be written so."""
    if one.site >= len(sites):
        raise PlanError(f"the plan speaks of {kind.noun} {one.site}; the program has {len(sites)} of them")
    site = sites[one.site]
    if one.digest not in (None, site.digest):
        raise PlanError(f"{kind.noun} {one.site} is another than the one that the plan was made for")
    refusal = kind.refusal(site, one.way)
    if refusal is not None:
        raise PlanError(f"{kind.noun} {one.site} cannot be {one.way}: {refusal}")
    return site
