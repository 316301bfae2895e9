"""Option `reload`: a running process follows the database. Where a program has another plan there than it runs under, a process beside
compiles and checks that plan, and then Dynamo compiles the program anew between two calls, by what torch's caches hold.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from time import monotonic
from types import CodeType
from typing import Any

from fuseplan.by_size import BySize
from fuseplan.capture.dynamo.compilations import Compilation, calling_first, is_computed_again, is_in_checkpoint
from fuseplan.capture.dynamo.ranks import runs_in_step
from fuseplan.log import logger
from fuseplan.lookup import Chosen, Lookup
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import VetPlan
from fuseplan.measure.pool import Limits, Workers
from fuseplan.plan import Plan
from fuseplan.stats import count
from fuseplan.tuning_db import Hit, Miss, Query, Stale, Store, StoredPlan

PATIENCE_S, BEHIND = 900.0, 10
"""A process beside this one has time, and stands back behind it wherever both want a core."""
COUNTS_S = 60.0
"""How often counts of calls are written down at most while a process runs."""
_NO_PLAN = "no plan"
"""In the place of a plan's key: the default."""
_DEVICES = ("cpu", "cuda")
_computed_again: set[CodeType] = set()
"""Functions of which some program is computed again in a backward: what each has saved, and drawn, has to be the same both times."""


@dataclass(eq=False)
class Follower:
    """One program as it was compiled, and what is to become of it."""

    query: Query
    store: Store
    device: str
    every_s: float
    compilation: Compilation
    known: str
    """The key of the plan that it runs under."""
    plan: Plan
    """That plan."""
    tried: frozenset[str] = frozenset()
    """Plans that will not run here, by key."""
    gone: Callable[[], None] = lambda: None
    """To be called once the program is compiled anew."""
    asked_at: float = field(default_factory=monotonic)
    due: str | None = field(default=None, init=False)
    """The plan that it is to run under from the next call on, by key."""
    _changing: threading.Lock = field(default_factory=threading.Lock, init=False)

    def around(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """What was compiled, which sees to it that it is called for the last time, where that is so."""

        def before(*_: Any) -> None:
            if is_computed_again():
                _computed_again.add(self.compilation.code)
            elif self.due is not None:
                self.change_over()

        return calling_first(before, compiled)

    def ask(self) -> None:
        """Look for another plan, and make it ready to be loaded. In a thread of its own."""
        if self.due is not None:
            return
        answer = self.store.find_plan(self.query)
        stored = answer.plan if isinstance(answer, (Hit, Stale)) else None
        if stored is None and not (isinstance(answer, Miss) and answer.reason == "disabled"):
            return  # what cannot be read now may be there the next time
        key = _NO_PLAN if stored is None else stored.key
        if key == self.known or key in self.tried:
            return
        if stored is not None and stored.plan.identity == self.plan.identity:
            self.known = key  # it runs under that already, which was the default until now
            return
        why_not = None if stored is None else self._not_ready(stored)
        if why_not is None:
            self.due = key
            return
        if _watch.ended:  # with the process beside it
            return
        self.tried |= {key}
        count("plans that were not changed over to")
        logger.warning("plan %s is left alone while this process runs: %s", key[:12], why_not)

    def _not_ready(self, stored: StoredPlan) -> str | None:
        """As `not_ready`, found out once for all functions that have this program."""
        return _found_out_once(stored, self.store, self.device)

    def change_over(self) -> None:
        """Have Dynamo compile the program anew when it is called next, and so look up its plan. This call, and the backward behind it,
        are as they were.
        """
        with self._changing:
            due, self.due, before = self.due, None, self.known
            if due is None:
                return
            self.known = due
        why_not = _why_it_stays(self.compilation.code) or self.compilation.forget()
        if why_not is not None:
            self.known = before
            self.tried |= {due}
            logger.warning("plan %s is left alone while this process runs: %s", due[:12], why_not)
            return
        _asked_for[self.compilation.code, self.query.memo_key] = due, self.gone
        count("programs compiled anew for another plan")


_asked_for: dict[tuple[object, ...], tuple[str, Callable[[], None]]] = {}
"""For which plan a program of a function was to be compiled anew, and what is to be called once it has been: a plan that it did not
get then it will not get the next time."""


_found_out: dict[tuple[str, str, bool], str | None] = {}
"""Of plans by key, on a device, by size or for all sizes: why they cannot be had there so, or None."""


def _found_out_once(stored: StoredPlan, store: Store, device: str, by_size: bool = False) -> str | None:
    known = stored.key, device, by_size
    if known not in _found_out:
        _found_out[known] = not_ready(stored, store, device, by_size)
    return _found_out[known]


def _why_it_stays(code: CodeType) -> str | None:
    if code in _computed_again:
        return "some of its function is computed again in the backward, where it has to be what it was"
    return "other ranks run it in step with this one" if runs_in_step() else None


def not_ready(stored: StoredPlan, store: Store, device: str, by_size: bool = False) -> str | None:
    """Compile a plan in a process beside this one, so that its code is in torch's caches, and check it on what the trace of its program
    gives; `by_size` as this process will, where it runs it so. Returns why it cannot be had.
    """
    text = store.find_trace(stored.program, stored.sizes)
    if text is None:
        return "the database has no trace of its program, by which a process beside this one would compile it"
    with Workers(device, limits=Limits(plan_s=PATIENCE_S), nice=BEHIND) as workers:
        (outcome,) = workers.map([VetPlan(text, RaceEntry(stored.key[:12], stored.plan), by_size=by_size)])
    return None if outcome.ok else f"{outcome.status}: {outcome.detail}"


@dataclass(eq=False)
class BoxFollower:
    """A program that runs by size, and its plans: these are changed over to within it, and Dynamo compiles nothing anew."""

    by_size: BySize
    every_s: float
    asked_at: float
    kept_at: float = field(default_factory=monotonic)
    """When the counters, and the counts of its calls, were written down last."""

    def ask(self) -> None:
        """Look for other plans, and make them ready to be loaded, one after the other. In a thread of its own."""
        lookup = self.by_size.lookup
        for plan in self.by_size.ask():
            why_not = _found_out_once(plan.stored, lookup.store, str(lookup.device), by_size=True)
            if _watch.ended:  # with the process beside it
                return
            self.by_size.made_ready(plan, why_not)
            if why_not is not None:
                count("plans that were not changed over to")
                logger.warning("plan %s is left alone while this process runs: %s", plan.stored.key[:12], why_not)
        if monotonic() - self.kept_at > COUNTS_S:
            self.kept_at = monotonic()
            lookup.keep_counters()  # calls that are padded are counted while nothing is compiled
            if lookup.waits is not None:
                lookup.waits.keep()


def follow_boxes(by_size: BySize, every_s: float) -> None:
    """Follow a program that runs by size, from now on: the first time at once, for boxes that have a plan already."""
    found = by_size.follower = BoxFollower(by_size, every_s, monotonic() - every_s)
    _watch.follow(found)


def followed(lookup: Lookup, choice: Chosen, gone: Callable[[], None]) -> Follower | None:
    """Who follows the program that is being compiled; None where nobody asked for that, or where it has no plan to wait for."""
    every_s, key, device = lookup.options.reload, lookup.identity.key, lookup.device
    if (
        every_s is None
        or key is None
        or lookup.options.plan is not None
        or device.type not in _DEVICES
        or runs_in_step()
    ):
        return None
    compilation = Compilation.now()
    if compilation is None:
        return None
    if is_computed_again() or is_in_checkpoint():
        _computed_again.add(compilation.code)
        return None
    query, known = lookup.query(key), _NO_PLAN if choice.stored is None else choice.stored.key
    due, forget = _asked_for.pop((compilation.code, query.memo_key), (known, None))
    if forget is not None:
        forget()
    tried = frozenset[str]() if lookup.unusable else frozenset({due} - {known})
    found = Follower(query, lookup.store, str(device), every_s, compilation, known, choice.plan, tried, gone)
    _watch.follow(found)
    return found


@cache
def _warn_once(text: str) -> None:
    logger.warning("%s", text, exc_info=True)


class _Watch:
    """The thread that asks for all programs of this process, each in its time."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Nobody is followed yet."""
        self._followers: list[weakref.ref[Follower | BoxFollower]] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self.ended = False

    def end(self) -> None:
        """The process ends."""
        self.ended = True

    def follow(self, one: Follower | BoxFollower) -> None:
        with self._changed:
            self._followers = [each for each in self._followers if each() is not None] + [weakref.ref(one)]
            if self._thread is None or not self._thread.is_alive():  # a fork has none
                self._thread = threading.Thread(target=self._run, name="fuseplan reload", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while not self.ended:
            one = self._next()
            try:
                one.ask()
            except Exception as error:  # noqa: BLE001 -- whatever the database holds, and whatever a worker meets, the program runs on
                if self.ended:  # and the workers with it
                    return
                _warn_once(f"a new plan could not be looked for: {type(error).__name__}: {error}")
            one.asked_at = monotonic()
            del one

    def _next(self) -> Follower | BoxFollower:
        """The one whose time comes first, when it has come."""
        with self._changed:
            while True:
                alive = [found for each in self._followers if (found := each()) is not None]
                first = min(alive, key=lambda one: one.asked_at + one.every_s, default=None)
                wait_s = None if first is None else first.asked_at + first.every_s - monotonic()
                if first is not None and wait_s is not None and wait_s <= 0:
                    return first
                del alive, first  # nobody is kept alive by being waited for
                self._changed.wait(wait_s)


_watch = _Watch()
atexit.register(_watch.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watch.begin)  # the thread, and whatever it held, stay with the parent
