"""On what a padded plan is judged beside what other plans are: other sizes of its box, and values that a filled-up input may hide.

What is filled up is zero. A program for which zeros happen to be nothing on the values of its trace, such as the largest of
positive numbers, is found wrong on values of the other sign; one that asks whether all of a mask is set, on a mask all of which is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.load import Loaded
from fuseplan.plan import Plan
from fuseplan.tuning.queue.boxes import at_sizes

_SET = ({0, 1}, {1})
"""Values of a mask, of which 1 is one: an index may have no other than 0."""


@dataclass(frozen=True)
class PaddedCase:
    """A program with inputs of some sizes and values, and what people are told of them."""

    told: str
    loaded: Loaded


def padded_cases(plan: Plan | None, loaded: Loaded) -> list[PaddedCase]:
    """What a padded plan is judged on: no two that follow each other have the same sizes. None of a plan that does not pad."""
    if plan is None or not plan.padded:
        return []
    seeded = Random(loaded.trace.key)
    between = {name: seeded.randint(low, high) for name, low, high in plan.padded}
    edge = {name: high for name, _, high in plan.padded}
    least = {name: low for name, low, _ in plan.padded}
    below = {name: max(low, high - 1) for name, low, high in plan.padded}
    turned = _turned(loaded.trace)
    cases = [(edge, loaded.trace), (least, loaded.trace), (below, loaded.trace), (between, loaded.trace)]
    cases += [] if turned == loaded.trace else [(least, turned), (between, turned)]
    return [
        PaddedCase(
            f"at {' '.join(f'{name}={size}' for name, size in sizes.items())}{', on turned values' if trace is turned else ''}",
            loaded.given(at_sizes(trace, sizes)),
        )
        for sizes, trace in cases
    ]


def _turned(trace: Trace) -> Trace:
    """The program on floats of the other sign, and on masks that are set everywhere."""
    inputs = [_turned_input(item) for item in trace.fields["inputs"]]
    return replace(trace, fields={**trace.fields, "inputs": inputs}) if inputs != trace.fields["inputs"] else trace


def _turned_input(item: Mapping[str, Any]) -> Mapping[str, Any]:
    if item["kind"] != "input" or not any(isinstance(size, str) for size in item["shape"]):
        return item
    values = item["values"]
    if values["spread"] == "few" and set(map(_number, values["values"])) in _SET:
        return {**item, "values": {"spread": "few", "values": [max(values["values"])], "counts": [1]}}
    if values["spread"] != "normal":
        return item
    return {**item, "values": {**values, "mean": -values["mean"], "low": -values["high"], "high": -values["low"]}}


def _number(value: Any) -> Any:
    return None if isinstance(value, dict) else value
