"""Where torch.compile goes wrong: the smallest part of a program on which its own result is no longer eager's.

The program is cut off behind an op, and the part before is judged as any program is. First the earliest end is looked for with
which the fault is there, then the latest beginning; what is left is a few ops, which a person can run and report.

What is off by little more than rounding explains may be rounding all the same, everywhere a little. Then the program is cut into parts
that are judged each by itself, at several places: rounding is right in each of them, a fault in none that has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch.fx import Node

from fuseplan.capture.trace.load import Loaded, load_trace
from fuseplan.errors import FuseplanError
from fuseplan.judge.expect import ALONE, SEEDS, Surroundings, expect
from fuseplan.judge.output import ROUNDING_MOST, WIDER, Fault, Inquiry
from fuseplan.judge.parts import Parts
from fuseplan.judge.shown import reproduces, script

NO_ANSWER = (
    RuntimeError,
    AssertionError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    NotImplementedError,
    FuseplanError,
    MemoryError,
)
"""What trying a part of a program raises where it cannot stand by itself."""
FEW_OPS = 12
"""Rounding adds up over more ops than these; what so few get wrong is a fault."""
PARTS = 4
"""A program is cut into so many parts at least before it is called right in all of them, once more with the cuts in between; into
twice as many, and so on, while there is time."""
COARSELY = 0.4
"""Of the time there is, after how much no finer parts are begun."""


def find_fault(
    loaded: Loaded,
    *,
    compiled: Callable[..., Any] = torch.compile,
    seconds: float = math.inf,
    where: Surroundings = ALONE,
) -> Fault | None:
    """The smallest part of a program that `compiled` gets wrong; None if none was found in so many seconds."""
    return inquire(loaded, compiled=compiled, seconds=seconds, where=where).fault


def inquire(
    loaded: Loaded,
    *,
    near: bool = False,
    compiled: Callable[..., Any] = torch.compile,
    seconds: float = math.inf,
    where: Surroundings = ALONE,
) -> Inquiry:
    """Whether it is a fault that makes `compiled` wrong, or, where it is so `near` to what is allowed, rounding everywhere."""
    end = perf_counter() + seconds
    try:
        search = _Search(loaded, compiled, end, where)
    except NO_ANSWER as error:
        where.check(error)
        return Inquiry(detail=f"its ops cannot be looked at one by one: {type(error).__name__}")
    return search.near_fault() if near else Inquiry(search.smallest(), detail=search.without_answer)


def _first(places: Sequence[int], bad: Callable[[int], bool]) -> int | None:
    """The last of `places` if it is bad, or the one with which being bad begins; None if the last is not."""
    if not places or not bad(places[-1]):
        return None
    low, high = 0, len(places) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if bad(places[middle]) else (middle + 1, high)
    return places[high]


@dataclass(frozen=True)
class _Found:
    """What was found of a part."""

    problem: str | None = None
    beyond: float = 0.0
    """How many times of what is allowed it is off by; infinite of what is wrong otherwise."""
    answered: bool = True


_NO_TIME = _Found(answered=False)


@dataclass(frozen=True)
class _Covered:
    """What was found of all parts of one size."""

    parts: int
    fault: Fault | None = None
    why: str = ""
    """Why not all of them are right."""
    answered: bool = True
    """Whether smaller parts may tell more."""


class _Search:
    def __init__(self, loaded: Loaded, compiled: Callable[..., Any], end: float, where: Surroundings) -> None:
        self.loaded, self.compiled, self.end, self.where = loaded, compiled, end, where
        self.parts = Parts(loaded)
        self.ops = self.parts.ops
        self._known: dict[tuple[Node, ...], _Found] = {}

    @property
    def without_answer(self) -> str:
        """Why nothing was found, where that is the reason."""
        return "" if perf_counter() < self.end else "there was no time to look at all parts"

    def smallest(self) -> Fault | None:
        """The smallest part that is wrong, by the earliest end."""
        for ends in self._ends():
            if (found := self._within(0, ends)) is not None:
                return self.fault(*found)
        return None

    def near_fault(self) -> Inquiry:
        """A fault that few ops have, or rounding: of a program that is off by little more than is allowed."""
        begin, size = perf_counter(), max(FEW_OPS, math.ceil(len(self.ops) / PARTS))
        right, why = 0, ""
        while True:
            covered = self._covered(size)
            if covered.fault is not None:
                return Inquiry(covered.fault)
            if not covered.answered:
                why = covered.why
                break
            right = 0 if covered.why else right + covered.parts
            late = perf_counter() - begin > COARSELY * (self.end - begin)
            if size <= FEW_OPS or (right and late):
                break
            size = max(FEW_OPS, math.ceil(size / 2))
        if not right:
            return Inquiry(detail=why or covered.why)
        found = self._few_of_all()  # a fault that needs what goes before it shows in no part
        return Inquiry(found) if found is not None else Inquiry(rounding=right)

    def _few_of_all(self) -> Fault | None:
        """A fault of few ops, with all that goes before them."""
        for ends in self._ends():
            if (found := self._within(0, ends)) is not None and self._is_few(*found):
                return self.fault(*found)
        return None

    def _is_few(self, first: int, last: int) -> bool:
        return len(self.parts.needed([self.ops[last]], self.ops[first : last + 1])) <= FEW_OPS

    def _covered(self, size: int) -> _Covered:
        """What is found of all parts of so many ops, the program cut into them once here and once in between."""
        count, why = 0, ""
        between = range(size // 2, len(self.ops) - size // 2, size) if len(self.ops) > size else ()
        for start in (*range(0, len(self.ops), size), *between):
            inside = self.ops[start : start + size]
            shown = self.parts.leaving(inside)
            found = self._judged(self.parts.needed(shown, inside), shown) if shown else _Found()
            if not found.answered:
                told = (
                    self.without_answer
                    or f"the ops from {inside[0].name} to {inside[-1].name} cannot be judged by themselves"
                )
                return _Covered(count, None, told, answered=False)
            if found.problem is not None:
                ends = dict.fromkeys(self.parts.makes(end, inside) for end in shown)
                chains = [self._chain(end, start) for end in ends]
                smallest = next((one for ends in chains if (one := self._within(start, ends)) is not None), None)
                why = f"the ops from {inside[0].name} to {inside[-1].name} are wrong by themselves"
                if smallest is not None and (found.beyond > ROUNDING_MOST or self._is_few(*smallest)):
                    return _Covered(count, self.fault(*smallest), why)
                if found.beyond > ROUNDING_MOST:
                    return _Covered(count, None, why, answered=False)
            count += 1
        return _Covered(count, None, why)

    def _ends(self) -> Iterator[list[int]]:
        """For each output of the program, and for what it writes to others' memory, the ops that lead to it: a part may end with any."""
        every = set(self.ops)
        for out in dict.fromkeys([*(one for one in self.parts.outputs if one in every), *self.parts.writers()]):
            yield self._chain(out, 0)

    def _chain(self, end: Node, start: int) -> list[int]:
        """The ops from `start` on that lead to one, and that say whether they are right."""
        inside = self.ops[start : self.ops.index(end) + 1]
        wanted = set(self.parts.needed([end], inside))
        return [start + place for place, node in enumerate(inside) if node in wanted and self.parts.shown(node)]

    def _within(self, start: int, ends: Sequence[int]) -> tuple[int, int] | None:
        """The first and the last op of the smallest part that is wrong, of those that end at one of `ends`."""
        last = _first(ends, partial(self.is_wrong, start))
        if last is None:
            return None
        return _first(range(last, start - 1, -1), partial(self.is_wrong, last=last)) or start, last

    def is_wrong(self, first: int, last: int) -> bool:
        """Whether there is anything wrong with these ops."""
        return self.found(first, last).problem is not None

    def found(self, first: int, last: int) -> _Found:
        """What is wrong with the ops from `first` to `last`, as far as the last needs them."""
        end, inside = self.ops[last], self.ops[first : last + 1]
        shown = self.parts.shown(end)
        return self._judged(self.parts.needed([end], inside), shown) if shown else _Found()

    def _judged(self, inside: Sequence[Node], shown: Sequence[Node]) -> _Found:
        key = (*inside, *shown)
        if key not in self._known:
            found = _NO_TIME
            if perf_counter() < self.end:
                try:
                    found = self._judge(inside, shown)
                except NO_ANSWER as error:
                    self.where.check(error)
            self._known[key] = found
        return self._known[key]

    def _judge(self, inside: Sequence[Node], shown: Sequence[Node]) -> _Found:
        part = load_trace(self.parts.trace(self.parts.part(inside, shown)), self.loaded.device)
        expectation = expect(part, seconds=max(0.0, self.end - perf_counter()), where=self.where)
        torch._dynamo.reset()
        call = self.compiled(part.module)
        for seed in SEEDS:
            judged = expectation.judge(part.run(call, seed), seed, "any", wider=WIDER)
            if judged.problem is not None:
                return _Found(judged.problem, judged.beyond)
        return _Found()

    def fault(self, first: int, last: int) -> Fault | None:
        """What is to be told of these ops."""
        problem = self.found(first, last).problem
        shown = self.parts.shown(self.ops[last])
        if problem is None or not shown:
            return None
        part = self.parts.part(self.parts.needed([self.ops[last]], self.ops[first : last + 1]), shown)
        text = script(part.module, part.values, self.loaded.trace.fields["modes"])
        self.where.tidy()
        return Fault(
            _called(self.ops[last]), part.ops, problem, text, self.parts.trace(part).to_json(), reproduces(text)
        )


def _called(node: Node) -> str:
    """What an op is called."""
    return str(node.target) if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
