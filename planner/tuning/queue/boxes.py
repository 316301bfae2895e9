"""Which boxes of a program's sizes are worth a plan of their own: few of them hold most of the time of its calls."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fuseplan.capture.trace.calls import Calls
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.values import observe
from fuseplan.graph import Symbol
from fuseplan.models.sizes import SizeValues
from fuseplan.tuning.traces import box_of
from fuseplan.tuning_db import Box

SHARE = 0.95
"""Boxes are tuned until they hold so much of a program's time."""
MOST = 8
"""And no more than so many: each is a compilation in every process that serves, and minutes of tuning."""


def holding_most(costs: Mapping[Box, float]) -> list[Box]:
    """The boxes that hold most of what all cost together, the most costly first. One whose cost changes by a little changes nothing but
    where it stands, or whether it is the last.

    >>> small, large, rare = (Box.of({"s0": span}) for span in ((5, 8), (33, 64), (65, 128)))
    >>> [box.text for box in holding_most({small: 30.0, rare: 2.0, large: 68.0})]
    ['s0=33..64', 's0=5..8']
    """
    total, held, found = sum(costs.values()), 0.0, list[Box]()
    for box in sorted(costs, key=lambda box: (-costs[box], box.text)):
        if found and (held >= SHARE * total or len(found) == MOST):
            break
        held += costs[box]
        found.append(box)
    return found


def boxes_that_matter(traces: Sequence[Trace]) -> Collection[Box]:
    """Of one program, given once for each box that it was called in, the boxes that are worth a plan. All of them where it was not
    counted how often it was called in some.
    """
    if not all(trace.calls for trace in traces):
        return {box_of(trace) for trace in traces}
    timed = all(one.seconds > 0 for trace in traces for one in trace.calls)
    costs: dict[Box, float] = {}
    for trace in traces:
        box = box_of(trace)
        costs[box] = costs.get(box, 0.0) + sum(_cost(trace, one, timed) for one in trace.calls)
    return holding_most(costs)


def at_sizes(trace: Trace, sizes: Mapping[str, int], args: Sequence[Any] | None = None) -> Trace:
    """The program as it is met with other sizes, and with the values that come with them if the arguments are given. Its key says nothing
    of either.
    """
    symbols = [{**symbol, "hint": sizes.get(symbol["name"], symbol["hint"])} for symbol in trace.fields["symbols"]]
    inputs = trace.fields["inputs"]
    if args is not None:
        inputs = [
            item if item["kind"] != "input" else {**item, "values": observe(arg)}
            for item, arg in zip(inputs, args, strict=True)
        ]
    return replace(trace, fields={**trace.fields, "symbols": symbols, "inputs": inputs}, calls=())


def _cost(trace: Trace, calls: Calls, timed: bool) -> float:
    """The seconds of some calls; where nobody took the time, what they read beside parameters, which goes with it."""
    if timed:
        return calls.seconds
    symbols = [Symbol(one["name"], one["low"], one["high"], one["hint"]) for one in trace.fields["symbols"]]
    sizes = SizeValues(symbols, calls.sizes)
    read = sum(sizes.numel(item["shape"]) for item in trace.fields["inputs"] if item["kind"] == "input")
    return float(calls.calls * max(1, read))
