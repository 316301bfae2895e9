"""A person's word on a plan: it counts more than any race. Plans are named by the beginning of their key."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fuseplan.errors import StoreError
from fuseplan.noise import RaceTime
from fuseplan.plan import Plan
from fuseplan.tuning_db.records import StoredPlan
from fuseplan.tuning_db.store import Store

SOME = 5
"""Keys that are named where a text means several plans."""
SLOWER = "no faster here"
"""How the detail of a plan begins that is out because it lost its race, not because it failed; …"""
LESS_FIT = "no better for its objective here"
"""… and where memory counts."""
LOST = (SLOWER, LESS_FIT)


@dataclass(frozen=True)
class Listed:
    """A plan as a person looks at it: with the name of its program, if it has one."""

    stored: StoredPlan
    name: str | None

    @property
    def program(self) -> str:
        """The name, else the beginning of the key."""
        return self.name or self.stored.program[:12]

    @property
    def timed(self) -> RaceTime:
        """Its time, where its race counts."""
        return self.stored.timed

    @property
    def plan(self) -> Plan:
        """The plan itself."""
        return self.stored.plan


def listed(store: Store, wanted: str = "") -> list[Listed]:
    """The plans whose key, whose program's key, or whose program's name begins with `wanted`; the latest first."""
    names = store.program_names()
    found = [Listed(stored, names.get(stored.program)) for stored in store.plans()]
    chosen = [
        one
        for one in found
        if any(text.startswith(wanted) for text in (one.stored.key, one.stored.program)) or begins(one.name, wanted)
    ]
    return sorted(chosen, key=lambda one: (one.stored.changed_at, one.stored.key), reverse=True)


def begins(name: str | None, wanted: str) -> bool:
    """Whether the name of a program begins so, or what stands in it behind the script that it was recorded from.

    >>> [begins("train.Roberta", wanted) for wanted in ("train", "Rob", "ain")], begins(None, "train")
    ([True, True, False], False)
    """
    return name is not None and any(text.startswith(wanted) for text in (name, name.partition(".")[2]))


def programs_named(store: Store, wanted: str) -> list[str]:
    """The keys of the programs that `wanted` means: the beginning of a key, of one of its plans', or of a name."""
    if not wanted:
        return []
    programs = {one.stored.program: None for one in listed(store, wanted)}  # the one with the latest plan first
    programs |= {key: None for key, name in store.program_names().items() if begins(name, wanted)}
    return list(programs | dict.fromkeys(sorted(store.programs(wanted))))


def traces_of(store: Store, wanted: str) -> list[str]:
    """The traces of the programs that `wanted` means."""
    return [text for key in sorted(programs_named(store, wanted)) for text in store.traces(key)]


def plan_named(store: Store, key: str) -> StoredPlan:
    """The one plan whose key begins with `key`."""
    found = store.plans(key) if key else []
    if not found:
        raise StoreError(f"no plan has a key that begins with {key!r}: see fuseplan plan list")
    if len(found) > 1:
        some = ", ".join([*(one.key[:12] for one in found[:SOME]), *(["…"] if found[SOME:] else [])])
        raise StoreError(f"{len(found)} plans have a key that begins with {key!r}: {some}")
    return found[0]


def pin(store: Store, key: str) -> StoredPlan:
    """Run this plan wherever it may run, though others be faster, or it unverified. Another pinned there is let go."""
    chosen = plan_named(store, key)
    if chosen.status == "quarantined" and not chosen.detail.startswith(LOST):
        raise StoreError(f"plan {chosen.key[:12]} failed here ({chosen.detail}): fuseplan plan retune, then tune again")
    for other in _beside(store, chosen):
        if other.key != chosen.key and other.word == "pinned":
            store.pin(other.key, None)
    if chosen.status == "quarantined":  # it is right, if slow: the person is to have it
        store.change_plan(chosen.key, status="unverified", detail="")
    return _say(store, chosen, "pinned")


def unpin(store: Store, key: str) -> StoredPlan:
    """Take back what was said of a plan, be it pinned or disabled: its races count again."""
    return _say(store, plan_named(store, key), None)


def disable(store: Store, key: str) -> StoredPlan:
    """Never run this plan."""
    return _say(store, plan_named(store, key), "disabled")


def retune(store: Store, key: str) -> list[StoredPlan]:
    """Let the default run until the program is tuned anew: no plan for this program and place counts as raced."""
    chosen = plan_named(store, key)
    beside = [plan for plan in _beside(store, chosen) if plan.status != "quarantined"]
    for plan in beside:
        store.change_plan(plan.key, status="unverified", word=None)
    return beside


def summary(plan: Plan) -> str:
    """Name in a few words who runs a plan.

    >>> summary(Plan.named("inductor"))
    'inductor'
    >>> summary(Plan.named("nvfuser-greedy"))
    'nvfuser-greedy'
    """
    padded = " padded" if plan.padded else ""
    if not plan.carve_outs:
        return (plan.name or plan.host) + (f" {plan.settings}" if plan.settings != "default" else "") + padded
    who = Counter(region.executor for region in plan.regions)
    others = [f"{times} {name}" for name, times in sorted(who.items())]
    return (" + ".join([plan.host, *others] if plan.host != "aten" else others) or plan.host) + padded


def _beside(store: Store, chosen: StoredPlan) -> list[StoredPlan]:
    """Plans among which a look-up would choose by their races alone, this one too."""

    def slot(plan: StoredPlan) -> tuple[str, str, str, str, str]:
        return plan.program, plan.environment.key, plan.launch, plan.sizes.text, str(plan.objective)

    return [plan for plan in store.plans() if slot(plan) == slot(chosen)]


def _say(store: Store, plan: StoredPlan, word: str | None) -> StoredPlan:
    if not store.pin(plan.key, word):
        raise StoreError("the tuning database cannot be written: nothing was changed")
    return plan_named(store, plan.key)
