"""By which kernels programs differ between the two sides of a comparison, where both were profiled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from fuseplan.looking.kernels import KernelChange, are_alike, kernel_changes
from fuseplan.tuning_db.dashboard.queries.program import plan_row
from fuseplan.tuning_db.dashboard.reader import Reader
from fuseplan.tuning_db.dashboard.table import ShownColumn
from fuseplan.tuning_db.profile_evidence import ProfileEvidence

MOST_PROGRAMS = 20
"""Programs of which kernels are told, those that differ most."""
MOST_KERNELS = 12
KERNELS: tuple[ShownColumn[KernelChange], ...] = (
    ShownColumn("ops", "Ops", "text", lambda one: one.what),
    ShownColumn("role", "In", "text", lambda one: one.role or None),
    ShownColumn("first_us", "A", "us", lambda one: one.first_us),
    ShownColumn("second_us", "B", "us", lambda one: one.second_us),
    ShownColumn("change_us", "Change", "us", lambda one: one.change_us),
    ShownColumn("verdict", "Verdict", "text", lambda one: one.verdict),
    ShownColumn("first", "Kernels in A", "text", lambda one: ", ".join(one.first) or None),
    ShownColumn("second", "Kernels in B", "text", lambda one: ", ".join(one.second) or None),
)  # fmt: skip


@dataclass(frozen=True)
class ChangedKernels:
    """One program that was profiled on both sides."""

    title: str
    name: str
    """Under what it was profiled."""
    first_us: float
    second_us: float
    changes: tuple[KernelChange, ...]

    columns = KERNELS

    @property
    def shown(self) -> tuple[KernelChange, ...]:
        """Those that changed most."""
        return self.changes[:MOST_KERNELS]


def changed_kernels(
    first: Reader, second: Reader, plans: Iterable[tuple[str, str | None, str | None]]
) -> tuple[ChangedKernels, ...]:
    """The kernels that changed of programs, each by its title and the keys of its plans on both sides."""
    found: list[ChangedKernels] = []
    for title, one, two in plans:
        before, after = _profile(first, one), _profile(second, two)
        if before is not None and after is not None and are_alike(before, after):
            changes = kernel_changes(before, after)
            found.append(ChangedKernels(title, before.name, before.device_us, after.device_us, changes))
        if len(found) == MOST_PROGRAMS:
            break
    return tuple(found)


def _profile(reader: Reader, key: str | None) -> ProfileEvidence | None:
    row = None if key is None else reader.read(partial(plan_row, key=key))
    return None if row is None else row.evidence.profile
