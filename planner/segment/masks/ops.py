"""What each operator makes of functions: one small rule per operator, and the table that names them.

A rule may raise UnprovenError; an operator without a rule gives a tensor of which nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import product as combinations

from fuseplan.graph import Arg
from fuseplan.segment.masks.call import Call
from fuseplan.segment.masks.formulas import Formula, at_most, both, either, implies, less, negation, satisfiable
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
    integer,
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
            return call.gives(lambda index: _as(call, ((True, given),)))
        return constant(call.out, given)
    return constant(call.out, number)


# elementwise


def _as(call: Call, cases: tuple[Case, ...]) -> Element:
    """Cases as an element of the result's dtype."""
    if call.out.dtype == "bool":
        return either(*(both(guard, compare("ne", number, linear(0))) for guard, number in cases))
    return live([(guard, converted(number, call.out.dtype)) for guard, number in cases])


def _operand(call: Call, arg: Arg, beside: str | None = None) -> Callable[[Index], tuple[Case, ...]]:
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
    a, b = _operand(call, left), _operand(call, right)

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
    return call.gives(lambda index: _as(call, at(index)))


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
    return call.gives(lambda index: _as(call, at(index)))


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
    a, b = _operand(call, left), _operand(call, right, beside)

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
    a, b = _operand(call, left), _operand(call, right)

    def at(index: Index) -> Element:
        chosen = test(index)
        other = negation(chosen)
        picked = [(both(chosen, g), n) for g, n in a(index)] + [(both(other, g), n) for g, n in b(index)]
        return _as(call, live(picked))

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
        return _as(call, live([*((both(kept, guard), number) for guard, number in source.cases(index)), *zero]))

    return call.gives(at)


def _cast(call: Call) -> Function:
    source = call.tensor(0)
    return call.gives(lambda index: _as(call, source.cases(index)))


# views and copies


def _moved(call: Call, place: Callable[[Index], Index]) -> Function:
    """The same elements elsewhere: `place` says where the result's element at an index comes from."""
    source = call.tensor(0)
    return call.gives(lambda index: source.at(place(index)))


def _same(call: Call) -> Function:
    return _moved(call, lambda index: index)


def _expand(call: Call) -> Function:
    return _moved(call, stretched(call.tensor(0), call.shape))


def _reshape(call: Call) -> Function:
    """Only dimensions of size one may come and go."""
    old, new = call.tensor(0).shape, call.shape
    kept = [i for i, dim in enumerate(old) if dim.number != 1]
    where = [i for i, dim in enumerate(new) if dim.number != 1]
    if [old[i] for i in kept] != [new[i] for i in where]:
        raise UnprovenError("a view regroups elements")
    source_of = dict(zip(kept, where, strict=True))
    return _moved(
        call, lambda index: tuple(index[source_of[i]] if i in source_of else linear(0) for i in range(len(old)))
    )


def _permute(call: Call) -> Function:
    rank = len(call.shape)
    order = call.arg(1, "dims")
    if not isinstance(order, tuple):
        raise UnprovenError("permute without an order")
    position = {call.dim(dim, rank): i for i, dim in enumerate(order)}
    return _moved(call, lambda index: tuple(index[position[i]] for i in range(rank)))


def _transpose(call: Call) -> Function:
    rank = len(call.shape)
    first, second = (call.dim(arg, rank) for arg in call.op.args[1:3]) if len(call.op.args) > 1 else (0, rank - 1)
    order = list(range(rank))
    order[first], order[second] = order[second], order[first]
    return _moved(call, lambda index: tuple(index[i] for i in order))


def _start(call: Call, source: Function, dim: int, arg: Arg) -> Linear:
    """The first position of a slice or selection, counted from the front and inside the tensor."""
    length = source.shape[dim]
    start = linear(0) if arg is None else call.size(arg)
    if start.number is not None and start.number < 0:
        start = start + length
    if not implies(call.sizes, both(at_most(0, start), at_most(start, length))):
        raise UnprovenError("a slice may begin outside its tensor")
    return start


def _slice(call: Call) -> Function:
    source = call.tensor(0)
    dim = call.dim(call.arg(1, "dim", 0), len(source.shape))
    start, step = _start(call, source, dim, call.arg(2, "start")), call.arg(4, "step", 1)
    if type(step) is not int:
        raise UnprovenError("a slice has a step that is no number")
    return _moved(call, lambda index: (*index[:dim], index[dim] * step + start, *index[dim + 1 :]))


def _select(call: Call) -> Function:
    source = call.tensor(0)
    dim = call.dim(call.arg(1, "dim"), len(source.shape))
    position = _start(call, source, dim, call.arg(2, "index"))
    return _moved(call, lambda index: (*index[:dim], position, *index[dim:]))


def _flip(call: Call) -> Function:
    shape, dims = call.shape, call.arg(1, "dims")
    if not isinstance(dims, tuple):
        raise UnprovenError("flip without dimensions")
    turned = {call.dim(dim, len(shape)) for dim in dims}
    return _moved(call, lambda index: tuple(shape[i] - 1 - x if i in turned else x for i, x in enumerate(index)))


def _repeat(call: Call) -> Function:
    """Only along dimensions of size one, or once."""
    source, shape = call.tensor(0), call.shape
    skipped = len(shape) - len(source.shape)
    ones = [dim.number == 1 for dim in source.shape]
    if any(not one and dim != to for one, dim, to in zip(ones, source.shape, shape[skipped:], strict=True)):
        raise UnprovenError("a tensor is repeated")
    return _expand(call)


def _copied(call: Call) -> Function:
    """`copy(self, src)` and `fill(self, value)`: the elements of the second, broadcast, as the dtype of the first."""
    operand = _operand(call, call.op.args[1])
    return call.gives(lambda index: _as(call, operand(index)))


# joining and picking


def _pieces(call: Call, pieces: list[tuple[Formula, Element]]) -> Element:
    """One element that is each of some others under its guard."""
    if call.out.dtype == "bool":
        return either(*(both(guard, element) for guard, element in pieces if not isinstance(element, tuple)))
    return live([(both(guard, g), n) for guard, e in pieces if isinstance(e, tuple) for g, n in e])


def _at(call: Call, source: Function, index: Index) -> Element:
    return source.at(index) if source.dtype == call.out.dtype else _as(call, source.cases(index))


def _cat(call: Call) -> Function:
    listed = call.arg(0, "tensors")
    sources = [call.function(arg) for arg in listed] if isinstance(listed, tuple) else []
    dim = call.dim(call.arg(1, "dim", 0), len(call.shape))
    known = [source for source in sources if source is not None]
    if len(known) != len(sources) or any(len(source.shape) != len(call.shape) for source in known):
        raise UnprovenError("cat of tensors of different ranks")

    def at(index: Index) -> Element:
        pieces: list[tuple[Formula, Element]] = []
        begin = linear(0)
        for source in known:
            end = begin + source.shape[dim]
            place = (*index[:dim], index[dim] - begin, *index[dim + 1 :])
            pieces.append((both(at_most(begin, index[dim]), less(index[dim], end)), _at(call, source, place)))
            begin = end
        return _pieces(call, pieces)

    return call.gives(at)


def _pad(call: Call) -> Function:
    source, widths = call.tensor(0), call.arg(1, "pad")
    if not isinstance(widths, tuple):
        raise UnprovenError("padding without widths")
    value = call.number(call.arg(2, "value", 0))
    before = [linear(0)] * len(source.shape)
    for i in range(len(widths) // 2):
        before[-1 - i] = call.size(widths[2 * i])

    def at(index: Index) -> Element:
        place = tuple(i - shift for i, shift in zip(index, before, strict=True))
        inside = source.inside(place)
        outside: Number = linear(value) if isinstance(value, bool) else value
        cases = [(both(inside, guard), number) for guard, number in source.cases(place)]
        return _as(call, live([*cases, (negation(inside), outside)]))

    return call.gives(at)


def _scatter(call: Call, whole: bool) -> Function:
    """`source` written over a slice (or one position) of `self` along a dimension."""
    base, source = call.tensor(0), call.tensor(1, "src")
    rank = len(base.shape)
    dim = call.dim(call.arg(2, "dim", 0), rank)
    start = _start(call, base, dim, call.arg(3, "start" if whole else "index"))
    if whole and call.arg(5, "step", 1) != 1:
        raise UnprovenError("a write with a step")
    length = source.shape[dim] if whole else linear(1)

    def at(index: Index) -> Element:
        offset = index[dim] - start
        written = both(at_most(0, offset), less(offset, length))
        place = (*index[:dim], *([offset] if whole else []), *index[dim + 1 :])
        kept = (negation(written), _at(call, base, index))
        return _pieces(call, [(written, _at(call, source, place)), kept])

    return call.gives(at)


def _index(call: Call) -> Function:
    """Every dimension indexed by a tensor of positions that are shown to lie inside: none counts from the end."""
    source, listed = call.tensor(0), call.arg(1, "indices")
    indices = [call.function(arg) for arg in listed] if isinstance(listed, tuple) else []
    positions = [each for each in indices if each is not None and not each.boolean]
    if len(positions) != len(source.shape) or len(positions) != len(indices):
        raise UnprovenError("an index that leaves dimensions out")
    places = [stretched(position, call.shape) for position in positions]

    def chosen(index: Index) -> list[tuple[Case, ...]]:
        return [position.cases(place(index)) for position, place in zip(positions, places, strict=True)]

    index, inside = call.anywhere
    for cases, length in zip(chosen(index), source.shape, strict=True):
        for guard, number in cases:
            within = both(at_most(0, integer(number)), less(integer(number), length))
            if not implies(both(inside, guard), within):
                raise UnprovenError("an index may lie outside its tensor")

    def at(index: Index) -> Element:
        picks = [
            (both(*(guard for guard, _ in combination)), source.at(tuple(integer(n) for _, n in combination)))
            for combination in combinations(*chosen(index))
        ]
        return _pieces(call, picks)

    return call.gives(at)


# along a dimension


def _uniform(call: Call, source: Function) -> bool | None:
    """Whether all elements are true, or all are false; None if neither is shown."""
    index, inside = call.index_into(source)
    truth = source.truth(index)
    if not satisfiable(both(inside, truth)):
        return False
    return True if implies(inside, truth) else None


def _running_sum(call: Call) -> Function:
    """Of zeros, and of ones."""
    source = call.tensor(0)
    dim = call.dim(call.arg(1, "dim"), len(source.shape))
    whole = _uniform(call, source)
    if whole is False:
        return constant(call.out, 0)
    if whole and source.boolean:
        return call.gives(lambda index: ((True, converted(index[dim] + 1, call.out.dtype)),))
    raise UnprovenError("a running sum of what is neither all zeros nor all true")


def _quantified(call: Call) -> Function:
    """`all` and `any`, of what is the same everywhere, over dimensions that are not empty."""
    source = call.tensor(0)
    whole = _uniform(call, source)
    if whole is None or not implies(call.sizes, both(*(less(0, dim) for dim in source.shape))):
        raise UnprovenError(f"{call.op.target} of what differs from place to place")
    return constant(call.out, whole)


def _and(a: Formula, b: Formula) -> Formula:
    return both(a, b)


def _or(a: Formula, b: Formula) -> Formula:
    return either(a, b)


_VIEWS = "view _unsafe_view reshape unsqueeze squeeze.dim squeeze.dims"
_COPIES = "alias detach clone contiguous lift_fresh lift_fresh_copy"
_FILLED: dict[str, Rule] = {
    "aten.full.default": partial(_filled, position=1),
    "aten.full_like.default": partial(_filled, position=1),
    "aten.new_full.default": partial(_filled, position=2),
    "aten.fill.Scalar": partial(_filled, position=1),
    "aten.scalar_tensor.default": _filled,
    **{f"aten.{name}.default": partial(_filled, number=1) for name in ("ones", "ones_like", "new_ones")},
    **{f"aten.{name}.default": partial(_filled, number=0) for name in ("zeros", "zeros_like", "new_zeros")},
}


def _named(names: str, rule: Rule) -> dict[str, Rule]:
    """The same rule for several operators; `default` is the overload of those that name none."""
    return {f"aten.{name}" if "." in name else f"aten.{name}.default": rule for name in names.split()}


RULES: Mapping[str, Rule] = {
    **_FILLED,
    "aten.arange.default": _arange,
    "aten.arange.start": partial(_arange, start=0),
    "aten.arange.start_step": partial(_arange, start=0, step=2),
    **_named("add.Tensor add.Scalar", partial(_arithmetic, combine=_sum)),
    **_named("sub.Tensor sub.Scalar", partial(_arithmetic, combine=_difference)),
    **_named("rsub.Tensor rsub.Scalar", partial(_arithmetic, combine=_difference, swapped=True)),
    **_named("mul.Tensor mul.Scalar", partial(_arithmetic, combine=_product)),
    "aten.neg.default": _negative,
    "aten.abs.default": _absolute,
    "aten.minimum.default": partial(_extreme, larger=False),
    "aten.maximum.default": partial(_extreme, larger=True),
    **{
        f"aten.{relation}.{overload}": partial(_comparison, relation=relation)
        for relation in ("eq", "ne", "lt", "le", "gt", "ge")
        for overload in ("Tensor", "Scalar")
    },
    **_named("bitwise_and.Tensor bitwise_and.Scalar", partial(_logical, combine=_and, bitwise=True)),
    **_named("bitwise_or.Tensor bitwise_or.Scalar", partial(_logical, combine=_or, bitwise=True)),
    **_named("bitwise_xor.Tensor bitwise_xor.Scalar", partial(_logical, combine=_exclusive, bitwise=True)),
    **_named("logical_and", partial(_logical, combine=_and, bitwise=False)),
    **_named("logical_or", partial(_logical, combine=_or, bitwise=False)),
    **_named("logical_xor", partial(_logical, combine=_exclusive, bitwise=False)),
    **_named("bitwise_not", partial(_not, bitwise=True)),
    **_named("logical_not", partial(_not, bitwise=False)),
    **_named("where.self where.Scalar where.ScalarSelf where.ScalarOther", _where),
    **_named("masked_fill.Scalar masked_fill.Tensor", _masked_fill),
    "aten.tril.default": partial(_triangle, lower=True),
    "aten.triu.default": partial(_triangle, lower=False),
    **_named("_to_copy", _cast),
    "prims.convert_element_type.default": _cast,
    **_named(_COPIES, _same),
    **_named(_VIEWS, _reshape),
    "aten.expand.default": _expand,
    "aten.permute.default": _permute,
    **_named("transpose.int t", _transpose),
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
    "aten.flip.default": _flip,
    "aten.repeat.default": _repeat,
    **_named("copy fill.Tensor", _copied),
    "aten.cat.default": _cat,
    "aten.constant_pad_nd.default": _pad,
    "aten.slice_scatter.default": partial(_scatter, whole=True),
    "aten.select_scatter.default": partial(_scatter, whole=False),
    "aten.index.Tensor": _index,
    "aten.cumsum.default": _running_sum,
    **_named("all all.dim any any.dim", _quantified),
}
"""What is known of each operator, by its name in a Graph."""
