"""A program whose sizes vary, as one callable: torch.compile's default for all sizes, and in boxes of sizes the plans for these.

Dynamo compiles it once. Each plan is compiled for its box beside the default, with sizes of its own, and no size has Dynamo compile
anything anew: at most as many compilations as there are boxes with plans, and one. Until a plan is compiled the default serves.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import torch
from torch.fx import GraphModule

from fuseplan.capture.dynamo.compilations import (
    compiles_nothing_anew,
    compiling_alone,
    is_computed_again,
    is_in_checkpoint,
)
from fuseplan.capture.dynamo.modes import modes_kept
from fuseplan.capture.dynamo.own_sizes import (
    OwnSizes,
    SizeReading,
    copied_program,
    size_reading,
    why_not_own_sizes,
    with_own_sizes,
)
from fuseplan.capture.dynamo.ranks import runs_in_step
from fuseplan.errors import FuseplanError, GraphError
from fuseplan.log import logger
from fuseplan.lookup import Chosen, Lookup, known_plan
from fuseplan.options import AT_ONCE
from fuseplan.runtime import Program
from fuseplan.stats import count, waited
from fuseplan.tuning_db import Hit, Miss, Query, Stale, StoredPlan
from fuseplan.tuning_db.notify import notify
from fuseplan.tuning_db.sizes import MOST_SIZES, fold

Call = Callable[..., Any]
CarryOut = Callable[[Chosen, GraphModule, Sequence[Any]], tuple[Program, Call]]
Sizes = Any
"""The sizes of one call as they were read: a number, or several as a tuple."""
_GONE = (
    "disabled", "quarantined", "unverified", "rewrites forbidden", "weights not promised", "other launch", "other objective",
    "outside the tuned sizes",
)  # fmt: skip
"""Reasons of a miss by which a plan that runs is given up. What cannot be read now may be there the next time."""


def reading_of(lookup: Lookup) -> SizeReading | None:
    """Where a program that is being compiled is told its sizes, if it is to run by size; None where one plan is to be for all of it."""
    options, identity = lookup.options, lookup.identity
    if not identity.symbols.seen() or identity.key is None or options.plan is not None or options.tune in AT_ONCE:
        return None
    if options.verify != "off" or options.fuel is not None or options.attention != "as-is" or not lookup.may_have_plans:
        return None
    if runs_in_step() or is_computed_again() or is_in_checkpoint():
        return None
    why_not = why_not_own_sizes(lookup.gm, lookup.example_inputs)
    if why_not is not None:
        logger.debug("a program with varying sizes has one plan for all of them: %s", why_not)
        return None
    reading = size_reading(lookup.gm, identity.symbols)
    try:
        return reading and _tried(reading, lookup)
    except GraphError as error:
        logger.debug("a program with varying sizes has one plan for all of them: %s", error)
        return None


def _tried(reading: SizeReading, lookup: Lookup) -> SizeReading:
    """The same, once it is known that the program runs with sizes of its own; GraphError where it does not."""
    with_own_sizes(lookup.gm, lookup.identity.symbols, lookup.sizes)
    return reading


@dataclass(eq=False)
class BoxPlan:
    """A stored plan of a box of sizes, and what became of it here."""

    choice: Chosen
    ready: bool
    """Whether the next call in its box may load it: a process beside this one has compiled it, or nobody asked for that."""
    call: Call | None = None
    program: Program | None = None
    own: OwnSizes | None = None
    refused: str = ""
    wanted: bool = True
    """Whether it was the database's answer in its box when that was asked last."""

    partial: bool = False
    """Whether sizes of its box were met that it was not compiled for."""

    @property
    def stored(self) -> StoredPlan:
        """The plan as it is stored."""
        assert self.choice.stored is not None
        return self.choice.stored


@dataclass(eq=False)
class BySize:
    """What is called in the place of a program whose sizes vary."""

    lookup: Lookup
    reading: SizeReading
    carry_out: CarryOut
    gm: GraphModule
    """A copy of the program, from before anybody compiled it."""
    programs: list[Program]
    """Where it is told what runs."""
    calls: defaultdict[Sizes, int] = field(default_factory=lambda: defaultdict(int))
    """How often it was called with which sizes. Of many, some are counted with the largest of their box."""
    new_sizes: Callable[[Mapping[str, int], Sequence[Any]], None] = lambda sizes, args: None
    """Told of each choice of sizes when it is met first, with the arguments of that call."""
    follower: object = None
    """Who asks for other plans, where that is wanted."""
    _default: Call | None = None
    _default_plan: str = ""
    _plans: dict[str, BoxPlan] = field(default_factory=dict)
    """By key."""
    _runs: dict[Sizes, Call] = field(default_factory=dict)
    """What runs each choice of sizes that was met since a plan came or went. It grows with `calls`, and is emptied with it."""
    _changing: threading.Lock = field(default_factory=threading.Lock)
    """Held for moments alone: no call waits in it for a compiler."""
    _loading: threading.Lock = field(default_factory=threading.Lock)

    @staticmethod
    def of(lookup: Lookup, reading: SizeReading, carry_out: CarryOut, programs: list[Program]) -> BySize:
        """For a program that is being compiled."""
        return BySize(lookup, reading, carry_out, copied_program(lookup.gm), programs)

    def why_default(self) -> str:
        """Why the default runs, for `explain`."""
        answer = self.lookup.store.find_plan(self._query({}))
        return f"its sizes vary, and {answer if isinstance(answer, Miss) else 'boxes of them have plans'}"

    def begin(self, program: Program, default: Call) -> None:
        """Run under the default, and in the box of the first call at once under its plan: that call waits for compilers anyway."""
        self._default, self._default_plan = default, program.plan.identity
        for choice in self._stored(counted=True):
            self._plans[_key(choice)] = self._box_plan(choice, ready=self.lookup.options.reload is None)
        plan = self._plan_for(self.lookup.sizes, self._plans.values())
        if plan is not None and plan.call is None:
            self._load(plan, self.lookup.sizes)

    def call(self, *args: Any) -> Any:
        """One call of the program."""
        sizes = self.reading.read(args)
        run = self._runs.get(sizes)
        if run is None:
            run = self._meet(sizes, args)
        self.calls[sizes] += 1
        return run(*args)

    def ask(self) -> list[BoxPlan]:
        """Look for other plans than it has; returns those that are to be made ready. What has no plan any more gets the default."""
        stored = {_key(choice): choice for choice in self._stored()}
        gone = [plan for key, plan in self._plans.items() if key not in stored and self._is_gone(plan)]
        with self._changing:
            for plan in gone:
                del self._plans[_key(plan.choice)]
                self.programs[:] = [one for one in self.programs if one is not plan.program]
            for key, choice in stored.items():
                self._plans.setdefault(key, self._box_plan(choice, ready=False))
            for key, plan in self._plans.items():
                plan.wanted = key in stored
            self._runs.clear()
            return [plan for plan in self._plans.values() if not (plan.ready or plan.refused or plan.call)]

    def made_ready(self, plan: BoxPlan, why_not: str | None) -> None:
        """A process beside this one has compiled a plan, or says why it cannot be had. The next call in its box loads it."""
        with self._changing:
            plan.ready, plan.refused = why_not is None, why_not or ""
            self._runs.clear()

    def load_now(self, plan: BoxPlan, sizes: Sizes) -> Call:
        """What runs a call of these sizes whose plan is to be loaded: that plan, once this call has waited for it; the default where
        another call is at it, or where nothing may be compiled.
        """
        assert self._default is not None
        if self._must_not_compile() or not self._loading.acquire(blocking=False):
            return self._default
        try:
            with compiling_alone() as alone:
                if alone and plan.call is None and not plan.refused:
                    begin = perf_counter()
                    self._load(plan, self.reading.by_name(sizes))
                    waited(begin)
                    self.lookup.keep_counters()
        finally:
            self._loading.release()
        with self._changing:
            self._runs.clear()
            found = self._run_of(sizes)
        return self._default if isinstance(found, _Loading) else found

    def _must_not_compile(self) -> bool:
        """Whether a compiler would be in the way of what this call is part of."""
        return self._is_captured() or compiles_nothing_anew() or is_computed_again()

    def _is_captured(self) -> bool:
        """Whether this call is part of a CUDA graph that its caller captures, in which nobody may wait for the device."""
        return self.lookup.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def _stored(self, counted: bool = False) -> list[Chosen]:
        """The plan of each box that has one, which may be the default, and the one for all sizes where that is another."""
        found: dict[str, Chosen] = {}
        first = self._query({})
        corners = [self._query({name: low for name, low, _ in box.spans}) for box in self.lookup.store.boxes(first)]
        for query in [first, replace(first, sizes={}), *corners]:  # the second is for a plan for all sizes
            answer = self.lookup.store.find_plan(query)
            if counted and (query is first or (not isinstance(answer, Miss) and answer.plan.key not in found)):
                count(f"plan misses: {answer.reason}" if isinstance(answer, Miss) else _HITS[type(answer)])
            if isinstance(answer, Miss):
                continue
            choice, box = known_plan(answer), answer.plan.sizes
            if box.text:
                found[answer.plan.key] = replace(choice, why=f"{choice.why}; for {box.short}")
            elif answer.plan.plan.identity != self._default_plan:
                found[answer.plan.key] = choice
        return list(found.values())

    def _box_plan(self, choice: Chosen, ready: bool) -> BoxPlan:
        is_default = choice.plan.identity == self._default_plan
        return BoxPlan(choice, ready, call=self._default if is_default else None)

    def _query(self, sizes: Mapping[str, int]) -> Query:
        asked = self.lookup.query(str(self.lookup.identity.key))
        return replace(asked, sizes={**asked.sizes, **sizes})

    def _is_gone(self, plan: BoxPlan) -> bool:
        """Whether a plan is to be given up: it is refused, or what takes its place is the default, or is there."""
        if any(
            one.word == "disabled" or one.status == "quarantined" for one in self.lookup.store.plans(plan.stored.key)
        ):
            return True
        corner = {name: low for name, low, _ in plan.stored.sizes.spans}
        answer = self.lookup.store.find_plan(self._query(corner))
        if isinstance(answer, Miss):
            return answer.reason in _GONE
        other = self._plans.get(answer.plan.key)
        return answer.plan.plan.identity == self._default_plan or (other is not None and other.call is not None)

    def _plan_for(self, sizes: Mapping[str, int], among: Iterable[BoxPlan]) -> BoxPlan | None:
        """The plan of the box in which these sizes lie: what the database answers before what it answered once, one for some sizes before
        one for all of them, and the latest.
        """

        def rank(plan: BoxPlan) -> tuple[bool, bool, str]:
            return plan.wanted, bool(plan.stored.sizes.spans), plan.stored.changed_at

        return max((plan for plan in among if plan.stored.sizes.why_not(sizes) is None), key=rank, default=None)

    def _meet(self, sizes: Sizes, args: Sequence[Any]) -> Call:
        captured = self._is_captured()
        with self._changing:
            if len(self.calls) >= MOST_SIZES and sizes not in self.calls:
                fold(self.calls)
                self._runs.clear()
            run = self._run_of(sizes)
            if captured:  # to look at the arguments is to wait: the next call is told as the first
                return run
            self._runs[sizes] = run
        self.new_sizes(self.reading.by_name(sizes), args)
        return run

    def _run_of(self, sizes: Sizes) -> Call:
        """What runs a call of these sizes."""
        assert self._default is not None
        named = self.reading.by_name(sizes)
        plan = self._plan_for(
            named, [one for one in self._plans.values() if (one.ready or one.call) and not one.refused]
        )
        if plan is None:
            return self._default
        if plan.call is None:
            return _Loading(self, plan, sizes)
        why_not = None if plan.own is None else plan.own.why_not(named)
        if why_not is None:
            return plan.call
        if not plan.partial:
            plan.partial = True
            count("plans that are not for all of their box")
            if plan.program is not None:
                plan.program.remarks.append(f"not all sizes of its box run under it: {why_not}")
        return self._default

    def _load(self, plan: BoxPlan, sizes: Mapping[str, int]) -> None:
        """Compile a plan for its box, or take it from torch's caches."""
        try:
            plan.own = own = with_own_sizes(self.gm, self.lookup.identity.symbols, sizes)
            with own.traced(), modes_kept():
                plan.program, plan.call = self.carry_out(plan.choice, own.gm, own.inputs)
        except FuseplanError as error:
            is_of_plan = plan.own is not None  # else of the program, which another size may suit
            plan.refused = self.lookup.quarantine(plan.stored, error) if is_of_plan else str(error)
        except Exception as error:  # noqa: BLE001 -- a compiler fails with anything, and the default serves all the same
            plan.refused = f"{type(error).__name__}: {error}".splitlines()[0]
            count("plans refused")
            notify(f"plan {plan.stored.key[:12]} cannot be compiled, and the default serves: {plan.refused}")
        else:
            if not plan.program.plan.rewrites:  # else it is given other inputs
                plan.program.unpadded = self._default
            self.programs.append(plan.program)
            count(f"programs under plan {plan.program.plan.host}")


def _key(choice: Chosen) -> str:
    assert choice.stored is not None
    return choice.stored.key


_HITS: Mapping[type, str] = {Hit: "plan hits", Stale: "plan stale hits"}


@dataclass(frozen=True, eq=False)
class _Loading:
    """A call that finds its plan ready, and not loaded yet."""

    by_size: BySize
    plan: BoxPlan
    sizes: Sizes

    def __call__(self, *args: Any) -> Any:
        return self.by_size.load_now(self.plan, self.sizes)(*args)
