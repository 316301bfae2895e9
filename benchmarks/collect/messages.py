"""What the processes that collect are asked and what they say: dataclasses that are JSON on their way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fuseplan.graph import Graph
from fuseplan.segment import Choice

Rows = tuple[Mapping[str, Any], ...]
"""Fields of the file of rows, a row for each choice."""


@dataclass(frozen=True)
class CompileRegion:
    """Compile a region under all choices but those that a process died of before."""

    number: int
    graph: Graph
    without: tuple[Choice, ...] = ()


@dataclass(frozen=True)
class MeasureCompiled:
    """Measure what is compiled, for so many seconds."""

    seconds: float


REQUESTS = CompileRegion | MeasureCompiled


@dataclass(frozen=True)
class Started:
    """The process waits to be asked."""


@dataclass(frozen=True)
class AtChoice:
    """What the process does next, with which choice of which region: if it dies, it dies of that."""

    number: int
    choice: Choice
    stage: str


@dataclass(frozen=True)
class RegionCompiled:
    """The choices of a region that failed; whether the process keeps the others, to measure them."""

    rows: Rows
    kept: bool


@dataclass(frozen=True)
class RegionMeasured:
    """The rows of a region."""

    number: int
    rows: Rows


@dataclass(frozen=True)
class Through:
    """The process has measured what it could in its time."""


@dataclass(frozen=True)
class DeviceLost:
    """The device is beyond use in the process, which ends."""

    detail: str


ANSWERS = Started | AtChoice | RegionCompiled | RegionMeasured | Through | DeviceLost
