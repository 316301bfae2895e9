"""What the processes of both parts have in common: a report that is gone on with, and sides that may fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.fleet import Report, Task
from benchmarks.one_model import NoTimeError, Time
from benchmarks.together import choose_undisturbed
from fuseplan.measure.failures import RUN, check_device, failure

Row = dict[str, Any]


def carried_out(task: Task, measured: Callable[[Report, Time], None]) -> None:
    """Measure one row, or as much of it as there is time for."""
    report = Report(task.out, resumed=True)
    report.put(at="the start", at_side="", left="", done=False)
    choose_undisturbed()
    try:
        measured(report, Time(task))
    except NoTimeError as left:
        report.put(left=str(left))
    else:
        report.put(at="", at_side="", done=True, seconds=report.seconds())


def tried(call: Callable[[], Row]) -> Row:
    """What a side has come to, or why it has failed."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - one side that fails is a row, and the others are measured
        check_device(error)
        return {"failed": ": ".join(failure(error, RUN))}
