"""On what a padded plan is judged beside what other plans are: other sizes of its box, and values that a filled-up input may hide.

What is filled up is zero. A program for which zeros happen to be nothing on the values of its trace, such as the largest of
positive numbers, is found wrong on values of the other sign, integers among them where nothing is picked by them; one that asks
whether all of a mask is set, on a mask all of which is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch

from fuseplan.capture.trace.args import named
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.load import Loaded
from fuseplan.judge.whole_numbers import whole_numbers
from fuseplan.plan import Plan
from fuseplan.tuning.queue.boxes import at_sizes

_SIGNED = ("int8", "int16", "int32", "int64")
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
    turned = _turned(loaded)
    cases = [(edge, loaded.trace), (least, loaded.trace), (below, loaded.trace), (between, loaded.trace)]
    cases += [] if turned == loaded.trace else [(least, turned), (between, turned)]
    return [
        PaddedCase(
            f"at {' '.join(f'{name}={size}' for name, size in sizes.items())}{', on turned values' if trace is turned else ''}",
            loaded.given(at_sizes(trace, sizes)),
        )
        for sizes, trace in cases
    ]


def _turned(loaded: Loaded) -> Trace:
    """The program on numbers of the other sign, floats and integers, and on masks that are set everywhere. Integers that pick something, such
    as rows of a table, stay.
    """
    trace = loaded.trace
    inputs = [_turned_input(item) for item in trace.fields["inputs"]]
    integers = {number: found for number, item in enumerate(inputs) if (found := _negated(item)) is not None}
    for number in whole_numbers(loaded, list(integers)) if integers else ():
        inputs[number] = integers[number]
    return replace(trace, fields={**trace.fields, "inputs": inputs}) if inputs != trace.fields["inputs"] else trace


def _turned_input(item: Mapping[str, Any]) -> Mapping[str, Any]:
    if not _varies(item):
        return item
    values = item["values"]
    if values["spread"] == "few" and set(map(_number, values["values"])) in _SET:
        return {**item, "values": {"spread": "few", "values": [max(values["values"])], "counts": [1]}}
    if values["spread"] != "normal":
        return item
    return {**item, "values": {**values, "mean": -values["mean"], "low": -values["high"], "high": -values["low"]}}


def _negated(item: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """An input of integers with their signs turned; None of one that is none, or has other integers of a meaning of their own."""
    if not _varies(item) or item["dtype"] not in _SIGNED:
        return None
    values, most = item["values"], torch.iinfo(named(item["dtype"])).max
    if values["spread"] == "few" and set(values["values"]) not in _SET:
        return {**item, "values": {**values, "values": [min(most, -one) for one in values["values"]]}}
    if values["spread"] == "range" and "marks" not in values:
        return {**item, "values": {**values, "low": -values["high"], "high": min(most, -values["low"])}}
    return None


def _varies(item: Mapping[str, Any]) -> bool:
    """Whether it is an input that may be filled up."""
    return item["kind"] == "input" and any(isinstance(size, str) for size in item["shape"])


def _number(value: Any) -> Any:
    return None if isinstance(value, dict) else value
