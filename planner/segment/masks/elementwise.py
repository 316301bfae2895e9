"""What creating and elementwise operators make of functions: one small rule per operator, and the table that names them.

A rule may raise UnprovenError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import product as combinations

from fuseplan.graph import Arg
from fuseplan.segment.masks.call import Call
from fuseplan.segment.masks.formulas import Formula, at_most, both, either, negation
from fuseplan.segment.masks.functions import (
    Case,
    Element,
    Function,
    Index,
    Number,
    compare,
    constant,
    converted,
    exact,
    live,
    rounded,
    stretched,
)
from fuseplan.segment.masks.linear import Linear, UnprovenError, linear, product

Rule = Callable[[Call], Function]

# creation


def _arange(call: Call, start: int | None = None, step: int | None = None) -> Function:
    first = linear(0) if start is None else call.size(call.op.args[start])
    stride = 1 if step is None else call.op.args[step]
    if type(stride) is not int:
        raise UnprovenError("arange has a step that is no integer")
    return call.gives(lambda index: ((True, converted(index[0] * stride + first, call.out.dtype)),))


def _filled(call: Call, number: bool | int | None = None, position: int = 0) -> Function:
    """A tensor of one number: given by the operator, or its argument."""
    if number is None:
        given = call.number(call.arg(position, "fill_value"))
        if isinstance(given, Linear):
            return call.gives(lambda index: as_declared(call, ((True, given),)))
        return constant(call.out, given)
    return constant(call.out, number)


# elementwise


def as_declared(call: Call, cases: tuple[Case, ...]) -> Element:
    """Cases as an element of the result's dtype."""
    if call.out.dtype == "bool":
        return either(*(both(guard, compare("ne", number, linear(0))) for guard, number in cases))
    return live([(guard, converted(number, call.out.dtype)) for guard, number in cases])


def operand_at(call: Call, arg: Arg, beside: str | None = None) -> Callable[[Index], tuple[Case, ...]]:
    """A tensor argument, broadcast to the result, or a scalar, which must be exact in the dtype that it stands `beside`."""
    function = call.function(arg)
    if function is not None:
        place = stretched(function, call.shape)
        return lambda index: function.cases(place(index))
    number = call.number(arg)
    if (
        beside is not None
        and beside != "bool"
        and not (isinstance(number, float) and beside.startswith(("int", "uint")))
    ):
        number = converted(number, beside)
    plain: Number = linear(number) if isinstance(number, bool) else number
    return lambda index: ((True, plain),)


def _pairwise(
    call: Call, left: Arg, right: Arg, combine: Callable[[Number, Number], tuple[Case, ...]]
) -> Callable[[Index], tuple[Case, ...]]:
    a, b = operand_at(call, left), operand_at(call, right)

    def at(index: Index) -> tuple[Case, ...]:
        pairs = combinations(a(index), b(index))
        return live([(both(g, h, k), n) for (g, x), (h, y) in pairs for k, n in combine(x, y)])

    return at


def _arithmetic(call: Call, combine: Callable[[Number, Number], Number], swapped: bool = False) -> Function:
    """Integers as forms; floats exactly, or not at all."""
    left, right = call.op.args[:2]
    if call.arg(2, "alpha", 1) != 1:
        raise UnprovenError(f"{call.op.target} with a factor")
    if swapped:
        left, right = right, left
    dtype = call.out.dtype

    def one(x: Number, y: Number) -> tuple[Case, ...]:
        return ((True, combine(converted(x, dtype), converted(y, dtype))),)

    if dtype == "bool":
        raise UnprovenError(f"{call.op.target} of booleans")
    at = _pairwise(call, left, right, one)
    return call.gives(lambda index: as_declared(call, at(index)))


def _sum(x: Number, y: Number) -> Number:
    if isinstance(x, Linear) and isinstance(y, Linear):
        return x + y
    return float_of(exact(x) + exact(y))


def _difference(x: Number, y: Number) -> Number:
    if isinstance(x, Linear) and isinstance(y, Linear):
        return x - y
    return float_of(exact(x) - exact(y))


def _product(x: Number, y: Number) -> Number:
    if isinstance(x, Linear) and isinstance(y, Linear):
        return product(x, y)
    return float_of(exact(x) * exact(y))


def float_of(number: object) -> float:
    """An exact result as a double, where it is one; the dtype of the tensor is checked after."""
    return rounded(number, "float64")  # type: ignore[arg-type]  # Fraction or float


def _smaller(x: Number, y: Number, larger: bool = False) -> tuple[Case, ...]:
    chosen = compare("ge" if larger else "le", x, y)
    return ((chosen, x), (negation(chosen), y))


def _extreme(call: Call, larger: bool) -> Function:
    at = _pairwise(call, call.op.args[0], call.op.args[1], partial(_smaller, larger=larger))
    return call.gives(lambda index: as_declared(call, at(index)))


def _negative(call: Call) -> Function:
    source = call.tensor(0)
    if source.boolean:
        raise UnprovenError("neg of booleans")
    return call.gives(lambda index: live([(guard, -number) for guard, number in source.cases(index)]))


def _absolute(call: Call) -> Function:
    source = call.tensor(0)

    def at(index: Index) -> Element:
        zero = linear(0)
        return live(
            [
                (both(guard, sign), number if positive else -number)
                for guard, number in source.cases(index)
                for positive, sign in ((True, compare("ge", number, zero)), (False, compare("lt", number, zero)))
            ]
        )

    return call.gives(at)


def _comparison(call: Call, relation: str) -> Function:
    left, right = call.op.args[:2]
    first = call.function(left)
    beside = first.dtype if first is not None and call.function(right) is None else None
    a, b = operand_at(call, left), operand_at(call, right, beside)

    def at(index: Index) -> Element:
        pairs = combinations(a(index), b(index))
        return either(*(both(g, h, compare(relation, x, y)) for (g, x), (h, y) in pairs))

    return call.gives(at)


def _logical(call: Call, combine: Callable[[Formula, Formula], Formula], bitwise: bool) -> Function:
    functions = [call.function(arg) for arg in call.op.args[:2]]
    if bitwise and not all(
        f.boolean if f is not None else isinstance(a, bool) for f, a in zip(functions, call.op.args[:2], strict=True)
    ):
        raise UnprovenError(f"{call.op.target} of integers")
    sides = [_truth(call, function, arg) for function, arg in zip(functions, call.op.args[:2], strict=True)]
    return call.gives(lambda index: combine(sides[0](index), sides[1](index)))


def _truth(call: Call, function: Function | None, arg: Arg) -> Callable[[Index], Formula]:
    if function is None:
        value = bool(arg)
        return lambda index: value
    place = stretched(function, call.shape)
    return lambda index: function.truth(place(index))


def _exclusive(a: Formula, b: Formula) -> Formula:
    return either(both(a, negation(b)), both(negation(a), b))


def _not(call: Call, bitwise: bool) -> Function:
    source = call.tensor(0)
    if bitwise and not source.boolean:
        raise UnprovenError("bitwise_not of integers")
    return call.gives(lambda index: negation(source.truth(index)))


def _choice(call: Call, condition: Arg, left: Arg, right: Arg) -> Function:
    """`left` where the condition holds, else `right`; each broadcast to the result."""
    test = _truth(call, call.function(condition), condition)
    a, b = operand_at(call, left), operand_at(call, right)

    def at(index: Index) -> Element:
        chosen = test(index)
        other = negation(chosen)
        picked = [(both(chosen, g), n) for g, n in a(index)] + [(both(other, g), n) for g, n in b(index)]
        return as_declared(call, live(picked))

    return call.gives(at)


def _where(call: Call) -> Function:
    return _choice(call, *call.op.args[:3])


def _masked_fill(call: Call) -> Function:
    source, condition, value = call.op.args[:3]
    return _choice(call, condition, value, source)


def _triangle(call: Call, lower: bool) -> Function:
    source, diagonal = call.tensor(0), call.size(call.arg(1, "diagonal", 0))

    def at(index: Index) -> Element:
        above = index[-1] - index[-2]
        kept = at_most(above, diagonal) if lower else at_most(diagonal, above)
        zero = ((negation(kept), converted(0, call.out.dtype)),) if not source.boolean else ()
        return as_declared(call, live([*((both(kept, guard), number) for guard, number in source.cases(index)), *zero]))

    return call.gives(at)


def _cast(call: Call) -> Function:
    source = call.tensor(0)
    return call.gives(lambda index: as_declared(call, source.cases(index)))


def _and(a: Formula, b: Formula) -> Formula:
    return both(a, b)


def _or(a: Formula, b: Formula) -> Formula:
    return either(a, b)


_FILLED: dict[str, Rule] = {
    "aten.full.default": partial(_filled, position=1),
    "aten.full_like.default": partial(_filled, position=1),
    "aten.new_full.default": partial(_filled, position=2),
    "aten.fill.Scalar": partial(_filled, position=1),
    "aten.scalar_tensor.default": _filled,
    **{f"aten.{name}.default": partial(_filled, number=1) for name in ("ones", "ones_like", "new_ones")},
    **{f"aten.{name}.default": partial(_filled, number=0) for name in ("zeros", "zeros_like", "new_zeros")},
}


def named(names: str, rule: Rule) -> dict[str, Rule]:
    """The same rule for several operators; `default` is the overload of those that name none."""
    return {f"aten.{name}" if "." in name else f"aten.{name}.default": rule for name in names.split()}


ELEMENTWISE: Mapping[str, Rule] = {
    **_FILLED,
    "aten.arange.default": _arange,
    "aten.arange.start": partial(_arange, start=0),
    "aten.arange.start_step": partial(_arange, start=0, step=2),
    **named("add.Tensor add.Scalar", partial(_arithmetic, combine=_sum)),
    **named("sub.Tensor sub.Scalar", partial(_arithmetic, combine=_difference)),
    **named("rsub.Tensor rsub.Scalar", partial(_arithmetic, combine=_difference, swapped=True)),
    **named("mul.Tensor mul.Scalar", partial(_arithmetic, combine=_product)),
    "aten.neg.default": _negative,
    "aten.abs.default": _absolute,
    "aten.minimum.default": partial(_extreme, larger=False),
    "aten.maximum.default": partial(_extreme, larger=True),
    **{
        f"aten.{relation}.{overload}": partial(_comparison, relation=relation)
        for relation in ("eq", "ne", "lt", "le", "gt", "ge")
        for overload in ("Tensor", "Scalar")
    },
    **named("bitwise_and.Tensor bitwise_and.Scalar", partial(_logical, combine=_and, bitwise=True)),
    **named("bitwise_or.Tensor bitwise_or.Scalar", partial(_logical, combine=_or, bitwise=True)),
    **named("bitwise_xor.Tensor bitwise_xor.Scalar", partial(_logical, combine=_exclusive, bitwise=True)),
    **named("logical_and", partial(_logical, combine=_and, bitwise=False)),
    **named("logical_or", partial(_logical, combine=_or, bitwise=False)),
    **named("logical_xor", partial(_logical, combine=_exclusive, bitwise=False)),
    **named("bitwise_not", partial(_not, bitwise=True)),
    **named("logical_not", partial(_not, bitwise=False)),
    **named("where.self where.Scalar where.ScalarSelf where.ScalarOther", _where),
    **named("masked_fill.Scalar masked_fill.Tensor", _masked_fill),
    "aten.tril.default": partial(_triangle, lower=True),
    "aten.triu.default": partial(_triangle, lower=False),
    **named("_to_copy", _cast),
    "prims.convert_element_type.default": _cast,
}
