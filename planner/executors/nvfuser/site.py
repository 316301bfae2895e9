"""Where one op is lowered: its operands in the type it computes in, the type of its result, and nvFuser's own ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fuseplan.executors.nvfuser.dtypes import NVFUSER_NAME, as_number, compute_type, promoted, rounded
from fuseplan.executors.nvfuser.sizes import Sizes
from fuseplan.graph import Dim, TensorType, Type

View = Any
"""nvfuser_direct.TensorView: a tensor of the fusion."""


@dataclass(frozen=True, eq=False, slots=True)
class Tensor:
    """A tensor of the fusion. Its view may be wider than its type says, as half precision computes in float32.

    `data` names the value whose contents it still shows, if nothing but views and copies lie between the two.
    """

    view: View
    type: TensorType
    data: str

    @property
    def rank(self) -> int:
        """How many dimensions it has."""
        return len(self.type.shape)


def is_expanded(view: View, dims: Sequence[int] | None = None) -> bool:
    """Whether the view repeats one element along any of `dims` (or any dimension at all)."""
    domains = view.get_logical_domain()
    return any(" ex " in str(domains[d]) for d in (range(len(domains)) if dims is None else dims))


@dataclass(frozen=True, eq=False, slots=True)
class Scalar:
    """A number that is known at run time only."""

    value: Any  # nvfuser_direct.Val
    kind: str  # "int", "float" or "bool"


Number = bool | int | float | Scalar
Operand = Tensor | Number
_PYTHON_OF_KIND: dict[str, bool | int | float] = {"int": 1, "float": 1.0, "bool": True}


class OpContext:
    """One op of a region while it is lowered."""

    def __init__(self, nvfuser: Any, sizes: Sizes, outputs: tuple[Type, ...], *, cautious: bool = False) -> None:
        self.cautious = cautious
        self.nvfuser = nvfuser
        self.ops = nvfuser.ops
        self.extent = sizes
        self.outputs = outputs

    @property
    def out(self) -> TensorType:
        """The type of the op's first tensor."""
        return next(kind for kind in self.outputs if isinstance(kind, TensorType))

    def dtype(self, name: str) -> Any:
        """nvFuser's DataType for one of torch's."""
        return getattr(self.nvfuser.DataType, NVFUSER_NAME[name])

    def cast(self, view: View, dtype: str) -> View:
        """The view as `dtype`; itself if it is that already."""
        return view if view.dtype() == self.dtype(dtype) else self.ops.cast(view, self.dtype(dtype))

    def val(self, x: Operand, dtype: str | None = None) -> Any:
        """The operand, ready to compute with: in the type in which the result (or `dtype`) is computed."""
        dtype = compute_type(dtype or self.out.dtype)
        if isinstance(x, Tensor):
            return self.cast(x.view, dtype)
        if isinstance(x, Scalar):
            return self.ops.cast(x.value, self.dtype(dtype))
        return as_number(x, dtype)

    def own(self, x: Tensor) -> View:
        """The tensor in the type in which its own values are computed."""
        return self.cast(x.view, compute_type(x.type.dtype))

    def exact(self, x: Operand, dtype: str) -> Any:
        """The operand as ATen rounds it to `dtype` before it compares."""
        if isinstance(x, (bool, int, float)):
            return rounded(x, dtype)
        if isinstance(x, Tensor) and x.type.dtype != dtype:
            return self.cast(self.cast(x.view, dtype), compute_type(dtype))
        return self.val(x, dtype)

    def common(self, *operands: Operand) -> str:
        """The type that ATen promotes these operands to."""
        return promoted(*(self._kind(x) for x in operands))

    def _kind(self, x: Operand) -> tuple[str, int] | bool | int | float:
        if isinstance(x, Tensor):
            return (x.type.dtype, x.rank)
        return _PYTHON_OF_KIND[x.kind] if isinstance(x, Scalar) else x

    def const(self, value: Number, dtype: str | None = None) -> Any:
        """The number as a typed scalar: for ops that would otherwise take a Python float for a double."""
        dtype = compute_type(dtype or self.out.dtype)
        if isinstance(value, Scalar):
            return self.ops.cast(value.value, self.dtype(dtype))
        return self.nvfuser.define_scalar(as_number(value, dtype), dtype=self.dtype(dtype))

    def full(self, value: Number, dtype: str | None = None, shape: Sequence[Dim] | None = None) -> View:
        """A tensor of one value; of the result's type and shape unless told otherwise."""
        dtype = compute_type(dtype or self.out.dtype)
        extents = [self.extent(d) for d in (self.out.shape if shape is None else shape)]
        return self.ops.full(extents, self.const(value, dtype), self.dtype(dtype))

    @property
    def wide(self) -> str:
        """The type in which the result is computed."""
        return compute_type(self.out.dtype)

    def same(self, x: Tensor) -> Any:
        """What `x` holds, as the result: nothing computed, so that an output of it is known to need a copy."""
        return self.moved(x, x.view) if x.type.dtype == self.out.dtype else self.val(x)

    def var_mean(self, x: Tensor, value: View, dims: list[int], correction: int, keepdim: bool) -> tuple[View, View]:
        """Variance and mean of `value`, which has the shape of `x`, along `dims`."""
        if not self.cautious and not is_expanded(value, dims):
            return self.ops.var_mean(value, dims, correction, keepdim)  # type: ignore[no-any-return]
        # nvFuser 0.2.36 counts an expanded dimension wrong in its variance (not in its sum), and its segmenter fails on
        # some variances of half precision
        count = self.count(x, dims)
        mean = self.ops.div(self.ops.sum(value, dims, True), count)
        apart = self.ops.sub(value, mean)
        rest = count - correction if isinstance(count, float) else self.ops.sub(count, float(correction))
        variance = self.ops.div(self.ops.sum(self.ops.mul(apart, apart), dims, keepdim), rest)
        return variance, mean if keepdim else self.ops.squeeze(mean, dims)

    def moved(self, x: Tensor, view: View) -> Tensor:
        """What a view or a copy gives: the contents of `x` under another shape."""
        return Tensor(view, x.type, x.data)

    def dims(self, x: Tensor, dim: int | Sequence[int] | None) -> list[int]:
        """Dimensions as non-negative numbers, in order; none given means all of them."""
        if dim is None or (not isinstance(dim, int) and len(dim) == 0):
            return list(range(x.rank))
        given = [dim] if isinstance(dim, int) else list(dim)
        return sorted(d % x.rank for d in given) if x.rank else []

    def count(self, x: Tensor, dims: Sequence[int]) -> Any:
        """How many elements lie along `dims`, as a number to divide by."""
        static, dynamic = 1, None
        for dim in dims:
            size = self.extent(x.type.shape[dim])
            if isinstance(size, int):
                static *= size
            else:
                dynamic = size if dynamic is None else self.ops.mul(dynamic, size)
        if dynamic is None:
            return float(static)
        return self.ops.cast(self.ops.mul(dynamic, static), self.dtype("float64"))

    def part(self, x: Tensor, view: View, dim: int, start: Any, end: Any, *, one: bool = False) -> View:
        """The elements of `view`, which has the shape of `x`, from `start` to `end` along `dim`; `one`: just one."""
        starts: list[Any] = [0] * x.rank
        ends = [self.extent(d) for d in x.type.shape]
        starts[dim], ends[dim] = start, end
        view = self.ops.slice(view, starts, ends)
        if not one and not (isinstance(start, int) and isinstance(end, int) and end - start == 1):
            return view
        # nvFuser 0.2.36 reads the first element for a slice of one, unless the dimension goes first and comes again later
        alone = self.ops.segment_set(self.copied(self.ops.squeeze(view, [dim])))
        return self.ops.broadcast(alone, [i == dim for i in range(x.rank)])

    def element(self, x: Tensor, dim: int, start: Any, end: Any) -> View:
        """The one element along `dim` that lies at `start`, without that dimension."""
        starts: list[Any] = [0] * x.rank
        ends = [self.extent(d) for d in x.type.shape]
        starts[dim], ends[dim] = start, end
        return self.ops.squeeze(self.ops.slice(x.view, starts, ends), [dim])

    def copied(self, view: View) -> View:
        """The view's contents as nvFuser cannot but compute them: it takes a mere copy for another view of the same."""
        dtype = next(name for name in NVFUSER_NAME if self.dtype(name) == view.dtype())
        if dtype == "bool":
            return self.ops.logical_or(view, self.full(False, dtype, ()))
        wide = compute_type(dtype)
        return self.cast(self.ops.mul(self.cast(view, wide), self.full(1, wide, ())), dtype)

    def lift(self, view: View, rank: int, dim: int) -> View:
        """A one-dimensional view laid along `dim` of `rank` dimensions, to broadcast over the others."""
        return self.ops.broadcast(view, [i != dim for i in range(rank)])

    def index(self, size: Dim, rank: int = 1, dim: int = 0) -> View:
        """0, 1, 2 … along `dim` of `rank` dimensions."""
        counted = self.ops.iota(self.extent(size), 0, 1, self.dtype("int64"))
        return self.lift(counted, rank, dim) if rank > 1 else counted
