"""What a kind of move brings: its name, its sentence, what it does to a cut, and where it can be tried."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

from fuseplan.errors import PlanError
from fuseplan.graph import Graph
from fuseplan.segment.region import Segmentation
from fuseplan.wire.codec import UNLESS_DEFAULT, Only

Runners = Sequence[tuple[str, str]]
"""Executors that may run a region, each with a variant."""
Count = Annotated[int, Only(lambda number: None if 0 <= number < 2**31 else "a count")]


@dataclass(frozen=True)
class Step:
    """Which kind of move is made, and where: ops by their position, a region by any of its ops."""

    name: str
    """Of the kind of move."""
    ops: tuple[Count, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    """Those that leave, join, or are recomputed."""
    region: Count | None = field(default=None, metadata=UNLESS_DEFAULT)
    """An op of the region that they leave or join, or that is peeled or run."""
    executor: str = field(default="", metadata=UNLESS_DEFAULT)
    variant: str = field(default="default", metadata=UNLESS_DEFAULT)

    @property
    def op(self) -> int:
        """The first of the ops; PlanError if there is none."""
        if not self.ops:
            raise PlanError("it names no op")
        return self.ops[0]

    @property
    def at(self) -> int:
        """The op that stands for the region; PlanError if there is none."""
        if self.region is None:
            raise PlanError("it names no region")
        return self.region


_SPAN = r"\d{1,6}(?:-\d{1,6})?"
_OPS = rf"ops? (?P<op>\d{{1,6}})(?: \((?P<target>[^()]*)\))?(?P<more>(?:, {_SPAN})*(?: and {_SPAN})?)"
_REGION = r"the region at op (?P<region>\d{1,6})"
_RUNNER = r"(?P<executor>\S+)(?: \((?P<variant>.+)\))?"
_MOST = 100_000  # ops that a sentence can name


@dataclass(frozen=True)
class MoveKind:
    """A kind of move, as `MOVES` lists it.

    >>> kind = MoveKind("melt", "melt {ops} into {region}", lambda graph, cut, step: cut, lambda *where: ())
    >>> kind.text(Step("melt", (7, 8, 9, 12), 3), "aten.view")
    'melt ops 7 (aten.view), 8-9 and 12 into the region at op 3'
    >>> kind.read("melt op 7 into the region at op 3")
    (Step(name='melt', ops=(7,), region=3, executor='', variant='default'), '')
    """

    name: str
    sentence: str
    """With {ops}, {region}, {runner}, or {place}: the region where one is named, else the ops."""
    apply: Callable[[Graph, Segmentation, Step], Segmentation]
    """The cut after the move, of a tidy cut; PlanError where it is refused."""
    steps: Callable[[Graph, Segmentation, Runners], Iterable[Step]]
    """Where the move can be tried on a tidy cut; `apply` says where it is legal."""
    anywhere: str = "its region"
    """What the sentence says where no region is named."""

    def text(self, step: Step, target: str = "") -> str:
        """The move in a few words; `target` is what its first op calls."""
        ops = ops_text(step.ops, target)
        region = self.anywhere if step.region is None else f"the region at op {step.region}"
        place = ops if step.region is None else region
        return self.sentence.format(ops=ops, region=region, place=place, runner=runner_text(step))

    def read(self, text: str) -> tuple[Step, str] | None:
        """The step, and what its first op calls, for which `text` says these words; None if there is none."""
        match = self._pattern.fullmatch(text)
        if match is None:
            return None
        names = ("op", "more", "region", "executor", "variant", "target")
        found: dict[str, str | None] = {**dict.fromkeys(names), **match.groupdict()}
        ops = () if found["op"] is None else _ops_of(f"{found['op']} {found['more']}")
        region = None if found["region"] is None else int(found["region"])
        step = Step(self.name, ops, region, found["executor"] or "", found["variant"] or "default")
        target = found["target"] or ""
        return (step, target) if self.text(step, target) == text else None

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        anywhere = re.escape(self.anywhere)
        parts = {
            "{ops}": _OPS, "{region}": f"(?:{_REGION}|{anywhere})", "{place}": f"(?:{_REGION}|{_OPS})", "{runner}": _RUNNER,
        }  # fmt: skip
        words = re.split(r"(\{\w+\})", self.sentence)
        return re.compile("".join(parts[word] if word in parts else re.escape(word) for word in words))


def runner_text(step: Step) -> str:
    """Who runs a region after a move, and in which variant unless that is the default."""
    return step.executor if step.variant == "default" else f"{step.executor} ({step.variant})"


def ops_text(ops: Sequence[int], target: str) -> str:
    """Ops for people, those in a row as one.

    >>> ops_text((7,), "aten.view"), ops_text((7, 8), ""), ops_text((1, 3, 4, 5, 9), "")
    ('op 7 (aten.view)', 'ops 7 and 8', 'ops 1, 3-5 and 9')
    """
    first = str(ops[0] if ops else "?") + (f" ({target})" if target else "")
    if len(ops) < 2:
        return f"op {first}"
    spans: list[list[int]] = []
    for op in ops[1:]:
        if spans and op == spans[-1][-1] + 1:
            spans[-1][1:] = [op]
        else:
            spans.append([op])
    *rest, last = [first, *("-".join(map(str, span)) for span in spans)]
    return f"ops {', '.join(rest)} and {last}"


def _ops_of(text: str) -> tuple[int, ...]:
    """The ops that the spans of a sentence name, but for those of spans that no graph is large enough for."""
    found: list[int] = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        if len(found) < _MOST:
            found += range(int(first), min(int(last or first), int(first) + _MOST) + 1)
    return tuple(found)
