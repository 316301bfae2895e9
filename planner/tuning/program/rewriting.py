"""Which ways of its sites a program is raced in: all preferred ones together, what differs from these in one decision, and what
those make together that have won.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fuseplan.graph.words import runs_of
from fuseplan.plan import Rewrite
from fuseplan.rewrites.found import SiteFound
from fuseplan.tuning.effort import Effort

PROVEN = "proven"
"""What sites of a kind are called that are all written in their preferred ways, each proven to be the same."""

Named = tuple[str, int]
Ways = Mapping[Named, str | None]
"""Of some sites the way in which each is written; None for as it is."""


@dataclass(frozen=True)
class Alternative:
    """One decision that differs from what is preferred: other ways for equal sites, or for all of a kind."""

    name: str
    ways: Ways
    """Of the sites that differ."""

    def over(self, ways: Ways) -> Ways:
        """These ways, but for those that differ."""
        return {**ways, **self.ways}


def preferred_ways(sites: Sequence[SiteFound]) -> Ways:
    """Each site in the way to try first."""
    return {site.named: site.preferred for site in sites}


def preferred_name(sites: Sequence[SiteFound]) -> str:
    """What a plan is called that has all sites in the ways to try first; nothing where that is as they are."""
    return ", ".join(f"{kind} {PROVEN}" for kind in dict.fromkeys(site.kind for site in sites if site.preferred))


def rewrites_of(sites: Sequence[SiteFound], ways: Ways) -> tuple[Rewrite, ...]:
    """What a plan says that writes sites in these ways."""
    found = (Rewrite(*site.named, way, site.digest) for site in sites if (way := ways.get(site.named)) is not None)
    return tuple(sorted(found, key=lambda one: (one.kind, one.site)))


def alternatives(sites: Sequence[SiteFound], effort: Effort, step_us: float | None) -> list[Alternative]:
    """The decisions that are worth a race of their own, of a program whose step takes about so long; the weightiest first.

    Whole kinds come before single groups of equal sites. Where a step is short, what a kernel takes by itself matters, so
    that rivals race under a small effort too.
    """
    found = [*_without_one_kind(sites, effort), *_instead(sites)]
    if effort.name == "full" or (step_us is not None and step_us <= effort.rivals_us):
        found += _rivals(sites)
    if effort.name == "full":
        found += _of_groups(sites)
    preferred = preferred_ways(sites)
    seen = {_key(preferred), _key({})}
    unique: list[Alternative] = []
    for one in found:
        key = _key(one.over(preferred))
        if key not in seen:
            seen.add(key)
            unique.append(one)
    return unique[: effort.rewrites]


def joined(sites: Sequence[SiteFound], winners: Sequence[Alternative]) -> Alternative | None:
    """The winners together, the best first: those that are about other sites than the ones before, and go with them. None where
    there are not two.
    """
    excludes = {site.named: set(site.excludes) for site in sites}
    preferred, taken = preferred_ways(sites), list[Alternative]()
    for one in winners:
        if any(one.ways.keys() & other.ways.keys() for other in taken):
            continue
        together = preferred
        for other in (*taken, one):
            together = other.over(together)
        written = {named for named, way in together.items() if way is not None}
        if not any(excludes[named] & written for named in one.ways if named in written):
            taken.append(one)
    if len(taken) < 2:
        return None
    return Alternative(" + ".join(one.name for one in taken), {k: v for one in taken for k, v in one.ways.items()})


def groups_of(sites: Sequence[SiteFound]) -> dict[tuple[str, str], list[SiteFound]]:
    """Equal sites together, by kind and group."""
    groups: dict[tuple[str, str], list[SiteFound]] = {}
    for site in sites:
        groups.setdefault((site.kind, site.group), []).append(site)
    return groups


def _key(ways: Ways) -> frozenset[tuple[Named, str | None]]:
    return frozenset((named, way) for named, way in ways.items() if way is not None)


def _without_one_kind(sites: Sequence[SiteFound], effort: Effort) -> Iterator[Alternative]:
    for kind in dict.fromkeys(
        site.kind for site in sites if site.preferred and (site.doubtful or effort.name == "full")
    ):
        yield Alternative(f"{kind} as is", {site.named: None for site in sites if site.kind == kind and site.preferred})


def _instead(sites: Sequence[SiteFound]) -> Iterator[Alternative]:
    """The sites that stand back behind those of another kind, rewritten in the place of these."""
    for kind in dict.fromkeys(site.kind for site in sites):
        ways: dict[Named, str | None] = {}
        for site in sites:
            if site.kind == kind and site.behind is not None:
                ways |= {site.named: site.behind, **dict.fromkeys(site.excludes)}
        if ways:
            yield Alternative(f"{kind} instead", ways)


def _rivals(sites: Sequence[SiteFound]) -> Iterator[Alternative]:
    """By kind and word, all sites of the kind that have a rival of that word. Where such a site stands back behind none, and is not
    rewritten since nobody prefers it, those of other kinds make room for it.
    """
    able = [site for site in sites if site.behind is None]
    for kind, word in dict.fromkeys((site.kind, word) for site in able for word, _ in site.rivals):
        ways: dict[Named, str | None] = {}
        for site in able:
            way = dict(site.rivals).get(word) if site.kind == kind else None
            if way is not None:
                ways |= {**(dict.fromkeys(site.excludes) if site.preferred is None else {}), site.named: way}
        yield Alternative(f"{kind} {word}", ways)


def _of_groups(sites: Sequence[SiteFound]) -> Iterator[Alternative]:
    """Each group of equal sites by itself, where there are several of its kind; the largest first."""
    groups = groups_of([site for site in sites if site.preferred is not None or not site.excludes])
    for (kind, _), alike in sorted(groups.items(), key=lambda item: -len(item[1])):
        first, name = alike[0], f"{kind} {runs_of([site.number for site in alike])}"
        if first.preferred is not None:
            yield Alternative(f"{name} as is", {site.named: None for site in alike})
        for word, way in first.rivals:
            yield Alternative(f"{name} {word}", {site.named: way for site in alike})
