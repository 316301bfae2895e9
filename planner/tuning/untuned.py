"""A trace that nobody has tuned, explained: the graphs that it becomes, the plan that would run here, and why."""

from __future__ import annotations

import os
from contextlib import ExitStack

import torch

from fuseplan.capture.dynamo.numerics import Numerics
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.key import retarget
from fuseplan.errors import FuseplanError
from fuseplan.graph import Graph
from fuseplan.looking.explained import Explained, standing
from fuseplan.looking.subject import graphs_for, of_program
from fuseplan.measure.environment import environment
from fuseplan.measure.jobs import Capture
from fuseplan.measure.pool import Workers
from fuseplan.plan import Plan
from fuseplan.tuning.traces import device_of, sizes_of
from fuseplan.tuning_db import Hit, Query, Stale, Store
from fuseplan.tuning_db.resume import failures

_ELSEWHERE = "what torch.compile does, unless a plan is stored where it runs"


def is_file(what: str) -> bool:
    """Whether a text is meant as a path rather than as a key or a name.

    >>> is_file("no-such.json"), is_file("3f2c")
    (True, False)
    """
    return os.path.lexists(what) or os.sep in what or what.endswith((".json", ".py"))


class Captures:
    """Workers that capture traces, started when the first is asked for, one kind of device after another."""

    def __init__(self) -> None:
        self._ends = ExitStack()
        self._pools: dict[str, Workers] = {}

    def __enter__(self) -> Captures:
        return self

    def __exit__(self, *raised: object) -> None:
        self._ends.close()

    def graphs(self, trace: Trace, remarks: list[str]) -> tuple[tuple[str, Graph], ...]:
        """The ATen graphs of a trace; `remarks` get why there are none."""
        where = device_of(trace)
        if where != "cpu" and not torch.cuda.is_available():
            try:
                trace, where = retarget(trace, "cpu"), "cpu"
            except FuseplanError as error:
                remarks.append(f"its graph cannot be shown here: {error}")
                return ()
            remarks.append("its graph is shown as it is on the CPU")
        if where not in self._pools:
            self._pools[where] = self._ends.enter_context(Workers(where))
        (outcome,) = self._pools[where].map([Capture(trace.to_json())])
        if outcome.found is None:
            remarks.append(f"it cannot be captured: {outcome.detail}")
            return ()
        if outcome.found.uncut:
            remarks.append(f"it is not cut: {outcome.found.uncut}")
        return outcome.found.graphs


def explain_trace(store: Store, trace: Trace, captures: Captures) -> Explained:
    """The plan that this program would get here by now; of one that nobody tuned, the graphs are captured for it."""
    device = device_of(trace)
    known = of_program(store, trace.key)
    here = device == "cpu" or torch.cuda.is_available()
    remarks = [] if here else [f"it was recorded for {device}, which is not here"]
    remarks += map(str, failures(store, trace.key))
    with Numerics.of(trace.numerics).applied():
        answer = store.find_plan(Query(trace.key, environment(device), None, sizes_of(trace))) if here else None
    if isinstance(answer, (Hit, Stale)):
        stored = answer.plan
        why = f"plan {stored.key[:12]} of the {answer.layer} database is {standing(stored)}"
        if isinstance(answer, Stale):
            remarks.append(answer.detail)
        others = () if known is None else tuple(
            one for one in (known.chosen, *known.others) if one is not None and one.stored.key != stored.key
        )  # fmt: skip
        graphs = graphs_for(stored.plan, known.graphs) if known is not None else ()
        return Explained(trace.key, trace.name, stored.plan, why, stored, graphs, others, tuple(remarks))
    why = f"{answer.detail or answer.reason}; this is what torch.compile does" if answer is not None else _ELSEWHERE
    graphs = known.graphs if known is not None and known.graphs else captures.graphs(trace, remarks)
    others = () if known is None else tuple(one for one in (known.chosen, *known.others) if one is not None)
    return Explained(trace.key, trace.name, Plan.named("inductor"), why, None, graphs, others, tuple(remarks))
