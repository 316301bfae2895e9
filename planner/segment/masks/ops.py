"""What each operator makes of functions: the rules of views, of joining and picking, along a dimension, and the whole table.

A rule may raise UnprovenError; an operator without a rule gives a tensor of which nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import product as combinations

from fuseplan.graph import Arg
from fuseplan.segment.masks.call import Call
from fuseplan.segment.masks.elementwise import ELEMENTWISE, Rule, as_declared, named, operand_at
from fuseplan.segment.masks.formulas import Formula, at_most, both, either, implies, less, negation, satisfiable
from fuseplan.segment.masks.functions import (
    Case,
    Element,
    Function,
    Index,
    Number,
    constant,
    converted,
    integer,
    live,
    stretched,
)
from fuseplan.segment.masks.linear import Linear, UnprovenError, linear

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
    operand = operand_at(call, call.op.args[1])
    return call.gives(lambda index: as_declared(call, operand(index)))


# joining and picking


def _pieces(call: Call, pieces: list[tuple[Formula, Element]]) -> Element:
    """One element that is each of some others under its guard."""
    if call.out.dtype == "bool":
        return either(*(both(guard, element) for guard, element in pieces if not isinstance(element, tuple)))
    return live([(both(guard, g), n) for guard, e in pieces if isinstance(e, tuple) for g, n in e])


def _at(call: Call, source: Function, index: Index) -> Element:
    return source.at(index) if source.dtype == call.out.dtype else as_declared(call, source.cases(index))


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
        return as_declared(call, live([*cases, (negation(inside), outside)]))

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


_VIEWS = "view _unsafe_view reshape unsqueeze squeeze.dim squeeze.dims"
_COPIES = "alias detach clone contiguous lift_fresh lift_fresh_copy"

RULES: Mapping[str, Rule] = {
    **ELEMENTWISE,
    **named(_COPIES, _same),
    **named(_VIEWS, _reshape),
    "aten.expand.default": _expand,
    "aten.permute.default": _permute,
    **named("transpose.int t", _transpose),
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
    "aten.flip.default": _flip,
    "aten.repeat.default": _repeat,
    **named("copy fill.Tensor", _copied),
    "aten.cat.default": _cat,
    "aten.constant_pad_nd.default": _pad,
    "aten.slice_scatter.default": partial(_scatter, whole=True),
    "aten.select_scatter.default": partial(_scatter, whole=False),
    "aten.index.Tensor": _index,
    "aten.cumsum.default": _running_sum,
    **named("all all.dim any any.dim", _quantified),
}
"""What is known of each operator, by its name in a Graph."""
