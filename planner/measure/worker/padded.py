"""On what a padded plan is judged beside what other plans are: other sizes of its box, and values that a filled-up input may hide.

What is filled up is zero. A program for which zeros happen to be nothing on the values of its trace, such as the largest of
numbers of both signs, is found wrong on numbers all of which are above zero, or all below, integers among them where nothing is picked by
them; one that asks whether all of a mask is set, on a mask all of which is. What is the same at each place of a weight as it was made, such
as the zeros of a bias, is something else by then: other weights come under the same plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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

DEVIATIONS = 4
"""So many deviations from zero numbers of one sign lie."""
LARGE = 2.0**10
"""What is larger, among a few floats, is a mark, such as what hides a place from attention."""
SIZES = 4
"""Of so many sizes between the ends of a box a plan is judged, beside these: no two of a kind, by what they leave when they are divided."""
_DIVISORS = (2, 3, 4, 5, 7, 8)
_LOOKED_AT = 256
_SIGNED = ("int8", "int16", "int32", "int64")
_INTEGERS = (*_SIGNED, "uint8")


@dataclass(frozen=True)
class PaddedCase:
    """A program with inputs of some sizes and values, and what people are told of them."""

    told: str
    loaded: Loaded
    usual: Loaded
    """The same with the values of its trace."""

    @contextmanager
    def weights(self) -> Iterator[None]:
        """While it lasts, weights and buffers have the values of the case: they are the same tensors in all cases."""
        given = zip(self.loaded.trace.fields["inputs"], self.usual.trace.fields["inputs"], strict=True)
        owned = self.loaded.tensors.owned
        others = [i for i, (ours, usual) in enumerate(given) if i in owned and ours["values"] != usual["values"]]
        try:
            self.loaded.tensors.make_anew(others)
            yield
        finally:
            self.usual.tensors.make_anew(others)


def why_not_judged(plan: Plan | None, loaded: Loaded) -> str | None:
    """Why no values of a program tell whether a padded plan changes anything; None where they do, and of a plan that does not pad."""
    if plan is None or not plan.padded:
        return None
    for i, item in enumerate(loaded.trace.fields["inputs"]):
        if not _varies(item) or _is_float(item) or item["dtype"] == "bool":
            continue
        values = item["values"]
        if values["spread"] == "unknown" or (values["spread"] == "few" and not any(values["values"])):
            return f"it cannot be padded: nothing but zeros is known of input {i}, which would be filled up with such"
    return None


def padded_cases(plan: Plan | None, loaded: Loaded) -> list[PaddedCase]:
    """What a padded plan is judged on: no two that follow each other have the same sizes. None of a plan that does not pad."""
    if plan is None or not plan.padded:
        return []
    edge = {name: high for name, _, high in plan.padded}
    least = {name: low for name, low, _ in plan.padded}
    below = {name: max(low, high - 1) for name, low, high in plan.padded}
    seeded = Random(loaded.trace.key)
    drawn = {name: unlike((low, max(low, high - 1)), seeded) for name, low, high in plan.padded}
    between = [{name: sizes[i % len(sizes)] for name, sizes in drawn.items()} for i in range(SIZES)]
    corners = [edge | {name: least[name]} for name in edge] if len(edge) > 1 else []
    cases = [(sizes, loaded.trace, "") for sizes in (edge, least, below, *corners, *between)]
    turned = zip((least, between[0], below), _turned(loaded), ("above zero", "below zero", "about zero"), strict=True)
    cases += [(sizes, trace, f", on values {where}") for sizes, trace, where in turned if trace != loaded.trace]
    return [
        PaddedCase(
            f"at {' '.join(f'{name}={size}' for name, size in sizes.items())}{told}",
            loaded.given(at_sizes(trace, sizes)),
            loaded,
        )
        for sizes, trace, told in cases
    ]


def unlike(ends: tuple[int, int], drawn: Random) -> list[int]:
    """Sizes between two that leave something else when they are divided by small numbers than those do, and than each other: a program
    may be right at multiples of three alone. The lower end where there are none between.

    >>> sizes = unlike((33, 63), Random(0))
    >>> len(sizes), [{size % by for size in (33, 63, *sizes)} for by in (2, 3, 4)]
    (4, [{0, 1}, {0, 1, 2}, {0, 1, 2, 3}])
    >>> unlike((7, 8), Random(0))
    [7]
    """
    low, high = ends
    inside = range(low + 1, high)
    left = drawn.sample(inside, min(len(inside), _LOOKED_AT))
    seen, found = {each for size in ends for each in _remainders(size)}, list[int]()
    while left and len(found) < SIZES:
        best = max(left, key=lambda size: len(_remainders(size) - seen))
        left.remove(best)
        seen |= _remainders(best)
        found.append(best)
    return found or [low]


def _remainders(size: int) -> set[tuple[int, int]]:
    return {(by, size % by) for by in _DIVISORS}


def _turned(loaded: Loaded) -> list[Trace]:
    """The program on numbers that are all above zero, and on such that are all below, floats and integers, and both on masks that are set
    everywhere; and on floats about zero: others may hide in a softmax what was filled up. Integers that pick something, such as rows of a
    table, stay.
    """
    given = loaded.trace.fields["inputs"]
    numbers = [i for i, item in enumerate(given) if _may_be_numbers(item)]
    whole = whole_numbers(loaded, numbers) if numbers else frozenset()
    return [
        _given(loaded.trace, [_turned_input(item, sign, i in whole) for i, item in enumerate(given)])
        for sign in (1, -1, 0)
    ]


def _given(trace: Trace, inputs: Sequence[Mapping[str, Any]]) -> Trace:
    return replace(trace, fields={**trace.fields, "inputs": inputs})


def _turned_input(item: Mapping[str, Any], sign: int, is_number: bool) -> Mapping[str, Any]:
    """An input of which all values have a sign, or are set if it is a mask; floats of both signs where it is 0."""
    if not _varies(item):
        return _stirred(item, sign)
    if sign == 0 and not _is_float(item):
        return item
    values = item["values"]
    found: Mapping[str, Any]
    if _is_mask(item) and sign == 0:
        return item
    if _is_mask(item):
        found = {"spread": "few", "values": [max([*values["values"], 1])], "counts": [1]}
    elif _is_float(item):
        found = _floats_of_sign(values, sign)
    elif is_number and (sign > 0 or item["dtype"] in _SIGNED):
        found = _integers_of_sign(values, sign, torch.iinfo(named(item["dtype"])))
    else:
        return item
    return {**item, "values": found}


def _stirred(item: Mapping[str, Any], sign: int) -> Mapping[str, Any]:
    """What is not filled up, where it is one number, such as a bias that was never trained or the scale of a norm: others about it, above
    zero where it is, and off zero where it is that. A flag is set, and is not.
    """
    values = item.get("values", {})
    numbers = (
        values["values"]
        if values.get("spread") == "few"
        else [values.get("mean")]
        if not values.get("deviation", 1)
        else []
    )
    if item.get("dtype") == "bool" and sign != 0:
        return {**item, "values": {"spread": "few", "values": [int(sign > 0)], "counts": [1]}}
    if item["kind"] == "size" or not _is_float(item) or len(numbers) != 1 or isinstance(numbers[0], dict):
        return item
    (number,) = numbers
    if abs(number) > LARGE:
        return item
    middle = float(number) or (-0.5 if sign < 0 else 0.5)
    low, high = sorted((0.5 * middle, 1.5 * middle))
    found = {"spread": "normal", "mean": middle, "deviation": abs(middle) / 4, "low": low, "high": high}
    return {**item, "values": found}


def _floats_of_sign(values: Mapping[str, Any], sign: int) -> Mapping[str, Any]:
    """Floats that lie about several deviations from zero, or about their mean where that is further away. Of those of which a trace has but
    few values others may come, and be as large.
    """
    if values["spread"] != "normal":
        seen = [abs(one) for one in values.get("values", ()) if not isinstance(one, dict) and 0 < abs(one) <= LARGE]
        scale = float(max(seen, default=1.0))
        most = DEVIATIONS * scale
        values = {"spread": "normal", "mean": 0.0, "deviation": scale, "low": -most, "high": most}
    mean, deviation = abs(values["mean"]), values["deviation"]
    largest = max(abs(values["low"]), abs(values["high"]))
    if sign == 0:
        about = {"mean": 0.0, "deviation": deviation or largest, "low": -largest, "high": largest}
        return values if mean < deviation else {**values, **about}
    middle = max(mean, DEVIATIONS * deviation) or largest
    least, most = min(deviation or middle, middle) / 8, middle + largest
    low, high = (least, most) if sign > 0 else (-most, -least)
    return {**values, "mean": sign * middle, "low": low, "high": high}


def _may_be_numbers(item: Mapping[str, Any]) -> bool:
    """Whether an input has integers of which others may be given, if nothing is picked by them."""
    if not _varies(item) or _is_float(item) or _is_mask(item):
        return False
    return item["dtype"] in _INTEGERS and item["values"]["spread"] in ("few", "range")


def _integers_of_sign(values: Mapping[str, Any], sign: int, limits: torch.iinfo) -> Mapping[str, Any]:
    """Integers as large as these, marks among them, all of one sign."""
    order = {name: values[name] for name in ("order",) if name in values}
    if values["spread"] == "few":
        numbers = [_sized(one, limits) for one in values["values"]]
        return {**order, "spread": "few", "values": [sign * one for one in numbers], "counts": values["counts"]}
    seen = [values["low"], values["high"], *values.get("marks", ())]
    sizes = [_sized(one, limits) for one in seen]
    spans = min(seen) <= 0 <= max(seen)
    least, most = 1 if spans else min(sizes), max(sizes)
    if order.get("order") == "counting" and sign < 0:  # from there it climbs
        most = min(limits.max, 4 * most + 2)
    low, high = (least, most) if sign > 0 else (-most, -least)
    return {**order, "spread": "range", "low": low, "high": high}


def _sized(number: int, limits: torch.iinfo) -> int:
    """How large it is, and no zero."""
    return min(max(1, abs(number)), limits.max)


def _is_mask(item: Mapping[str, Any]) -> bool:
    """Whether an input is set here and there, or everywhere; floats, of which others may come, here and there."""
    values = item["values"]
    if values["spread"] != "few":
        return False
    seen = set(map(_number, values["values"]))
    return item["dtype"] == "bool" or seen == {0, 1} or (seen == {1} and not _is_float(item))


def _is_float(item: Mapping[str, Any]) -> bool:
    dtype = named(item["dtype"])
    return bool(dtype.is_floating_point or dtype.is_complex)


def _varies(item: Mapping[str, Any]) -> bool:
    """Whether it is an input that may be filled up."""
    return item["kind"] == "input" and any(isinstance(size, str) for size in item["shape"])


def _number(value: Any) -> Any:
    return None if isinstance(value, dict) else value
