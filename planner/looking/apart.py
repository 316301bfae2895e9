"""Where two plans of one program differ, and why: by what each race has found of what the other plan chose."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fuseplan.looking.words import device_of, times, us
from fuseplan.plan import Plan
from fuseplan.tuning_db.evidence import SiteEvidence
from fuseplan.tuning_db.records import StoredPlan

AS_IS = "as-is"


@dataclass(frozen=True)
class PlanDifference:
    """One choice that two plans of a program make in two ways."""

    what: str
    first: str
    second: str
    why: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """One line on it, for people."""
        why = f" ({'; '.join(self.why)})" if self.why else ""
        return f"{self.what}: {self.first} -> {self.second}{why}"


def plans_apart(first: StoredPlan, second: StoredPlan) -> tuple[PlanDifference, ...]:
    """The choices in which two plans differ; nothing where they are equal.

    >>> from fuseplan.plan import Rewrite
    >>> from fuseplan.tuning_db import Environment
    >>> one = StoredPlan("ab", Environment("cpu", "2.12.0"), Plan("inductor", (Rewrite("attention", 0, "math"),)))
    >>> two = StoredPlan("ab", Environment("cpu", "2.13.0"), Plan("inductor"))
    >>> [difference.line for difference in plans_apart(one, two)]
    ['attention: math -> as-is']
    """
    one, two = first.plan, second.plan
    kinds = dict.fromkeys([*(each.kind for each in one.rewrites), *(each.kind for each in two.rewrites)])
    found = [
        PlanDifference(kind, *ways, _why_ways(kind, first, second))
        for kind in kinds
        if len(set(ways := (_ways(one, kind), _ways(two, kind)))) > 1
    ]
    of_plans = [
        ("host", one.host, two.host), ("carved out", _regions(one), _regions(two)), ("settings", one.settings, two.settings),
        ("saving", one.saving, two.saving), ("launch", one.launch, two.launch), ("named", one.name or "-", two.name or "-"),
    ]  # fmt: skip
    of_plans.append(("padded", one.padding or "-", two.padding or "-"))
    of_plans.append(("objective", first.objective.short, second.objective.short))
    fates = tuple(filter(None, (_fate(first, second), _fate(second, first))))
    found += [PlanDifference(what, here, there, fates) for what, here, there in of_plans if here != there]
    if not found and one.carve_outs != two.carve_outs:
        found.append(PlanDifference("carved out", _regions(one), "as many, of other ops", fates))
    return tuple(found)


def _ways(plan: Plan, kind: str) -> str:
    """The ways that a plan has for the sites of a kind, in words."""
    counts = Counter(one.way for one in plan.rewrites if one.kind == kind)
    return ", ".join(way if count == 1 else f"{count} × {way}" for way, count in counts.items()) or AS_IS


def _regions(plan: Plan) -> str:
    counts = Counter(region.executor for region in plan.regions)
    return ", ".join(f"{count} under {executor}" for executor, count in counts.most_common()) or "nothing"


def _why_ways(kind: str, first: StoredPlan, second: StoredPlan) -> tuple[str, ...]:
    """What each race has found of the ways of a kind."""
    told = [(stored, _words_on(kind, stored)) for stored in (first, second)]
    if not any(text for _, text in told):
        return ()
    return tuple(f"{_place(stored)}: {text or 'nobody has looked at such a site'}" for stored, text in told)


def _words_on(kind: str, stored: StoredPlan) -> str:
    """What is known of the first sites of a kind of which anything is known."""
    return next((text for one in stored.evidence.sites if one.kind == kind and (text := _site_words(one))), "")


def _site_words(site: SiteEvidence) -> str:
    told = [f"{way.way} {us(way.wall_us)}" for way in site.raced[:4]]
    told += [f"{', '.join(ways)} refused, since {why}" for why, ways in list(site.refused.items())[:1]]
    return ", ".join(told)


def _fate(plan: StoredPlan, other: StoredPlan) -> str:
    """What became of a plan in the race of the other, where it was in that."""
    name = f"plan {plan.key[:12]}"
    for one in other.evidence.raced:
        if one.name != name and not one.name.startswith(f"{name}, "):
            continue
        if one.status != "ok":
            return f"{_place(other)}: the other plan is {one.status}, {one.detail}"
        ratio = one.wall_us / other.wall_us if one.wall_us and other.wall_us else None
        return f"{_place(other)}: the other plan takes {times(ratio)} as long"
    return ""


def _place(stored: StoredPlan) -> str:
    return f"{device_of(stored.environment)}, torch {stored.environment.torch}"
