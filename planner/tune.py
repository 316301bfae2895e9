"""Tuning: from the traces of programs to their plans in the database. This is the whole flow; its parts are in `tuning`.

sources    files, folders, names       ->  traces, each once
shards     traces, one machine of many ->  the traces that are tuned there
agenda     traces                      ->  items in their order: those first that could gain the most
crew       items, devices              ->  one verdict after another, on all devices at once
tuner      an item, a device           ->  capture, search, measure, race, keep
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from fuseplan.capture.dynamo.names import name_of
from fuseplan.capture.dynamo.ranks import tunes_here
from fuseplan.capture.trace.write import write_trace
from fuseplan.errors import FuseplanError, OptionError
from fuseplan.log import logger
from fuseplan.measure.environment import environment
from fuseplan.measure.sites_alone import sites_alone
from fuseplan.objective import Objective
from fuseplan.options import WEIGHTS, Options, allowed_kinds, word
from fuseplan.plan import LAUNCHES, Plan
from fuseplan.rewrites.kinds import usable_kinds
from fuseplan.runtime.compiler import devices_of
from fuseplan.study.ledger import check_sampler, check_storage
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program.background import Background
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.program.model import LEARNED, check_name
from fuseplan.tuning.program.result import Tuned, recalled, verdict_line
from fuseplan.tuning.program.tuner import Tuner
from fuseplan.tuning.progress import Brief, Progress, shown
from fuseplan.tuning.queue.agenda import Agenda, Item, agenda_of, usual_told
from fuseplan.tuning.queue.budget import Time, seconds_of_budget
from fuseplan.tuning.queue.crew import TuneItem, work_off
from fuseplan.tuning.queue.devices import DeviceKind, Elsewhere, LazyPool, OpenPool, named, own_workers, types_in
from fuseplan.tuning.queue.promises import refuse_promises
from fuseplan.tuning.queue.region_locks import RegionLocks
from fuseplan.tuning.queue.shards import Shard
from fuseplan.tuning.queue.sources import Source, read_programs, refuse_what_differs, shard_of, that_matter
from fuseplan.tuning.queue.staying import staying_workers
from fuseplan.tuning.queue.waiting import waiting
from fuseplan.tuning.traces import EITHER, box_of, launches_on
from fuseplan.tuning_db import Store, clock, places
from fuseplan.tuning_db.files import Absent
from fuseplan.tuning_db.resume import failed_lately

__all__ = ["Tuner", "agenda", "tune", "tune_online"]


def tune(
    programs: Source | Iterable[Source] | None,
    *,
    effort: str = "quick",
    launch: str | None = None,
    device: str | None = None,
    db: str | Path | None = None,
    budget: float | str | None = None,
    shard: str | tuple[int, int] | None = None,
    top: int | None = None,
    again: bool = False,
    profile: bool = False,
    rewrites: str | Iterable[str] = "all",
    weights: str = "free",
    objective: str = "time",
    max_memory: str | float | None = None,
    model: str = LEARNED,
    sampler: str = "ours",
    storage: str | None = None,
    progress: Progress | None = None,
    workers: OpenPool = own_workers,
    on: str | Elsewhere | None = None,
) -> list[Tuned]:
    """Find, prove and store the fastest plan of each program, given as traces, or as files or folders of them.

    A text that names no file means programs that were tuned before: the beginning of a program's key or of its plan's, or its
    name. None means those that wait there (`tune="later"`): all with a trace and without a plan for this machine. Those come
    first whose calls could gain the most together, of which `agenda` tells more.

    `launch` is `plain`, `cudagraph`, or `both`, each by itself; without one, on a GPU both race each other, and the faster is
    kept. `device` is where to tune, one or several as in `cuda:0,cuda:1`, else where the trace was recorded; `db` is the tuning
    database, else the user's own. `budget` is the time for all of it, in seconds or as `1h30m`; what it has no time for has the
    status `left`. `shard` is one of the parts into which all is split for several machines, `3/16` or `(3, 16)`: a pure function of
    the traces and the effort. `top` keeps so many programs. `again` tunes what has a plan already, and tries once more what failed.
    `profile` profiles the default of each, whatever the effort, so that `diff` can tell by which kernels another version differs.
    `rewrites` are the kinds of rewrite that plans may have: `all`, `none`, or some; with `weights` `fixed` they may also read weights
    merged, as processes run them that promise so. `objective` `memory` looks for plans that take the least memory, `max_memory`, such as
    `20GB`, for the fastest that take no more, for processes that ask for just that. Each result is in the database as soon as it is known:
    a run that is interrupted goes on. `progress` hears how far it is; else there is a bar on a terminal. `model` says what is worth
    measuring: `learned`, from the rows that ship and from what is measured here, or `roofline`, which leaves nothing out. `on` is `ray`
    for the devices of a Ray cluster, of which `device` says the type. `workers` are for those who measure in other ways, `sampler` and
    `storage` for those who study the search: `tpe` or `random` of Optuna's, and where studies are kept, a URL or `journal:FILE`.

    >>> import torch
    >>> import fuseplan
    >>> traces = fuseplan.traces_of(lambda x: x.relu() + 1, torch.ones(3), name="ramp")
    >>> fuseplan.tune(traces, effort="none")[0].status
    'unverified'
    """
    seconds, kinds = seconds_of_budget(budget), kinds_of(rewrites, weights)
    wanted = Objective.asked(objective, max_memory)
    check_name(model)
    check_sampler(sampler)
    there = programs is None and shard is None
    with _opened(db, there=there) as store, shown(progress) as heard, _elsewhere(on, device) as elsewhere:
        todo = _agenda(store, programs, effort, launch, device, shard, top, again, kinds, wanted, elsewhere)
        _check_kept(todo, store, storage)
        settings, since = Settings(sampler, storage, 0, model, kinds, wanted), clock.now() if again else None
        spends = replace(Effort.named(effort), profiles=profile)
        return verdicts_on(todo, store, heard, spends, settings, seconds, since, workers, elsewhere)


def _check_kept(todo: Agenda, store: Store, storage: str | None) -> None:
    """Where nothing can be kept of what is to be tuned, better fail now than in an hour."""
    if any(item.known is None for item in todo.items):
        check_storage(storage)
        store.file.write(lambda connection: None)


def verdicts_on(
    todo: Agenda, store: Store, heard: Progress, effort: Effort, settings: Settings, budget_s: float | None, since: str | None,
    workers: OpenPool = own_workers, elsewhere: Elsewhere | None = None,
) -> list[Tuned]:  # fmt: skip
    """Work off an agenda: one verdict for each of its items, in the order in which they were given. `since` is when that began, where
    all is tuned again.
    """
    new = [item for item in todo.items if item.known is None]
    time = Time(budget_s, [item.worth_us for item in new], max(1, len(todo.devices)))
    opening = _Opening(store, heard, workers, effort, settings, time, since, len(todo.devices) > 1, elsewhere)
    heard.begin(len(todo.items))
    verdicts = dict(_known(todo, heard))
    work_off(new, opening, time, heard, verdicts.__setitem__)
    return [replace(verdicts[item], calls=item.trace.times) for item in todo.as_given]


def _known(todo: Agenda, heard: Progress) -> Iterator[tuple[Item, Tuned]]:
    """The verdicts that earlier runs came to."""
    for item in todo.items:
        if item.known is not None:
            verdict = replace(recalled(item.trace, item.known), sizes=item.sizes.text)
            heard.end(verdict_line(verdict))
            yield item, verdict


@dataclass
class _Opening:
    """Opens the workers of one device after another, and says who tunes with them."""

    store: Store
    heard: Progress
    workers: OpenPool
    effort: Effort
    settings: Settings
    time: Time
    since: str | None
    """Where all is tuned again, when that began."""
    several: bool
    """Whether devices are named to who watches."""
    elsewhere: Elsewhere | None = None
    _locks: dict[DeviceKind, RegionLocks] = field(default_factory=dict)

    def __call__(self, kind: DeviceKind, where: str) -> tuple[LazyPool, TuneItem]:
        workers = self.workers if self.elsewhere is None else self.elsewhere.workers
        pool = LazyPool(lambda: workers(where, self.effort))
        watching = self.heard.on(where if self.several else "")
        locks = self._locks.setdefault(kind, RegionLocks())
        tuner = Tuner(
            self.store, pool, where, self.effort, self.settings, watching, self.time, locks, self.since, kind.environment,
            None if self.elsewhere is None else self.elsewhere.facts(where),
        )  # fmt: skip
        return pool, lambda item: tuner.verdict(item, again=self.since is not None)


def agenda(
    programs: Source | Iterable[Source] | None,
    *,
    effort: str = "quick",
    launch: str | None = None,
    device: str | None = None,
    db: str | Path | None = None,
    shard: str | tuple[int, int] | None = None,
    top: int | None = None,
    again: bool = False,
    rewrites: str | Iterable[str] = "all",
    weights: str = "free",
    objective: str = "time",
    max_memory: str | float | None = None,
    on: str | Elsewhere | None = None,
) -> Agenda:
    """What `tune` would do with the same arguments, in which order and why. Nothing is started, and nothing written.

    >>> import torch
    >>> import fuseplan
    >>> traces = fuseplan.traces_of(lambda x: x.relu() + 1, torch.ones(3), name="ramp")
    >>> [item.name for item in fuseplan.agenda(traces * 2).items]
    ['ramp']
    """
    there = programs is None and shard is None
    with _opened(db, reading=True, there=there) as store, _elsewhere(on, device) as elsewhere:
        kinds, wanted = kinds_of(rewrites, weights), Objective.asked(objective, max_memory)
        return _agenda(store, programs, effort, launch, device, shard, top, again, kinds, wanted, elsewhere)


class Meanwhile(Protocol):
    """What a process that asks for a plan does while workers look for it."""

    def likely(self, plan: Plan) -> None:
        """Compile a plan that workers have compiled before, and that is likely to win, or has won."""
        ...


def tune_online(
    gm: Any,
    example_inputs: Sequence[Any],
    effort: str,
    store: Store,
    options: Options,
    meanwhile: Meanwhile | None = None,
) -> None:
    """Tune one program while it is compiled; the backend finds its plan in the store. An error says why there is none.

    What this process may do `meanwhile` it does where seconds count, and a GPU's host has cores for both.

    Of several processes that run one program together, only the first tunes; the others take the default until it has.
    """
    if not tunes_here():
        return
    trace = write_trace(gm, example_inputs, name_of(gm))
    refuse_promises(gm, example_inputs, trace)
    where = next((str(d) for d in devices_of(gm, example_inputs) if d.type == "cuda"), "cpu")
    logger.info("tuning program %s on %s, effort %s", trace.key[:12], where, effort)
    spends, here, kinds = Effort.named(effort), environment(where), usable_kinds(options.rewrites, options.weights)
    launches = launches_on(here.device, (options.launch or EITHER,))
    if not launches:
        raise FuseplanError("a CPU has no CUDA graphs")
    failed = failed_lately(store, trace.key, here, options.launch or "plain", box_of(trace), spends.harder)
    if failed is not None:
        raise FuseplanError(str(failed))
    found = None if spends.cuts else sites_alone(gm, example_inputs, kinds)
    brief = Brief(effort, usual_told(store, spends, here))
    pool = LazyPool(lambda: staying_workers(where, spends))
    with brief.speaking(), shown(None, brief) as heard, _open_to_the_end(pool):
        tuner = Tuner(store, pool, where, spends, Settings(kinds=kinds, objective=options.wanted), heard, here=here)
        if meanwhile is None or here.device == "cpu" or not spends.over_default:
            (tuned,) = tuner.tune(trace, launches, found=found)
        else:
            tuned = _tuned_beside(tuner, lambda: next(iter(tuner.tune(trace, launches, found=found))), meanwhile)
    logger.info("program %s: %s, %s, after %.0f s", trace.key[:12], tuned.status, tuned.winner, tuned.seconds)
    if tuned.plan is None:
        raise FuseplanError(tuned.detail or "no plan could be raced")


def _tuned_beside(tuner: Tuner, tune: Callable[[], Tuned], meanwhile: Meanwhile) -> Tuned:
    """The verdict, of a thread of its own. A race begins as a plan is loaded that is likely to win: its first seconds are first calls, of
    which none is timed. Nothing is compiled here before, in a process whose threads take turns: workers would wait to be told what to do,
    and have compiled it as soon.
    """
    over, likely = threading.Event(), SimpleQueue[Plan | None]()
    tuner.expects = likely.put

    def tuned() -> Tuned:
        try:
            return tune()
        finally:
            over.set()
            likely.put(None)  # there are no more

    going = Background(tuned, "tuning")
    while (plan := likely.get()) is not None:
        if not over.is_set():  # else it is known which of them to compile
            meanwhile.likely(plan)
    return going.result()


def kinds_of(rewrites: str | Iterable[str], weights: str) -> tuple[str, ...] | None:
    """The kinds of rewrite that plans may have, by the values of both options; None for all."""
    return usable_kinds(allowed_kinds(rewrites), word("weights", weights, WEIGHTS))


@contextmanager
def _open_to_the_end(pool: LazyPool) -> Iterator[None]:
    """Close a pool afterwards; at once where that is an error, such as Ctrl-C: what a thread makes of workers that die of it counts
    for nothing.
    """
    try:
        yield
    except BaseException as error:
        pool.break_off(error)
        raise
    pool.close()


@contextmanager
def _elsewhere(on: str | Elsewhere | None, device: str | None) -> Iterator[Elsewhere | None]:
    """The devices of other machines, where that is where to tune."""
    if on is None or not isinstance(on, str):
        yield on
        return
    if on != "ray":
        raise OptionError(f"programs are tuned here, or on ray, not on {on!r}")
    types = () if device is None else types_in(device)
    from fuseplan.fleet.on_ray import on_ray  # which brings Ray

    with on_ray(types, os.environ.get("RAY_ADDRESS") or None) as fleet:
        yield fleet


def _agenda(
    store: Store, programs: Source | Iterable[Source] | None, effort: str, launch: str | None, device: str | None,
    shard: str | tuple[int, int] | None, top: int | None, again: bool, kinds: tuple[str, ...] | None, wanted: Objective,
    elsewhere: Elsewhere | None = None,
) -> Agenda:  # fmt: skip
    launches = (EITHER,) if launch is None else LAUNCHES if launch == "both" else (launch,)
    if launch is not None and not set(launches) <= set(LAUNCHES):
        raise OptionError(f"there is no launch {launch!r}; known are {', '.join(LAUNCHES)}, both")
    spends, part = Effort.named(effort), None if shard is None else Shard.named(shard)
    devices = () if device is None else named(device) if elsewhere is None else types_in(device)
    if part is not None:
        programs = refuse_what_differs(programs)
    found = (
        read_programs(waiting(store, devices, wanted), store)
        if programs is None
        else that_matter(read_programs(programs, store))
    )
    if part is not None:
        found = shard_of(found, part, spends)
        logger.info("%s", found.chosen)
    return agenda_of(
        found, store, effort=effort, launches=launches, devices=devices, again=again, top=top, kinds=kinds, elsewhere=elsewhere,
        objective=wanted,
    )  # fmt: skip


@contextmanager
def _opened(db: str | Path | None, *, reading: bool = False, there: bool = False) -> Iterator[Store]:
    store = Store(places(os.environ, db), reading=reading)
    try:
        try:
            found = store.required(there=there)
        except Absent as absent:
            raise Absent(
                f"{absent}: nothing waits yet. Programs come to wait in it where they run with option tune=later"
            ) from None
        yield found
    finally:
        store.close()
