"""Which plan a program gets and why: the one that was asked for, the one in the tuning database, or a default.

Nothing here traces or measures. A program that no layer knows costs one small query, and not even a look at the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch.fx import GraphModule

from fuseplan.capture.dynamo.compilations import is_last
from fuseplan.capture.dynamo.computing import computes
from fuseplan.capture.dynamo.names import name_of
from fuseplan.capture.dynamo.program import ProgramKey
from fuseplan.capture.dynamo.promised import EVERY, Span, promised_sizes
from fuseplan.errors import FuseplanError, OptionError, StoreError
from fuseplan.objective import Objective
from fuseplan.options import AT_ONCE, Options
from fuseplan.plan import Plan
from fuseplan.rewrites.attention.calls import has_attention
from fuseplan.rewrites.kinds import unpromised, usable_kinds
from fuseplan.rewrites.sites import Sites
from fuseplan.runtime import RegionRecord
from fuseplan.runtime.compiler import devices_of, missing_compiler
from fuseplan.runtime.settings import set_otherwise
from fuseplan.stats import count, counts
from fuseplan.tuning.lately import Lately
from fuseplan.tuning_db import Box, Environment, Hit, Measurement, Miss, Places, Query, Stale, Store, StoredPlan, places
from fuseplan.tuning_db.columns import PASSING
from fuseplan.tuning_db.environment import memory_of
from fuseplan.tuning_db.notify import notify

if TYPE_CHECKING:
    from fuseplan.tune import Meanwhile
    from fuseplan.tuning.queue.waiting import CallsOf

_TUNED_DEVICES = ("cpu", "cuda")
_LATELY: WeakKeyDictionary[Store, Lately] = WeakKeyDictionary()
"""What this process has met of programs, by the database that has their plans."""
_UNWANTED = ("disabled", "rewrites forbidden", "weights not promised", "other launch")
"""Reasons of a miss where there is a plan, which somebody said no to: by hand, or by an option."""


@dataclass(frozen=True)
class Chosen:
    """The plan of one program, why it is that one, and as what it was stored if it was."""

    plan: Plan
    why: str
    stored: StoredPlan | None = None
    layer: str | None = None
    """Of the tuning database, which holds it."""


_LAST = "this is the last program that Dynamo compiles of its function, which has to do for all sizes"


class Lookup:
    """The way from one Dynamo graph to its plan."""

    def __init__(
        self,
        options: Options,
        identity: ProgramKey,
        gm: GraphModule,
        example_inputs: Sequence[Any],
        environ: Mapping[str, str],
        nested: GraphModule | None = None,
    ) -> None:
        self.options = options
        self.identity = identity
        self.gm = gm
        self.nested = nested
        """The program with regions that torch is to compile once each."""
        self.example_inputs = example_inputs
        self.environ = environ
        self._bounds: list[tuple[str, int | None, int | None]] = []
        self.meanwhile: Meanwhile | None = None
        """What this process may do while workers tune the program."""
        self.waits: CallsOf | None = None
        """Who counts the calls of a program that waits to be tuned."""
        self._complaint = ""
        self.unusable = False
        """Whether the database could not be asked: its answer may be another the next time."""

    @property
    def store(self) -> Store:
        """The one store of this process for the files that these options and variables mean."""
        return _opened(places(self.environ, self.options.db))

    @cached_property
    def device(self) -> torch.device:
        """Where the program's time is spent: on its first accelerator, if it uses one."""
        found = devices_of(self.gm, self.example_inputs)
        return next((device for device in found if device.type not in ("cpu", "meta")), torch.device("cpu"))

    @cached_property
    def here(self) -> Environment:
        """What is looked up for, and what is measured here is true for."""
        from fuseplan.measure.environment import environment  # a look at the machine, which a miss need not take

        return environment(self.device)

    @cached_property
    def _last(self) -> bool:
        """Whether what is compiled now has to do for all sizes that are left."""
        return bool(self.sizes) and is_last()

    @property
    def may_have_plans(self) -> bool:
        """Whether there is a plan of the program, or one may come that this process is to take."""
        if self.identity.key is None or self.device.type not in _TUNED_DEVICES or not computes(self.gm):
            return False
        waits = self.options.tune == "later" or self.options.reload is not None
        return waits or self.store.unknown(self.identity.key) is None

    def choose(self, *, leaves_small: bool = True) -> Chosen:
        """The plan to run. `leaves_small`: whether one that is small beside others is not worth being tuned at once."""
        if self.options.plan is not None:
            return Chosen(self.options.plan, "asked for by option")
        if not computes(self.gm):
            return self.default("it computes nothing")
        wanted = self.options.tune in AT_ONCE
        if self.identity.key is None:
            why = f"no plan can be stored for it, since {self.identity.why}"
            return self._untuned(why) if wanted else self.default(why)
        answer = self._ask(self.identity.key)
        if self.options.tune == "later" and not isinstance(answer, Hit):
            return self._later(answer)
        if isinstance(answer, Hit) and wanted:
            self._lately.met(self._operators)
        if isinstance(answer, Hit) or (isinstance(answer, Stale) and not wanted):
            return known_plan(answer)
        if not wanted or (isinstance(answer, Miss) and answer.reason == "disabled"):  # somebody said no
            return self.default(str(answer))
        if self._last:
            return self.default(f"{answer}; {_LAST}")
        if self.device.type not in _TUNED_DEVICES:
            return self._untuned(str(answer))
        if leaves_small and isinstance(answer, Miss) and (left := self._too_small(answer)) is not None:
            return self.default(f"{answer}; {left}")
        return self._tune(answer)

    def default(self, why: str) -> Chosen:
        """What torch.compile does, or eager where Inductor has no compiler."""
        missing = missing_compiler(self.gm, self.example_inputs)
        if missing is not None:
            return Chosen(Plan("eager"), f"{why}, and Inductor cannot run here: {missing}")
        return Chosen(self.options.default(), f"{why}; this is what torch.compile does")

    def refused(self, stored: StoredPlan, error: FuseplanError) -> Chosen:
        """A stored plan does not fit its program: the default, whose `why` says so."""
        return self.default(self.quarantine(stored, error))

    def held_back(self, why: str, choice: Chosen, plan: Plan | None = None) -> Chosen:
        """A stored plan has what is not wanted in this process: what of it is allowed, else the default. Loud, once."""
        assert choice.stored is not None
        name = f"plan {choice.stored.key[:12]}"
        count("plans held back")
        _say_once(f"{name} is not run as it was tuned: {why}")
        if plan is None:
            return self.default(f"{name} is not allowed here: {why}")
        return replace(choice, plan=plan, why=f"{choice.why}; not as it was tuned: {why}")

    def quarantine(self, stored: StoredPlan, error: FuseplanError) -> str:
        """Note in the database that a plan does not fit, so that it is not used again, and warn of it. Returns why. Where something is set
        otherwise here by which its graphs may be others, it stays.
        """
        otherwise = set_otherwise(has_attention(self.gm))
        if otherwise:
            why = f"plan {stored.key[:12]} does not fit where {' and '.join(otherwise)}: {error}"
            count("plans held back")
            _say_once(f"{why}. What torch.compile does is done instead")
            return why
        why = f"plan {stored.key[:12]} does not fit: {error}"
        count("plans refused")
        try:
            self.store.quarantine(stored.key, str(error))
        except StoreError as problem:
            why += f" (and it cannot be marked as such: {problem})"
        notify(f"{why}. It is quarantined, and what torch.compile does is done instead")
        return why

    def fill_in(self, choice: Chosen, met: Plan) -> None:
        """Keep the digests of the sites that a stored plan of format 1 names by their number alone, now that they are known."""
        if choice.stored is not None:
            self.store.fill_in(choice.stored.key, met)

    def write_down(self, record: RegionRecord) -> None:
        """Store, once, that a region will not compile here, so that tuning need not try it again."""
        from fuseplan.measure.failures import line

        if record.failed is None or record.failed.opaque:  # which has no key
            return
        if record.status in PASSING:  # which may be of what else this process does
            return
        one = Measurement(
            record.failed.key,
            self.here,
            record.executor,
            record.variant,
            record.status,
            detail=line(record.fallback or ""),
        )
        known = self.store.find_measurements(one.region, one.environment)
        same = (one.executor, one.variant, one.status)
        if isinstance(known, Miss) or same not in {(each.executor, each.variant, each.status) for each in known}:
            self.store.add_measurement(record.failed, one)

    def keep_counters(self) -> None:
        """Add what was counted since the last time to the counters in the database, for those who opted in."""
        if self.options.counters:
            self.store.persist_counts(counts())

    def _ask(self, key: str) -> Hit | Stale | Miss:
        answer: Hit | Stale | Miss | None = self.store.unknown(key)
        if answer is None and self.device.type not in _TUNED_DEVICES:
            answer = Miss("other environment", f"plans are kept for {' and '.join(_TUNED_DEVICES)} alone")
        if answer is None:
            query = self.query(key)
            answer = self._within(self.store.find_plan(query), query)
        self.unusable = isinstance(answer, Miss) and answer.reason == "database unusable"
        counted = "hits" if isinstance(answer, Hit) else "stale hits"
        count(f"plan misses: {answer.reason}" if isinstance(answer, Miss) else f"plan {counted}")
        return answer

    def query(self, key: str) -> Query:
        """What is asked of the database."""
        options = self.options
        return Query(
            key,
            self.here,
            options.launch,
            self.sizes,
            options.unverified,
            options.rewrites,
            unpromised(options.weights),
            options.wanted.on(partial(memory_of, self.here)),
        )

    @property
    def sizes(self) -> dict[str, int]:
        """The dynamic sizes that it is compiled with."""
        return {symbol.name: symbol.hint for symbol in self.identity.symbols.seen() if symbol.hint is not None}

    def _within(self, answer: Hit | Stale | Miss, query: Query) -> Hit | Stale | Miss:
        """Note how far this answer holds, by the sides of the boxes that plans are for."""
        self._bounds = []
        if not query.sizes:
            return answer
        symbols = self.identity.symbols
        promised = promised_sizes(self.gm, self.example_inputs, symbols)
        if isinstance(answer, Miss):
            outside = (_outside(box, query.sizes, promised) for box in self.store.boxes(query))
            self._bounds = [] if self._last else [bound for bound in outside if bound is not None]
            return answer
        spans = answer.plan.sizes.spans
        if spans and self._last:
            return Miss("outside the tuned sizes", f"plan {answer.plan.key[:12]} is for some alone, and {_LAST}")
        for name, low, high in spans:
            if not _may_hold(promised.get(name), low, high):
                detail = f"{name} was promised to vary beyond {low}..{high}, which plan {answer.plan.key[:12]} is for"
                return Miss("outside the tuned sizes", detail)
        self._bounds = list(spans)
        return answer

    def let_go(self) -> None:
        """Keep nothing of what the program was called with, once it is compiled: a plan may ask for this as long as it runs."""
        if self.device.type in _TUNED_DEVICES:  # which is read off it
            self.example_inputs = ()

    def hold(self) -> None:
        """Tell Dynamo how far the answer holds: it compiles anew, and asks again, where a size crosses a box's side.

        After compiling: graphs are traced as they were when the plan was made, under no such bounds, and what Inductor
        puts into its cache, for other programs than this one too, is narrowed by none.
        """
        for bound in self._bounds:
            self.identity.symbols.hold(*bound)

    @property
    def _lately(self) -> Lately:
        return _LATELY.setdefault(self.store, Lately())

    @cached_property
    def _operators(self) -> int:
        """Calls in the graph and in those nested in it, such as blocks that are computed anew in the backward."""
        graphs = [module.graph for module in self.gm.modules() if isinstance(module, GraphModule)]
        return sum(node.op.startswith("call_") for graph in graphs for node in graph.nodes)

    def _too_small(self, missed: Miss) -> str | None:
        """Why instant leaves the program as it is, of which nothing is stored, and that might win by its launch alone, which is little beside
        others; None where it does not.
        """
        options, key = self.options, str(self.identity.key)
        if options.tune != "instant" or options.wanted != Objective() or missed.reason != "no such program":
            return None
        if Sites.of(self.gm, usable_kinds(options.rewrites, options.weights)).placed:
            return None
        return self._lately.leaves(key, self._operators)

    def _tune(self, known: Miss | Stale) -> Chosen:
        from fuseplan.tune import tune_online  # brings workers and Optuna, which few programs need

        try:
            tune_online(self.gm, self.example_inputs, self.options.tune, self.store, self.options, self.meanwhile)
        except OptionError:
            raise
        except FuseplanError as error:
            return known_plan(known) if isinstance(known, Stale) else self._untuned(str(error))
        self._lately.met(self._operators)
        answer = self._ask(str(self.identity.key))
        if isinstance(answer, Miss):  # such as where another process tunes the program
            return self.default(str(answer))
        count("programs tuned when compiled")
        return known_plan(answer)

    def _later(self, known: Miss | Stale) -> Chosen:
        """Put the program into the queue, unless nobody could tune it, or it has a plan that is not wanted."""
        chosen = known_plan(known) if isinstance(known, Stale) else self.default(str(known))
        unwanted = isinstance(known, Miss) and known.reason in _UNWANTED
        if unwanted or self._last or self.device.type not in _TUNED_DEVICES:
            return chosen
        return replace(chosen, why=f"{chosen.why}; {self.wait()}")

    def wait(self, promises: bool = True) -> str:
        """Put the program into the queue, and say what came of it. `promises`: whether a plan must hold for all that was promised."""
        from fuseplan.tuning.queue.waiting import put

        try:
            self.waits = put(str(self.identity.key), self.gm, self.example_inputs, self.store, promises)
        except Exception as error:  # noqa: BLE001 -- what a trace cannot be made of runs all the same: the default has no need of one
            told = error if isinstance(error, FuseplanError) else f"{type(error).__name__}: {error}"
            return f"it cannot be tuned later: {str(told).splitlines()[0]}"
        count("programs put into the queue")
        return f"it waits for fuseplan tune --queue{self.options.wanted.option}"

    def complain(self) -> None:
        """Say that the program could not be tuned, where that is so. Once it is compiled: Dynamo begins anew where that shows that a number
        which it took for an input is none, and nobody runs what it had.
        """
        if self._complaint:
            notify(self._complaint)
            self._complaint = ""

    def _untuned(self, why: str) -> Chosen:
        self._complaint = f"{name_of(self.gm)} could not be tuned, and runs under the default: {why}"
        return self.default(f"it could not be tuned: {why}")


@cache
def _say_once(text: str) -> None:
    notify(text)


@cache
def _opened(where: Places) -> Store:
    return Store(where)


def known_plan(answer: Hit | Stale) -> Chosen:
    """What a look-up has found, as what is to run."""
    stored = answer.plan
    why = f"{stored.standing} plan {stored.key[:12]} of the {answer.layer} database"
    if stored.wall_us is not None:
        why += f", {stored.wall_us:.1f} µs"
        if stored.best_default_us is not None and stored.standing != "default":
            why += f" where {stored.best_default} took {stored.best_default_us:.1f} µs"
    if stored.objective.spares:
        unmet = stored.objective.unmet(stored.peak_bytes)
        why += f", objective {stored.objective.short}{unmet and f': {unmet}'}"
    return Chosen(stored.plan, f"{why}; {answer.detail}" if isinstance(answer, Stale) else why, stored, answer.layer)


def _may_hold(promise: Span | None, low: int, high: int) -> bool:
    """Whether a guard for these bounds keeps what a caller promised of a size; one that fixes it to a number does not."""
    if promise is None:
        return True
    if promise == EVERY:
        return low < high
    return low <= promise[0] and promise[1] <= high


def _outside(
    box: Box, sizes: Mapping[str, int], promised: Mapping[str, Span]
) -> tuple[str, int | None, int | None] | None:
    """Bounds of one size that keep this program out of a box: within it, Dynamo is to ask for the plan that is there."""
    for name, low, high in box.spans:
        size = sizes.get(name)
        if size is None or low <= size <= high or promised.get(name, EVERY) != EVERY:
            continue
        return (name, None, low - 1) if size < low else (name, high + 1, None)
    return None
