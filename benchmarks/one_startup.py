"""One first call in a process of its own. `startup` starts it, with caches of its own.

Nothing of fuseplan is imported before the clock runs: what a program pays for it at its first call is counted.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch

from benchmarks.fleet import Report, Task
from benchmarks.zoo import EVERY, fresh, load, step_of

SHOWN_S = 0.05
LOGGED = 400
"""Lines of a log that are kept."""


def run(task: Task) -> None:
    """The seconds until the first call has returned; or, for the side `tune`, the plan that others will find."""
    given = task.arguments
    report = Report(task.out)
    report.at("loading", given["side"])
    case = EVERY[task.name]
    if given["side"] == "tune":
        from benchmarks.tuned_model import tuned

        report.put(tuning=tuned(task, case, report))
        return
    model, inputs = load(case, given["device"])
    wait = torch.cuda.synchronize if given["device"].startswith("cuda") else _nothing
    wait()
    with logged() as lines:
        begin = perf_counter()
        compiled = torch.compile(fresh(model), **options_of(given["side"], given["db"], given["launch"]))
        step = step_of(compiled, model, inputs, case.train)
        step()
        wait()
        first = perf_counter() - begin
    begin_second = perf_counter()
    step()
    wait()
    report.put(first_s=first, second_s=perf_counter() - begin_second, at="", kept=kept(), spent=spent(), log=lines)
    if given["side"] != "torch.compile":
        import fuseplan
        from fuseplan.backend import programs_of
        from fuseplan.explain import compiled_by

        keys = {program.key for program in programs_of(compiled_by(compiled))}
        report.put(counted=fuseplan.stats(), verdicts=verdicts(given["db"], keys))


def options_of(side: str, db: str, launch: str | None) -> dict[str, Any]:
    """What torch.compile is told."""
    if side == "torch.compile":
        return {"backend": "inductor"} | ({"mode": "reduce-overhead"} if launch == "cudagraph" else {})
    tune = {"tune": "instant"} if side == "fuseplan instant" else {}
    return {"backend": "fuseplan", "options": {"db": db, **tune} | ({"launch": launch} if launch else {})}


def verdicts(db: str, keys: Collection[str | None]) -> list[dict[str, Any]]:
    """What the plans of these programs take, the best default beside each, in µs, and what else was looked at."""
    from fuseplan.tuning_db import Store

    store = Store.reading({}, db)
    plans = [plan for plan in store.plans() if plan.program in keys]
    store.close()
    return [
        {
            "program": plan.program[:12],
            "plan": plan.key[:12],
            "launch": plan.launch,
            "standing": plan.standing,
            "wall_us": plan.wall_us,
            "best_default": plan.best_default,
            "best_default_us": plan.best_default_us,
            "raced": [one.told(("name", "wall_us", "status", "detail")) for one in plan.evidence.raced],
        }
        for plan in plans
    ]


@contextmanager
def logged() -> Iterator[list[str]]:
    """While it lasts, what fuseplan logs of its workers, each line behind the seconds since: where the time of a tuning goes."""
    lines, begin = list[str](), perf_counter()

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if len(lines) < LOGGED:
                lines.append(f"{perf_counter() - begin:.2f} {record.getMessage()}")

    logger, handler = logging.getLogger("fuseplan"), Lines()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def kept() -> dict[str, int]:
    """What torch found in its caches, and what not."""
    from torch._dynamo.utils import counters

    both = {**counters["aot_autograd"], **counters["inductor"]}
    return {event: times for event, times in both.items() if "cache" in event}


def spent() -> dict[str, float]:
    """Seconds of each part of compiling, as torch tells them."""
    from torch._dynamo.utils import calculate_time_spent

    return {part: round(seconds, 2) for part, seconds in calculate_time_spent().items() if seconds >= SHOWN_S}


def _nothing() -> None:
    pass
