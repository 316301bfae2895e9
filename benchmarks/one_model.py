"""One model in a process of its own: tuned, and then all its sides against each other. `models` starts it.

What is known stands in its report at once, and a process that finds one goes on where it ends: a model may take several, of
which none begins what it has no time for. What Inductor has compiled is found again in its caches.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import Any

import torch

import fuseplan
from benchmarks import other_checkout
from benchmarks.fleet import STARTED, Report, Task
from benchmarks.result import commit
from benchmarks.timing import contest, paired
from benchmarks.together import choose_undisturbed, running, undisturbed
from benchmarks.tuned_model import TUNED, asked, tuned
from benchmarks.zoo import Case, case_of, fresh, load, step_of
from fuseplan.measure.failures import RUN, check_device, failure
from fuseplan.measure.race import RaceResult
from fuseplan.tuning.effort import Effort

LAUNCHES = ("plain", "cudagraph")
AUTOTUNED = "max-autotune-no-cudagraphs"
SEARCHING = (AUTOTUNED, "max-autotune")
"""Modes that compile for minutes; the second does all that the first does, and more."""
MODES = ("reduce-overhead", *SEARCHING)
TORCH: dict[str, dict[str, Any] | None] = {
    "torch.compile": {"backend": "inductor"},
    "eager": None,
    **{mode: {"backend": "inductor", "mode": mode} for mode in MODES},
}
SIDES = (*TORCH, *TUNED)
OF_LAUNCH = {"plain": ("torch.compile", "eager"), "cudagraph": ("reduce-overhead",)}
"""What torch itself does at each launch, without being asked to search."""
PATIENCE_S = 240.0
"""How long a side may compile."""
MARGIN_S = 30.0
"""What tracing, the other sides and the first calls before a race take, roughly."""
BAD = ("plan misses", "plan stale hits", "plans refused", "regions fallen back", "regions failed at run time")


class NoTimeError(Exception):
    """The process ends before what it has no time for; the next goes on from there."""


def run(task: Task) -> None:
    """Do what the report does not have yet: tune, compile and race; and then, if it was asked for, run another checkout."""
    report, time, given = Report(task.out, resumed=True), Time(task), task.arguments
    raced_already = "rounds" in report.fields and set(given["sides"]) <= report.fields["sides"].keys()
    report.put(at="the start", at_side="", left="", done=False)
    choose_undisturbed()
    try:
        if not raced_already and not _measured(task, report, time):
            return
        if given.get("against") and "against" not in report.fields:
            time.need(other_checkout.LEAST_S, "the other checkout")
            report.at("running the other checkout")
            found = other_checkout.measured(task, time.left())
            if found is None:
                report.put(left="there was too little time for the other checkout", moved=False)
                return
            report.put(against=found)
    except NoTimeError as left:
        report.put(left=str(left), moved=not time.fresh)
        return
    report.put(at="", at_side="", done=True, seconds=report.seconds())


class Time:
    """What is left to a process. The first thing that it does may begin with less than it needs if no other process has more."""

    def __init__(self, task: Task) -> None:
        self.limit_s = task.limit_s
        self.whole = task.limit_s >= task.arguments.get("limit_s", 0.0)
        self.fresh = True

    def left(self) -> float:
        """Seconds until this process is ended."""
        return self.limit_s - (running() - STARTED)

    def need(self, seconds: float, what: str) -> None:
        """NoTimeError where so much is not left."""
        if self.left() < seconds and not (self.fresh and self.whole):
            raise NoTimeError(f"no time was left for {what}: {self.left():.0f} s of {seconds:.0f}")
        self.fresh = False


def _measured(task: Task, report: Report, time: Time) -> bool:
    """Tune, compile and race; False where what is left is for another process."""
    given = task.arguments
    report.put(commit=commit(), gpu=_gpu(), effort=given["effort"])
    case = case_of(task.name)
    launches = {TUNED[side] for side in given["sides"] if side in TUNED}
    known_tuning = report.fields.get("tuning", {})
    if "failed" not in known_tuning and not launches <= known_tuning.get("launches", {}).keys():
        budget_s = given.get("budget_s") or Effort.named(given["effort"]).wall_s
        time.need(budget_s * len(launches) + MARGIN_S, "tuning")
        report.at("loading, to be traced")
        try:
            with undisturbed():
                tuning = tuned(task, case, report)
        except Exception as error:  # noqa: BLE001 - a model that cannot be tuned is still measured
            check_device(error)
            tuning = {"failed": ": ".join(failure(error, RUN))}
        report.put(tuning=tuning, budget_s=budget_s, seconds=report.seconds())
    report.at("loading")
    model, inputs = load(case, given["device"])
    report.put(library=type(model).__module__.partition(".")[0])
    steps: dict[str, Callable[[], Any]] = {}
    rows: dict[str, dict[str, Any]] = dict(report.fields.get("sides", {}))
    for side in sorted(given["sides"], key=SEARCHING.__contains__):
        known = rows.get(side, {})
        if "failed" in known:
            continue
        if (why := _hopeless(side, rows)) is not None:
            rows[side] = {"failed": why}
            continue
        patience = given.get("patience", PATIENCE_S)
        if side in SEARCHING and "first_s" not in known:
            time.need(_may_take_s(side, rows, patience) + MARGIN_S, f"{side} to compile")
        report.at("compiling", side)
        try:
            with within(patience, partial(_give_up, report, rows, side, patience)):
                steps[side], found = side_of(side, case, model, inputs, given["db"])
            rows[side] = found | (
                {"first_s": known["first_s"]} if "first_s" in known else {}
            )  # then it was found compiled
        except Exception as error:  # noqa: BLE001 - one side that fails is a row, and the others are measured
            check_device(error)
            rows[side] = {"failed": ": ".join(failure(error, RUN))}
        if "failed" in rows[side]:
            steps.pop(side, None)
        report.put(sides=rows, seconds=report.seconds())
    time.need(given["seconds"] + MARGIN_S, "the race")
    more_s = max(0.0, min(given.get("more", 0.0), time.left() - given["seconds"] - MARGIN_S))
    with undisturbed():
        contested = contest(steps, given["device"], given["seconds"], report.at, more_s=more_s, twice=tuple(TORCH))
    rows = {side: {**rows[side], **contested.rows.get(side, {})} for side in given["sides"]}
    report.put(sides=rows, rounds=0, seconds=report.seconds())
    if contested.race is not None:
        report.put(**raced(contested.race, contested.noisy, rows))
    return not given.get("against")


def _hopeless(side: str, rows: Mapping[str, Any]) -> str | None:
    """Why a side need not be tried: it does all that another does, which was not compiled in time, or it would search for minutes, for a
    comparison with nothing.

    >>> _hopeless("max-autotune", {"fuseplan": {"failed": "no plan"}}), _hopeless("max-autotune", {"fuseplan": {"first_s": 2.0}})
    ('not tried: nothing tuned runs that it could be compared with', None)
    """
    ours = [row for name, row in rows.items() if name in TUNED]
    if side in SEARCHING and ours and all("failed" in row for row in ours):
        return "not tried: nothing tuned runs that it could be compared with"
    why = rows.get(AUTOTUNED, {}).get("failed", "")
    if side == "max-autotune" and "not compiled" in why:
        return f"not tried: {AUTOTUNED}, all of which it does, was {why}"
    return None


def _may_take_s(side: str, rows: Mapping[str, Any], patience: float) -> float:
    """What a side may take to compile, of which kernels another has found already where both search for the same.

    >>> _may_take_s("max-autotune", {AUTOTUNED: {"first_s": 90.0}}, 240.0), _may_take_s("max-autotune", {}, 240.0)
    (90.0, 240.0)
    """
    known = rows.get(AUTOTUNED, {}).get("first_s") if side != AUTOTUNED else None
    return patience if known is None else min(patience, float(known))


@contextmanager
def within(seconds: float, late: Callable[[], None]) -> Iterator[None]:
    """Call `late` where it is not done after so many seconds: in another thread, since of a backward that is compiled when it is run
    the main thread only hears once that is done.
    """
    ends, over = running() + seconds, threading.Event()

    def wait() -> None:
        while (left := ends - running()) > 0:  # while others had the GPU to themselves nothing was done
            if over.wait(left):
                return
        if not over.is_set():
            late()

    threading.Thread(target=wait, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _give_up(report: Report, rows: Mapping[str, Any], side: str, patience: float) -> None:
    """End the process; the next goes on without that side. Nothing can be timed beside what still compiles."""
    try:
        report.put(sides={**rows, side: {"failed": f"not compiled within {patience:.0f} s"}}, seconds=report.seconds())
    finally:
        end()


def end() -> None:
    """End the process as one that has done what it could."""
    os._exit(0)


def raced(race: RaceResult, noisy: str, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What a race says beside the times of its sides: its noise, and what tuning has gained."""
    good = [side for side in SIDES if "wall_us" in rows.get(side, {})]
    found = speedups(good, rows, partial(paired, race))
    if found["best_tuned"] and found["best_torch"]:
        found["verdict"] = race.compared(found["best_tuned"], found["best_torch"])
    told = {"noise": race.noise, "noise_of": race.incumbent, "rounds": race.rounds}
    return told | ({"noisy": noisy} if noisy else {}) | found


def speedups(
    good: Sequence[str], rows: Mapping[str, Mapping[str, Any]], ratio: Callable[[str, str], float]
) -> dict[str, Any]:
    """The tuned sides against the best of torch's, by the blocks that ran beside each other."""

    def best(sides: Sequence[str]) -> str | None:
        return min((side for side in sides if side in good), key=lambda side: rows[side]["wall_us"], default=None)

    found: dict[str, Any] = {"best_torch": best(list(TORCH)), "best_tuned": best(list(TUNED))}
    for side in (side for side in TUNED if side in good):
        default = best(OF_LAUNCH.get(TUNED[side], ()))
        if found["best_torch"]:
            found.setdefault("over_best_torch", {})[TUNED[side]] = ratio(found["best_torch"], side)
        if default:
            found.setdefault("over_default", {})[TUNED[side]] = ratio(default, side)
    if found["best_tuned"] and found["best_torch"]:
        found["speedup"] = ratio(found["best_torch"], found["best_tuned"])
    return found


def side_of(
    side: str, case: Case, model: torch.nn.Module, inputs: dict[str, Any], db: str
) -> tuple[Callable[[], Any], dict[str, Any]]:
    """One step of a side, compiled, and what was counted meanwhile; a tuned side that has no stored plan has failed.

    Each side has a callable of its own, so that no two share what Dynamo compiled.
    """
    options = TORCH.get(side)
    if side in TUNED:
        options = {"backend": "fuseplan", "options": {"db": db, **asked(TUNED[side])}}
    call = model if options is None else torch.compile(fresh(model), **options)
    step = step_of(call, model, inputs, case.train)
    before, begin = fuseplan.stats(), monotonic()
    step()
    row: dict[str, Any] = {"first_s": round(monotonic() - begin, 2)}
    if side not in TUNED:
        return step, row
    step()
    counted = {event: n - before.get(event, 0) for event, n in fuseplan.stats().items() if n > before.get(event, 0)}
    if (why := without_plans(counted)) is not None:
        row["failed"] = why
    return step, {**row, "counted": counted}


def without_plans(counted: Mapping[str, int], *, partly: bool = False) -> str | None:
    """Why a tuned side, by what was counted of it, has not the stored plans of its programs; None where it has them.

    `partly` where it is told elsewhere that some programs have none. A program whose sizes vary may hit the plans of several boxes.

    >>> without_plans({"programs": 2, "plan hits": 2}), without_plans({"programs": 2, "plan hits": 1, "plan misses: no plan": 1})
    (None, "not the stored plans of its programs: ['plan misses: no plan']")
    >>> without_plans({"programs": 2, "plan hits": 1, "plan misses: no plan": 1}, partly=True)
    """
    hits, programs = counted.get("plan hits", 0), counted.get("programs", 0)
    wrong = [event for event, n in counted.items() if n and event.startswith(BAD[1:] if partly else BAD)]
    if wrong or not hits or (hits < programs and not partly):
        return f"not the stored plans of its programs: {wrong or dict(counted)}"
    return None


def _gpu() -> str | None:
    number = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    return f"{torch.cuda.get_device_name(0)}, number {number}" if torch.cuda.is_available() else None
