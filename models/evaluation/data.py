"""Measured rows, made ready for evaluation: what is left out together, and what are alternatives to one another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fuseplan.errors import OptionError
from fuseplan.models.machine import Machine
from fuseplan.models.model import Question, Row
from fuseplan.models.rows import Measured, Rows
from fuseplan.models.shipped import machine_of, model_rows

MADE_UP = "random-"


def model_family(family: str) -> str:
    """What is left out together: all programs of one model, all made-up programs of one kind, forward and backward.

    >>> [model_family(name) for name in ("gpt2-8x1024-train", "resnet50-64-anchors", "random-layer-norm-backward")]
    ['gpt2', 'resnet50', 'random-layer']
    """
    kept = 2 if family.startswith(MADE_UP) else 1
    return "-".join(family.split("-")[:kept])


@dataclass(frozen=True, slots=True)
class TimedChoice:
    """One way to run a region: the number of its row."""

    row: int
    device_us: float


Unit = tuple[TimedChoice, ...]
"""The ways to run one region that were measured."""


@dataclass(frozen=True, slots=True)
class Cutting:
    """One way to cut an island: its name, the name of what a move made it from, and the regions that run."""

    name: str
    base: str
    units: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """An island with its cuts. All of them compute the same, so that their times may be compared."""

    island: str
    family: str
    cuts: tuple[Cutting, ...]


@dataclass(frozen=True)
class Data:
    """All rows of one machine."""

    machine: Machine
    measured: tuple[Measured, ...]
    rows: tuple[Row, ...]
    decisions: tuple[Decision, ...]
    header: Mapping[str, object] = field(repr=False)

    @staticmethod
    def of(files: Sequence[Rows]) -> Data:
        """The rows of files of one machine; of a row that is there twice, the first."""
        if not files:
            raise OptionError("there are no rows to evaluate on: name a file with --rows")
        machine = machine_of(files[0].header)
        measured: dict[tuple[str, str, str], tuple[Measured, Row]] = {}
        islands = {}
        for one in files:
            if machine_of(one.header).name != machine.name:
                raise OptionError(
                    f"rows of {machine.name} and of {machine_of(one.header).name} are evaluated one at a time"
                )
            rows, _ = model_rows(one)
            for row, seen in zip(rows, one.rows, strict=True):
                measured.setdefault((seen.region, seen.executor, seen.variant), (seen, row))
            islands.update({island.key: island for island in one.islands})
        kept = list(measured.values())
        regions = {seen.region for seen, _ in kept if seen.ok}
        decisions = []
        for island in islands.values():
            cuts = [Cutting(cut.name, cut.base, tuple(key for _, key in cut.units)) for cut in island.cuts]
            whole = tuple(cut for cut in cuts if all(key in regions for key in cut.units))
            if whole:
                decisions.append(Decision(island.key, island.family, whole))
        return Data(
            machine, tuple(seen for seen, _ in kept), tuple(row for _, row in kept), tuple(decisions), files[0].header
        )

    @cached_property
    def questions(self) -> list[Question]:
        """The questions that the rows answer."""
        return [(row.work, row.executor, row.variant) for row in self.rows]

    @cached_property
    def timed(self) -> list[bool]:
        """Which rows times are compared on: those that ran. Views alone launch nothing on a GPU, so that theirs are noise."""
        idle = self.machine.device != "cpu"
        return [row.usable and bool(row.work.ops or not idle) for row in self.rows]

    @cached_property
    def families(self) -> list[str]:
        """The model family of each row."""
        return [model_family(row.family) for row in self.measured]

    @cached_property
    def units(self) -> Mapping[str, Unit]:
        """By region, the ways to run it that worked."""
        found: dict[str, list[TimedChoice]] = {}
        for i, row in enumerate(self.measured):
            if row.ok:
                found.setdefault(row.region, []).append(TimedChoice(i, row.device_us))
        return {key: tuple(choices) for key, choices in found.items()}

    def decided_in(self, families: Iterable[str]) -> list[Decision]:
        """The decisions of some model families."""
        wanted = set(families)
        return [one for one in self.decisions if model_family(one.family) in wanted]

    def regions_of(self, families: Iterable[str]) -> set[str]:
        """The regions that were measured for some model families, or that their islands are cut into."""
        wanted = set(families)
        found = {row.region for row, family in zip(self.measured, self.families, strict=True) if family in wanted}
        return found | {key for one in self.decided_in(wanted) for cut in one.cuts for key in cut.units}
