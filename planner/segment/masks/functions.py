"""Tensors as functions: from an index, given as linear forms, to what the element there is."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from fuseplan.graph import TensorType
from fuseplan.segment.masks.formulas import Formula, at_most, both, either, equal, less, negation
from fuseplan.segment.masks.linear import Linear, UnprovenError, linear, size

MAX_CASES = 64
INTEGERS = {"uint8": (0, 2**8 - 1), "int8": (-(2**7), 2**7 - 1), "int16": (-(2**15), 2**15 - 1),
            "int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}  # fmt: skip
LOWEST = {"float64": -1.7976931348623157e308, "float32": -3.4028234663852886e38, "bfloat16": -3.3895313892515355e38}
"""`torch.finfo(dtype).min`. That of float16 is left out: attention scores come within its reach."""

MAX_EXACT = 2**8
"""Integers up to here are exact in every float dtype."""

Index = tuple[Linear, ...]
Number = Linear | float
Case = tuple[Formula, Number]
"""Where the guard holds, the element is this: a form in an integer tensor, a constant in a float tensor."""
Element = Formula | tuple[Case, ...]
"""Of a boolean tensor, when it is true; else cases of which exactly one holds at each index inside the tensor."""


@dataclass(frozen=True, eq=False)
class Function:
    """A tensor: its shape, dtype, and the element at an index."""

    shape: Index
    dtype: str
    at: Callable[[Index], Element]

    @property
    def boolean(self) -> bool:
        """Whether elements are formulas."""
        return self.dtype == "bool"

    def truth(self, index: Index) -> Formula:
        """The element as a condition: of numbers, that it is not zero."""
        element = self.at(index)
        if isinstance(element, tuple):
            return either(*(both(guard, negation(compare("eq", number, linear(0)))) for guard, number in element))
        return element

    def cases(self, index: Index) -> tuple[Case, ...]:
        """The element as cases: of a condition, 1 and 0."""
        element = self.at(index)
        if isinstance(element, tuple):
            return element
        return live(((element, linear(1)), (negation(element), linear(0))))

    def inside(self, index: Index) -> Formula:
        """That the index lies within the shape."""
        return both(*(both(at_most(0, i), less(i, dim)) for i, dim in zip(index, self.shape, strict=True)))


def tensor(kind: TensorType, at: Callable[[Index], Element]) -> Function:
    """The function of a tensor of that type; each index is evaluated once, since graphs share values."""
    known: dict[Index, Element] = {}

    def remembered(index: Index) -> Element:
        if index not in known:
            known[index] = at(index)
        return known[index]

    return Function(tuple(size(dim) for dim in kind.shape), kind.dtype, remembered)


def unknown(kind: TensorType, why: str) -> Function:
    """A tensor of whose elements nothing is known; its shape may still be used."""

    def at(index: Index) -> Element:
        raise UnprovenError(why)

    return replace(tensor(kind, at), at=at)


def constant(kind: TensorType, number: bool | int | float) -> Function:
    """A tensor that holds one number everywhere."""
    if kind.dtype == "bool":
        return tensor(kind, lambda index: bool(number))
    return tensor(kind, lambda index: ((True, converted(number, kind.dtype)),))


def live(cases: Sequence[Case]) -> tuple[Case, ...]:
    """Cases without those that never hold, within bounds; equal numbers are joined."""
    joined: dict[Number, Formula] = {}
    for guard, number in cases:
        joined[number] = either(joined.get(number, False), guard)
    kept = tuple((guard, number) for number, guard in joined.items() if guard is not False)
    if len(kept) > MAX_CASES:
        raise UnprovenError("an element has too many possible values")
    return kept


def integer(number: Number) -> Linear:
    """An integer element."""
    if not isinstance(number, Linear):
        raise UnprovenError("a float where an integer is expected")
    return number


def stretched(source: Function, shape: Index) -> Callable[[Index], Index]:
    """From an index of a tensor of that shape to the index of `source`, which is broadcast to it."""
    ones = [dim.number == 1 for dim in source.shape]
    skipped = len(shape) - len(ones)
    if skipped < 0 or any(
        not one and dim != to for one, dim, to in zip(ones, source.shape, shape[skipped:], strict=True)
    ):
        raise UnprovenError("a tensor is broadcast along a size that may be one")
    return lambda index: tuple(linear(0) if one else i for one, i in zip(ones, index[skipped:], strict=True))


def compare(relation: str, left: Number, right: Number) -> Formula:
    """`left relation right`: forms with forms, constants with constants."""
    if isinstance(left, Linear) and isinstance(right, Linear):
        return _RELATIONS[relation](left, right)
    a, b = _of_floats(left), _of_floats(right)
    return {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[relation]


_RELATIONS: dict[str, Callable[[Linear, Linear], Formula]] = {
    "eq": equal,
    "ne": lambda a, b: negation(equal(a, b)),
    "lt": less,
    "le": at_most,
    "gt": lambda a, b: less(b, a),
    "ge": lambda a, b: at_most(b, a),
}


def _of_floats(number: Number) -> Fraction | float:
    """One side of a comparison of floats: an integer joins it only if it is exact in all of them."""
    value = exact(number)
    if isinstance(number, Linear) and abs(float(value)) > MAX_EXACT:
        raise UnprovenError("a large integer is compared with a float")
    return value


def exact(number: Number) -> Fraction | float:
    """A constant as it is: a fraction, or an infinity."""
    if isinstance(number, Linear):
        if number.number is None:
            raise UnprovenError("an integer that depends on position or size becomes a float")
        return Fraction(number.number)
    if math.isnan(number):
        raise UnprovenError("an element is nan")
    return number if math.isinf(number) else Fraction(number)


def rounded(number: Fraction | float, dtype: str) -> float:
    """A float of that dtype, where it holds the number to the bit."""
    try:
        value = float(number)
    except OverflowError:
        raise UnprovenError(f"a number is too large for {dtype}") from None
    if math.isnan(value):
        raise UnprovenError("an element is nan")
    if not math.isinf(value) and not _holds(value, number, dtype):
        raise UnprovenError(f"{value} is not exact in {dtype}")
    return value + 0.0  # -0.0 adds as 0.0 does


def _holds(value: float, number: Fraction | float, dtype: str) -> bool:
    if Fraction(value) != number:
        return False
    if dtype == "float64":
        return True
    if dtype not in ("float32", "bfloat16", "float16"):
        return False
    try:
        packed = struct.pack("<e" if dtype == "float16" else "<f", value)
    except OverflowError:
        return False
    if dtype == "bfloat16":
        packed = b"\0\0" + packed[2:]
    return bool(struct.unpack("<e" if dtype == "float16" else "<f", packed)[0] == value)


def converted(number: bool | int | float | Linear, dtype: str) -> Number:
    """A number as an element of that dtype, where it is one."""
    if dtype in INTEGERS:
        if isinstance(number, float):
            if not number.is_integer():
                raise UnprovenError(f"{number} becomes an integer")
            number = int(number)
        form = linear(number)
        low, high = INTEGERS[dtype]
        if form.number is not None and not low <= form.number <= high:
            raise UnprovenError(f"{form.number} wraps in {dtype}")
        return form
    if isinstance(number, bool | int):
        number = linear(number)
    return rounded(exact(number), dtype)
