"""One op as the rules see it: its arguments, read as functions, sizes and numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count

from fuseplan.graph import Arg, Op, Ref, ScalarType, TensorType, Type
from fuseplan.segment.masks.formulas import Formula, at_most, both, implies
from fuseplan.segment.masks.functions import INTEGERS, Element, Function, Index, Number, integer, tensor
from fuseplan.segment.masks.linear import Linear, UnprovenError, linear, size, variable

_SAFE_FACTOR = 2**12
"""Sizes are below 2**48, so that a few terms with no larger factors stay within int64."""


@dataclass(frozen=True)
class Call:
    """One op, with the functions of the tensors that it reads and what holds of all sizes."""

    op: Op
    out: TensorType
    known: Mapping[str, Function]
    types: Mapping[str, Type]
    sizes: Formula
    fresh: count[int]

    def arg(self, position: int, name: str, default: Arg = None) -> Arg:
        """An argument by position or name."""
        if position < len(self.op.args):
            return self.op.args[position]
        return dict(self.op.kwargs).get(name, default)

    def tensor(self, position: int, name: str = "self") -> Function:
        """A tensor argument."""
        found = self.function(self.arg(position, name))
        if found is None:
            raise UnprovenError(f"argument {position} of {self.op.target} is no tensor")
        return found

    def function(self, arg: Arg) -> Function | None:
        """The function of an argument that is a tensor."""
        return self.known.get(arg.name) if isinstance(arg, Ref) else None

    def size(self, arg: Arg) -> Linear:
        """An integer argument: a number, or a size."""
        if type(arg) is int:
            return linear(arg)
        kind = self.types.get(arg.name) if isinstance(arg, Ref) else None
        if isinstance(kind, ScalarType) and kind.kind == "int":
            return size(kind.expr)
        raise UnprovenError(f"an argument of {self.op.target} is no size")

    def number(self, arg: Arg) -> Number | bool:
        """A scalar argument."""
        if isinstance(arg, bool | float):
            return arg
        return self.size(arg)

    def dim(self, arg: Arg, rank: int) -> int:
        """A dimension, counted from the front."""
        if type(arg) is not int or not -rank <= arg < rank:
            raise UnprovenError(f"the dimension of {self.op.target} is no number in range")
        return arg % rank

    @property
    def shape(self) -> Index:
        """The shape of what it gives."""
        return tuple(size(dim) for dim in self.out.shape)

    def index_into(self, function: Function) -> tuple[Index, Formula]:
        """An index of new variables, and that it lies inside the tensor, for sizes in range."""
        index = tuple(variable(f"%{next(self.fresh)}") for _ in function.shape)
        return index, both(self.sizes, function.inside(index))

    @property
    def anywhere(self) -> tuple[Index, Formula]:
        """An index of new variables, and that it lies inside the result."""
        return self.index_into(Function(self.shape, self.out.dtype, lambda index: False))

    def gives(self, at: Callable[[Index], Element]) -> Function:
        """The result; integers narrower than int64 are shown not to wrap."""
        made = tensor(self.out, at)
        if made.dtype in INTEGERS:
            index, inside = self.index_into(made)
            for guard, number in made.cases(index):
                if not _fits(integer(number), made.dtype, both(inside, guard)):
                    raise UnprovenError(f"integers of {made.dtype} may wrap")
        return made


def _fits(form: Linear, dtype: str, where: Formula) -> bool:
    if dtype == "int64":
        return all(abs(factor) <= _SAFE_FACTOR for _, factor in form.terms)
    low, high = INTEGERS[dtype]
    return implies(where, both(at_most(low, form), at_most(form, high)))
