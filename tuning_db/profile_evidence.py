"""The profile of a program as evidence: where the device's time goes in a step, and how much of it is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fuseplan.tuning_db.evidence_fields import Count, Text, Time, at_most

MOST_GAPS = 200
"""Groups of kernels that are told of."""
MOST_NAMES = 20
"""Kernels that are named."""


@dataclass(frozen=True)
class GapEvidence:
    """Kernels of a profile that compute the same ops, wherever they stand in the program, and the least that these could take."""

    role: Text
    what: Text
    """The ops."""
    kernels: tuple[Text, ...]
    times: Count
    """How often it stands there."""
    us: Time
    """What all of them take in a step …"""
    least_us: Time
    """… and what they could at this machine's rates, …"""
    bound: Text
    """… of which this is reached first: `memory`, `arithmetic`, or `launch` of a kernel at all."""

    @property
    def gap_us(self) -> float:
        """What is between the two. Rates are measured on large copies and products, and some kernels are faster: then nothing is."""
        return max(0.0, self.us - self.least_us)


@dataclass(frozen=True)
class ProfileEvidence:
    """Where the device's time goes in a step of a program, and how much of it is left."""

    name: Text
    """That of the plan that was profiled."""
    device_us: Time
    unattributed_us: Time
    """What kernels take of which nobody knows what they compute, …"""
    unattributed: Annotated[tuple[Text, ...], at_most(MOST_NAMES)] = ()
    """… and the largest of these."""
    gaps: Annotated[tuple[GapEvidence, ...], at_most(MOST_GAPS)] = ()

    @property
    def gap_us(self) -> float:
        """All that is left."""
        return sum(one.gap_us for one in self.gaps)
