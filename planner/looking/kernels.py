"""By which kernels a program is slower or faster than it was: two profiles of it, from two versions or machines, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fuseplan.looking.words import table, times, us
from fuseplan.noise import ACROSS, Comparison, compared
from fuseplan.tuning_db.profile_evidence import GapEvidence, ProfileEvidence

MOST_LINES = 8
"""Kernels of a program that are told of; the rest is in the JSON."""
UNKNOWN = "what is not known"


@dataclass(frozen=True)
class KernelChange:
    """What some ops of a program take in two profiles; nothing where no kernel there computes just these."""

    role: str
    what: str
    """The ops."""
    first_us: float | None
    second_us: float | None
    first: tuple[str, ...] = ()
    """The kernels that compute them in the first profile …"""
    second: tuple[str, ...] = ()
    """… and in the second."""

    @property
    def change_us(self) -> float:
        """By how much longer these take in the second."""
        return (self.second_us or 0.0) - (self.first_us or 0.0)

    @property
    def verdict(self) -> Comparison | str:
        """Whether they are faster or slower in the second; `gone` or `new` where what is fused with what has changed."""
        if self.first_us is None or self.second_us is None:
            return "new" if self.first_us is None else "gone"
        return compared(self.second_us, self.first_us, ACROSS)


def kernel_changes(first: ProfileEvidence, second: ProfileEvidence) -> tuple[KernelChange, ...]:
    """What changed between two profiles of a program beyond what two profiles of one version may differ by, the largest change first.

    >>> def profile(us): return ProfileEvidence("inductor", us, 0.0, gaps=(GapEvidence("inference", "add", ("k",), 1, us, 1.0, "memory"),))
    >>> [(one.what, one.change_us, one.verdict) for one in kernel_changes(profile(10.0), profile(15.0))]
    [('add', 5.0, 'slower')]
    >>> kernel_changes(profile(10.0), profile(10.1))
    ()
    """
    one, two = _by_ops(first), _by_ops(second)
    found = []
    for place in dict.fromkeys([*one, *two]):
        before, after = one.get(place), two.get(place)
        found.append(
            KernelChange(
                *place,
                None if before is None else before[0],
                None if after is None else after[0],
                () if before is None else before[1],
                () if after is None else after[1],
            )
        )
    return tuple(sorted((one for one in found if one.verdict != "same"), key=lambda one: -abs(one.change_us)))


def are_alike(first: ProfileEvidence, second: ProfileEvidence) -> bool:
    """Whether two profiles are of one plan, by its name: only then is it the version that makes them differ."""
    return first.name == second.name


def _by_ops(profile: ProfileEvidence) -> dict[tuple[str, str], tuple[float, tuple[str, ...]]]:
    """Time and kernels of a profile by role and ops; kernels of which nobody knows what they compute stand together."""
    found: dict[tuple[str, str], tuple[float, tuple[str, ...]]] = {}
    for gap in profile.gaps:
        _add(found, (gap.role, gap.what or ", ".join(gap.kernels)), gap)
    if profile.unattributed_us:
        found["", UNKNOWN] = profile.unattributed_us, profile.unattributed
    return found


def _add(found: dict[tuple[str, str], tuple[float, tuple[str, ...]]], place: tuple[str, str], gap: GapEvidence) -> None:
    known_us, kernels = found.get(place, (0.0, ()))
    found[place] = known_us + gap.us, tuple(dict.fromkeys((*kernels, *gap.kernels)))


def kernel_lines(first: ProfileEvidence, second: ProfileEvidence) -> Iterator[str]:
    """Text on what changed, for people."""
    if not are_alike(first, second):
        yield f"profiled under {first.name} then, and under {second.name} now: nothing can be told by kernels"
        return
    told = first.name
    ratio = second.device_us / first.device_us if first.device_us else None
    yield f"{us(first.device_us)} -> {us(second.device_us)} on the device under {told}, {times(ratio)} as long"
    found = kernel_changes(first, second)
    if not found:
        yield "  no kernel differs by more than two profiles of one version may"
        return
    rows = [("change", "first", "second", "in", "", "ops", "kernels")]
    for one in found[:MOST_LINES]:
        kernels = " -> ".join(filter(None, (", ".join(one.first), ", ".join(one.second))))
        rows.append(
            (
                f"{'+' if one.change_us > 0 else '-'}{us(abs(one.change_us))}", us(one.first_us), us(one.second_us), one.role,
                one.verdict, one.what, kernels[:100],
            )
        )  # fmt: skip
    yield from (f"  {line}" for line in table(rows, right={0, 1, 2}))
    if len(found) > MOST_LINES:
        yield f"  and {len(found) - MOST_LINES} more"


def kernel_fields(one: KernelChange) -> dict[str, Any]:
    """The same as plain data."""
    return {
        **vars(one), "first": list(one.first), "second": list(one.second), "change_us": one.change_us, "verdict": one.verdict,
    }  # fmt: skip
