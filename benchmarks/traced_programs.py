"""All programs of a model in a process of its own, each looked at with workers and a database at hand, and reported as it is found."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

from benchmarks.fleet import Report, Task
from benchmarks.progress import LogProgress, heard
from benchmarks.result import commit
from benchmarks.tuned_model import traced
from benchmarks.zoo import case_of
from fuseplan.capture.trace.format import Trace
from fuseplan.measure.environment import environment
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program.services import Services
from fuseplan.tuning.queue.devices import own_workers
from fuseplan.tuning.traces import device_of, title_of
from fuseplan.tuning_db import Store

Look = Callable[[Services, Effort, Trace], Iterable[dict[str, Any]]]
"""What finds fields of one program, a few at a time."""


def look_at_each(task: Task, look: Look) -> None:
    """Have what `look` finds of each program in the report."""
    given = task.arguments
    report, programs = Report(task.out, commit=commit()), list[dict[str, Any]]()
    report.at("loading, to be traced")
    traces = traced(task.name, case_of(task.name), given["device"])
    here, effort = environment(device_of(traces[0])), Effort.named(given["effort"])
    with own_workers(here.device, effort, heard) as pool, closing(Store.open(os.environ, given["db"])) as store:
        for trace in traces:
            programs.append({"program": trace.key})
            services = Services(store, here, pool, LogProgress(report.at), title_of(trace))
            for known in look(services, effort, trace):
                programs[-1] |= known
                report.put(programs=programs)
    report.put(at="", done=True)
