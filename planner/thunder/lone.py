"""Where the single ops of a trace go, by what is measured: to torch as they are, to a region of their own, or to one beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from thunder.core.symbol import BoundSymbol

from fuseplan.noise import RaceTime, compared, noise_between
from fuseplan.thunder.asked import Answer
from fuseplan.thunder.groups import OpGroup, made_by, region_after, region_before, stays

Ask = Callable[[Sequence[BoundSymbol]], Answer]
VIEWS = "a view needs no kernel"


@dataclass
class Homes:
    """The groups of a trace as they are to be, and why each op is where it is that did not come there with its neighbours."""

    groups: list[OpGroup]
    why: dict[str, str] = field(default_factory=dict)
    """By the names of what an op gives out."""

    def note(self, ops: Sequence[BoundSymbol], why: str) -> None:
        """Say why these ops are where they are."""
        self.why |= dict.fromkeys(made_by(ops), why)


def find_homes(groups: Sequence[OpGroup], ask: Ask) -> Homes:
    """Give each single op, and each region of nothing but views, its home."""
    homes = Homes(list(groups))
    at = 0
    while at < len(homes.groups):
        group = homes.groups[at]
        if group.fusible and group.views:
            homes.groups[at] = OpGroup(group.ops, fusible=False)
            homes.note(group.ops, VIEWS)
        elif group.lone and _settle(homes, at, ask):
            continue  # it has gone to another group, and the next one stands here
        at += 1
    return homes


def _settle(homes: Homes, at: int, ask: Ask) -> bool:
    """Find the home of a lone op; whether it has left its place."""
    (op,) = homes.groups[at].ops
    own = ask([op])
    beside = [] if stays(op) else _beside(homes.groups, at)
    offers = [offer for offer in (_offer(homes.groups, at, other, own, ask) for other in beside) if offer is not None]
    best = min((offer for offer in offers if offer.better), key=lambda offer: offer.more_us, default=None)
    told = "; ".join([own.why, *(offer.why for offer in offers)])
    homes.note([op], told)
    if best is not None:
        homes.groups[best.region] = OpGroup(best.ops, fusible=True)
        del homes.groups[at]
        return True
    if own.stored is not None:
        compiled = own.stored.plan.host != "eager"
        homes.groups[at] = OpGroup((op,), fusible=compiled, measured=compiled)
    return False


def _beside(groups: Sequence[OpGroup], at: int) -> list[int]:
    return [found for found in (region_before(groups, at), region_after(groups, at)) if found is not None]


@dataclass(frozen=True)
class _Offer:
    """A region that may take a lone op: what both take together, less what they take apart."""

    region: int
    ops: tuple[BoundSymbol, ...]
    more_us: float
    """Below zero where they are faster together."""
    better: bool
    why: str


def _offer(groups: Sequence[OpGroup], at: int, other: int, own: Answer, ask: Ask) -> _Offer | None:
    """What it would be to have a lone op in another region; None where that is not measured."""
    (op,), ops = groups[at].ops, groups[other].ops
    joined = (*ops, op) if other < at else (op, *ops)
    region, both = ask(ops), ask(joined)
    if own.us is None or region.us is None or both.us is None:
        return None
    apart_us, noise = own.us + region.us, max(own.noise, region.noise)
    verdict = compared(both.us, apart_us, noise_between(RaceTime(both.us, both.noise), RaceTime(apart_us, noise)))
    side = "before" if other < at else "after"
    why = f"with the region {side} it {both.us:.1f} µs together and {apart_us:.1f} µs apart, which is {verdict}"
    return _Offer(other, joined, both.us - apart_us, verdict == "faster", why)
