"""Where a step's time goes, for people: kernels by what they compute, what they take at least, and what is left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuseplan.looking.words import share, table, us
from fuseplan.tuning_db.evidence import Evidence
from fuseplan.tuning_db.profile_evidence import ProfileEvidence

MOST_LINES = 25
"""Groups of kernels that are told of; the rest is in the JSON."""


def gap_lines(evidence: Evidence) -> Iterator[str]:
    """The profile of a program as a table, what leaves the most first."""
    profile = evidence.profile
    if profile is None:
        yield "nobody has looked where its time goes: tuning does, on a GPU or with effort full, where there is time"
        return
    whole = profile.device_us or 1.0
    yield f"where the time of {profile.name} goes, {us(profile.device_us)} on the device in a step:"
    raced = next((one for one in evidence.raced if one.name == profile.name), None)
    wall_us = raced.wall_us if raced is not None and raced.host_us else None  # a CPU is both
    if wall_us is not None and wall_us > profile.device_us:
        yield f"  the device waits {us(wall_us - profile.device_us)} of {us(wall_us)} in a step, for the host"
    yield f"  left: {us(profile.gap_us)}, {share(profile.gap_us / whole)}, above what these ops could take on this machine"
    rows = [("takes", "of it", "at least", "left", "of all", "bound by", "in", "times", "what")]
    rows += [
        (
            us(one.us), share(one.us / whole), us(one.least_us), us(one.gap_us), share(one.gap_us / whole), one.bound,
            one.role, f"×{one.times}" if one.times > 1 else "", one.what or ", ".join(one.kernels),
        )
        for one in profile.gaps[:MOST_LINES]
    ]  # fmt: skip
    yield from (f"  {line}" for line in table(rows, right={0, 1, 2, 3, 4, 7}))
    if len(profile.gaps) > MOST_LINES:
        yield f"  and {len(profile.gaps) - MOST_LINES} more, which leave less"
    if profile.unattributed_us:
        named = f": {', '.join(profile.unattributed)}" if profile.unattributed else ""
        yield (
            f"  {us(profile.unattributed_us)}, {share(profile.unattributed_us / whole)}, in kernels of which nobody knows what"
            f" they compute{named}"
        )


def profile_fields(profile: ProfileEvidence | None) -> dict[str, Any] | None:
    """The same as plain data."""
    if profile is None:
        return None
    gaps = [{**vars(one), "kernels": list(one.kernels), "gap_us": one.gap_us} for one in profile.gaps]
    return {**vars(profile), "unattributed": list(profile.unattributed), "gap_us": profile.gap_us, "gaps": gaps}
