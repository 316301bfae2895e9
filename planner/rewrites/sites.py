"""The sites of all kinds in a Dynamo graph, those inside checkpointed blocks among them, and what is to be told of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch.fx import GraphModule, Node

from fuseplan.errors import PlanError
from fuseplan.log import logger
from fuseplan.plan import Plan, Rewrite
from fuseplan.rewrites.base import Kind, Site
from fuseplan.rewrites.blocks import block_at, blocks_in
from fuseplan.rewrites.found import MissedPlaces, SiteFound
from fuseplan.rewrites.kinds import KINDS
from fuseplan.rewrites.special import example, special, transformed
from fuseplan.rewrites.unfolded import unfolded

T = TypeVar("T")
Path = tuple[str, ...]
"""Where a nested graph stands: the name of its module in the graph that holds it, and so on; empty for the outermost."""


@dataclass(frozen=True, eq=False)
class PlacedSite:
    """A site, its kind, and the graph that it stands in. Its number is among the sites of its kind in the whole program."""

    name: str
    """Of the kind."""
    kind: Kind[Any]
    found: Site
    """As its kind found it, by whose own count it has another number where it is nested."""
    number: int
    digest: str
    path: Path
    around: str | None = None
    """What the program sets around the graph that it stands in, where its kind cannot see that."""

    @property
    def named(self) -> tuple[str, int]:
        """What a plan calls it."""
        return self.name, self.number

    @property
    def noun(self) -> str:
        """What people call it."""
        return f"{self.kind.noun} {self.number}"

    def refusal(self, way: str) -> str | None:
        """Why a way is not legal here; None if it is."""
        return self._special or self.kind.refusal(self.found, way)

    def forbidden(self, way: str) -> str | None:
        """Why a way is not wanted in this process as it is set now, or under what the program sets around it."""
        return self.kind.forbidden(self.found, way)

    def reason(self, way: str) -> str | None:
        """Why not to write it so, be it that it is not legal or not wanted."""
        return self.forbidden(way) or self.refusal(way)

    @cached_property
    def _special(self) -> str | None:
        """Why it is left alone whatever its kind says: nobody has shown what ways do to tensors that are not plain."""
        if self.around is not None:
            return self.around
        nodes = dict.fromkeys(self.kind.nodes(self.found))
        read = dict.fromkeys(one for node in nodes for one in (*node.all_input_nodes, node))
        return next((f"{node.name} is {what}" for node in read if (what := special(example(node)))), None)

    @property
    def preferred(self) -> str | None:
        """The way to try first; None to leave it as it is."""
        way = self.kind.preferred(self.found)
        return way if way is not None and self.reason(way) is None else None

    def rewrite(self, way: str) -> Rewrite:
        """What a plan says that writes it so."""
        return Rewrite(self.name, self.number, way, self.digest)

    def line(self, way: str | None) -> str:
        """One line on it, for people; without a way it is left as it is."""
        return self.kind.describe(replace(self.found, number=self.number), way)


def sites_of(name: str, gm: GraphModule) -> list[PlacedSite]:
    """The sites of one kind: those of the graph itself in their order, and after them those of the graphs nested in it. They
    consist of nodes of the graph as it is unfolded.
    """
    if name not in KINDS:
        raise PlanError(f"there is no kind of rewrite {name!r}; known are {', '.join(KINDS)}")
    kind, placed = KINDS[name], list[PlacedSite]()
    for path, graph, around in graphs_in(unfolded(gm).gm):
        inside = transformed(graph.graph) if kind.has_own_gradients else set[Node]()
        for site in _read(kind, kind.find, graph) or ():
            what = around if inside.isdisjoint(kind.nodes(site)) else "a transformation such as vmap is around it"
            placed.append(PlacedSite(name, kind, site, len(placed), _digest(site, path), path, what))
    return placed


def _read(kind: Kind[Any], read: Callable[[GraphModule], T], graph: GraphModule) -> T | None:
    """What a kind says of a graph; None where it fails."""
    try:
        return read(graph)
    except Exception as error:  # noqa: BLE001 -- a kind may be anybody's: what it cannot read runs as it is written
        logger.warning("no %s is rewritten: its kind cannot read this program: %s", kind.noun, type(error).__name__)
        return None


def missed_places(gm: GraphModule, kinds: Collection[str] | None = None) -> tuple[MissedPlaces, ...]:
    """What looks like sites of these kinds, else of all, and is none: all that is so for one reason together."""
    found: dict[tuple[str, str], list[str]] = {}
    graphs = [graph for _, graph, _ in graphs_in(unfolded(gm).gm)]
    for name, kind in KINDS.items():
        for graph in graphs if kinds is None or name in kinds else ():
            for node, reason in (_read(kind, kind.missed, graph) or {}).items():
                found.setdefault((name, reason), []).append(node)
    return tuple(MissedPlaces(kind, reason, tuple(nodes)) for (kind, reason), nodes in found.items())


def graphs_in(
    gm: GraphModule, path: Path = (), around: str | None = None
) -> Iterator[tuple[Path, GraphModule, str | None]]:
    """The graph itself, and then each block in it that is computed anew in the backward, each once, outer ones first; with each,
    what is set around it.
    """
    yield path, gm, around
    nested: dict[str, str | None] = {}
    for node in gm.graph.nodes:
        if node.target is torch.nn.attention._sdpa_kernel:
            around = "the program chooses kernels of attention around its block"
        if (name := block_at(node)) is not None:
            nested[name] = nested.get(name) or around
    for name, block in blocks_in(gm):
        yield from graphs_in(block, (*path, name), nested[name])


@dataclass(frozen=True)
class Sites:
    """The sites of some kinds in one program, in the order of the list of kinds."""

    placed: Sequence[PlacedSite]

    @staticmethod
    def of(gm: GraphModule, kinds: Collection[str] | None = None) -> Sites:
        """Those of these kinds, else of all."""
        gm = unfolded(gm).gm
        return Sites([one for name in KINDS if kinds is None or name in kinds for one in sites_of(name, gm)])

    def preferring(self, plan: Plan) -> Plan:
        """The plan with each site in the way that is preferred; what the plan itself says stands."""
        said = {(one.kind, one.site): one.way for one in plan.rewrites}
        taken = [(one, said[one.named]) for one in self.placed if one.named in said]
        found = list(plan.rewrites)
        for one in self.placed:
            way = None if one.named in said else one.preferred
            if way is not None and not any(shared(one, way, other, its) for other, its in taken):
                taken.append((one, way))
                found.append(one.rewrite(way))
        return replace(plan, rewrites=tuple(sorted(found, key=lambda one: (one.kind, one.site))))

    def told(self) -> tuple[SiteFound, ...]:
        """What is to be told of each."""
        chosen = {(one.kind, one.site) for one in self.preferring(Plan("aten")).rewrites}
        refused = [{way: one.reason(way) for way in one.kind.ways(one.found)} for one in self.placed]
        legal = [tuple(way for way, reason in each.items() if reason is None) for each in refused]
        ways = list(zip(self.placed, legal, strict=True))
        return tuple(
            _told(one, able, {way: reason for way, reason in each.items() if reason}, one.named in chosen, excludes)
            for (one, able), each in zip(ways, refused, strict=True)
            for excludes in [_excluded(one, able, ways)]
        )

    def allowed(self, plan: Plan) -> tuple[Plan, tuple[str, ...]]:
        """The plan with each rewrite that is not wanted here replaced by the way that is preferred, if one is; and why."""
        placed = {one.named: one for one in self.placed}
        kept, reasons = list[Rewrite](), list[str]()
        for one in plan.rewrites:
            site = placed.get((one.kind, one.site))
            reason = None if site is None else site.forbidden(one.way)
            if site is None or reason is None:
                kept.append(one)
                continue
            instead = site.preferred
            reasons.append(f"{site.noun} is {instead or 'left as it is'}, not {one.way}: {reason}")
            kept += [replace(one, way=instead)] if instead is not None else []
        return replace(plan, rewrites=tuple(kept)), tuple(reasons)


def shared(one: PlacedSite, way: str, other: PlacedSite, its: str) -> Node | None:
    """A node that two sites of different kinds would both change if each were written so; None if they go together."""
    if one.name == other.name or one.path != other.path:
        return None
    changed = set(one.kind.changes(one.found, way))
    return next((node for node in other.kind.changes(other.found, its) if node in changed), None)


def _digest(site: Site, path: Path) -> str:
    """Of a nested site, the digest tells where it is nested too."""
    return site.digest if not path else hashlib.sha256(repr((path, site.digest)).encode()).hexdigest()[:16]


def _told(
    one: PlacedSite, ways: tuple[str, ...], refused: Mapping[str, str], chosen: bool, excludes: Sequence[PlacedSite]
) -> SiteFound:
    kind, site = one.kind, one.found
    preferred, behind = (one.preferred, None) if chosen else (None, one.preferred)
    rivals = tuple((word, way) for word, way in kind.rivals(site).items() if way in ways and way != preferred)
    sparing = tuple(way for way in kind.sparing(site) if way in ways)
    alike = repr((one.name, kind.group(site), ways, preferred, rivals, bool(excludes)))
    return SiteFound(
        one.name, one.number, one.digest, hashlib.sha256(alike.encode()).hexdigest()[:16], ways, refused, preferred,
        rivals, tuple(other.named for other in excludes), kind.about(site), kind.doubtful, behind, sparing,
    )  # fmt: skip


def _excluded(
    one: PlacedSite, ways: Sequence[str], all_ways: Sequence[tuple[PlacedSite, tuple[str, ...]]]
) -> list[PlacedSite]:
    """The sites of which some way does not go with some way of this one."""
    rivals = [(other, its) for other, its in all_ways if other.name != one.name and other.path == one.path]
    changed = _changed(one, ways) if rivals else set()
    return [other for other, its_ways in rivals if not changed.isdisjoint(_changed(other, its_ways))]


def _changed(one: PlacedSite, ways: Sequence[str]) -> set[Node]:
    """The nodes that some way of a site changes."""
    return {node for way in ways for node in one.kind.changes(one.found, way)}
