"""Tuning what a recording has met, before the sides are compared."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from benchmarks.fleet import Report, Task
from benchmarks.one_model import MARGIN_S, Time
from benchmarks.progress import LogProgress, heard
from benchmarks.serve.sides import SIDES
from benchmarks.together import running, undisturbed
from benchmarks.tuned_model import account
from fuseplan.recording.book import Recording
from fuseplan.tune import tune
from fuseplan.tuning.queue.devices import own_workers

NOT_TUNED = {"left": "no time was left to tune them", "failed": "tuning failed"}
"""Of a program without a verdict, why there is none, by its status."""


def tuned(task: Task, recording: Recording, report: Report, time: Time) -> None:
    """Tune within the seconds that are given for it; what an earlier process has found is not looked for again."""
    given, began = task.arguments, running()
    time.need(given["tune_s"] + MARGIN_S, "tuning")
    with undisturbed():
        found = tune(
            recording.programs, effort=given["effort"], db=given["db"], budget=given["tune_s"], device=given["device"],
            progress=LogProgress(report.at), workers=partial(own_workers, on_stage=heard),
        )  # fmt: skip
    earlier = report.fields.get("tuning", {})
    known = dict(earlier.get("programs", {}))
    for one in found:
        name = " ".join(filter(None, (one.program[:12], one.sizes)))
        before = known.get(name, {}).get("status", "left")
        # what was found in the database an earlier process has tuned, which may have ended before it could report that
        if one.timed or before in NOT_TUNED:
            known[name] = {"calls": one.calls, **account(one)}
    seconds = round(earlier.get("seconds", 0.0) + running() - began, 2)
    report.put(tuning={"programs": known, "notes": list(recording.notes), "seconds": seconds}, seconds=report.seconds())


def left_out(given: Mapping[str, Any], known: Mapping[str, Any]) -> list[str]:
    """What a row does not have, and why.

    >>> programs = {"a": {"calls": 3, "status": "left"}, "b": {"calls": 1, "status": "tuned"}}
    >>> left_out({"device": "cuda", "sides": SIDES}, {"tuning": {"programs": programs, "notes": []}})
    ['plans for 75% of the recorded calls: no time was left to tune them']
    """
    found = [] if given["device"].startswith("cuda") else ["memory: there is no GPU"]
    found += plans_left_out(known.get("tuning", {}))
    return found + [f"{side}: not asked for" for side in SIDES if side not in given["sides"]]


def plans_left_out(tuning: Mapping[str, Any]) -> list[str]:
    """Which plans a tuned side cannot have, and why.

    >>> plans_left_out({"programs": {"a": {"calls": 3, "status": "tuned"}}, "notes": ["f: it draws from another generator"]})
    ['a plan: f: it draws from another generator']
    """
    found = []
    programs = tuning.get("programs", {}).values()
    every = sum(one["calls"] for one in programs)
    for status, why in NOT_TUNED.items():
        calls = sum(one["calls"] for one in programs if one["status"] == status)
        found += [f"plans for {calls / every:.0%} of the recorded calls: {why}"] if calls else []
    return found + [f"a plan: {note}" for note in tuning.get("notes", [])]
