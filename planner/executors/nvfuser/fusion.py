"""From a region to nvFuser's executor cache: inputs, each op by its lowering, outputs as the region declares them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from fuseplan.capture.fx.to_fx import constant_tensor
from fuseplan.errors import ExecutorError
from fuseplan.executors.layout import concrete, dense_order
from fuseplan.executors.nvfuser.dtypes import compute_type
from fuseplan.executors.nvfuser.site import OpContext, Scalar, Tensor, View, is_expanded
from fuseplan.executors.nvfuser.sizes import Sizes
from fuseplan.executors.nvfuser.table import LOWERINGS, computes_sizes
from fuseplan.executors.nvfuser.writes import COPY
from fuseplan.graph import Arg, Constant, Graph, Op, Ref, ScalarType, TensorType, Type, Value

_KIND = {"int": "int64", "float": "float64", "bool": "bool"}


@dataclass(frozen=True, eq=False, slots=True)
class RegionFusion:
    """A defined fusion: what runs it, the tensors it takes after the region's inputs, and its outputs by name."""

    cache: Any  # nvfuser_direct.FusionExecutorCache
    extra_inputs: tuple[torch.Tensor, ...]
    outputs: tuple[str, ...]


def define(region: Graph, *, cautious: bool = False) -> RegionFusion:
    """Define the fusion of a region whose ops are all in the lowering table. Needs no GPU.

    `cautious` spells out what nvFuser would rather find out by itself, for the regions over which it stumbles: each
    output is a copy, inputs in an unusual order are put in order first, and variances are sums.
    """
    import nvfuser_direct

    with _definition(nvfuser_direct) as fusion:
        builder = _Builder(nvfuser_direct, fusion, region, cautious=cautious)
        extra = builder.build()
        return RegionFusion(nvfuser_direct.FusionExecutorCache(fusion), extra, tuple(builder.given))


@contextmanager
def _definition(nvfuser: Any) -> Iterator[Any]:
    """A new fusion that takes what is defined meanwhile. nvFuser's own context manager prints what it meets."""
    fusion = nvfuser.Fusion()
    guard = [nvfuser.FusionGuard(fusion)]
    try:
        yield fusion
    finally:
        guard.clear()  # here and not when some traceback lets go of it


class _Builder:
    def __init__(self, nvfuser: Any, fusion: Any, region: Graph, *, cautious: bool = False) -> None:
        self.cautious = cautious
        self.nvfuser = nvfuser
        self.fusion = fusion
        self.region = region
        self.sizes = Sizes(nvfuser.ops)
        self.values: dict[str, Tensor | Scalar | None] = {}
        self.given: list[str] = []
        self.shown: set[str] = {value.name for value in region.inputs}

    def build(self) -> tuple[torch.Tensor, ...]:
        for value in self.region.inputs:
            self.values[value.name] = self._input(value)
        extra = [c for c in self.region.constants if not self._number(c)]
        for constant in extra:
            self.values[constant.value.name] = self._input(constant.value)
        self._learn_sizes()
        for op in self.region.ops:
            if computes_sizes(op):
                self._compute_sizes(op)
            else:
                self._lower(op)
        for arg in self.region.outputs:
            if isinstance(arg, Ref):
                self._output(arg.name)
        return tuple(constant_tensor(c) for c in extra)

    def _input(self, value: Value) -> Tensor | Scalar | None:
        kind = value.type
        if isinstance(kind, TensorType):
            view = self._define(kind)
            self.fusion.add_input(view)
            order = dense_order(*concrete(self.region, kind))
            if self.cautious and order != list(range(len(kind.shape))):
                view = self.nvfuser.ops.segment_set(self._site(()).copied(view))
            return Tensor(view, kind, value.name)
        if isinstance(kind, ScalarType):
            scalar = self.nvfuser.define_scalar(None, dtype=self._site(()).dtype(_KIND[kind.kind]))
            self.fusion.add_input(scalar)
            return Scalar(scalar, kind.kind)
        return None

    def _define(self, kind: TensorType) -> View:
        contiguity, order = self.nvfuser.compute_tensor_descriptor(*concrete(self.region, kind))
        return self.nvfuser.define_tensor(
            shape=[d if isinstance(d, int) else -1 for d in kind.shape],
            contiguity=contiguity,
            dtype=self._site(()).dtype(kind.dtype),
            is_cpu=kind.device == "cpu",
            stride_order=order,
        )

    def _number(self, constant: Constant) -> bool:
        """Define a constant without dimensions as a number, which costs no input."""
        kind = constant.value.type
        if not isinstance(kind, TensorType) or kind.shape:
            return False
        view = self._site((kind,)).full(constant_tensor(constant, "cpu").item())
        self.values[constant.value.name] = Tensor(view, kind, constant.value.name)
        return True

    def _learn_sizes(self) -> None:
        for value in self.region.inputs:
            known = self.values[value.name]
            if isinstance(value.type, ScalarType) and isinstance(known, Scalar):
                self.sizes.learn(value.type.expr, known.value)
        for value in self.region.inputs:
            known = self.values[value.name]
            for i, dim in enumerate(value.type.shape if isinstance(value.type, TensorType) else ()):
                if isinstance(dim, str) and isinstance(known, Tensor):
                    self.sizes.learn(dim, self.nvfuser.ops.size(known.view, i))

    def _site(self, outputs: tuple[Type, ...]) -> OpContext:
        return OpContext(self.nvfuser, self.sizes, outputs, cautious=self.cautious)

    def _compute_sizes(self, op: Op) -> None:
        for value in op.outputs:
            assert isinstance(value.type, ScalarType)
            self.values[value.name] = Scalar(self.sizes(value.type.expr), value.type.kind)

    def _lower(self, op: Op) -> None:
        site = self._site(tuple(value.type for value in op.outputs))
        args = [self._resolved(a) for a in op.args]
        results = LOWERINGS[op.target](site, *args, **{k: self._resolved(v) for k, v in op.kwargs})
        results = results if isinstance(results, tuple) else (results,)
        for value, result in zip(op.outputs, results, strict=False):
            self.values[value.name] = self._result(site, op, value, result)
        if op.target == COPY:
            self._write(op)

    def _resolved(self, arg: Arg) -> Any:
        if isinstance(arg, Ref):
            return self.values[arg.name]
        return tuple(self._resolved(a) for a in arg) if isinstance(arg, tuple) else arg

    def _result(self, site: OpContext, op: Op, value: Value, result: Any) -> Tensor | None:
        kind = value.type
        if result is None or not isinstance(kind, TensorType):
            return None
        view, data = (result.view, result.data) if isinstance(result, Tensor) else (result, value.name)
        if view.dtype() != site.dtype(kind.dtype) and view.dtype() != site.dtype(compute_type(kind.dtype)):
            view, data = site.cast(view, compute_type(kind.dtype)), value.name
        if view.ndim != len(kind.shape):
            raise ExecutorError(f"nvfuser gives {view.ndim} dimensions for {op.target}, not {len(kind.shape)}")
        return Tensor(view, kind, data)

    def _write(self, op: Op) -> None:
        target, new = self._resolved(op.args[0]), self.values[op.outputs[0].name]
        assert isinstance(new, Tensor)
        site = self._site((target.type,))
        # a view of its own: the new contents may be an output besides, in other memory
        self.fusion.add_output(site.ops.set(site.cast(new.view, target.type.dtype)), target.view)

    def _output(self, name: str) -> None:
        if name in self.given or name in {value.name for value in self.region.inputs}:
            return
        tensor = self.values[name]
        if not isinstance(tensor, Tensor):
            raise ExecutorError(f"nvfuser gives no value for the output {name}")
        site = self._site((tensor.type,))
        view = self._fresh(site, tensor, copied=self.cautious or (tensor.data != name and tensor.data in self.shown))
        self.shown |= {name, tensor.data}
        self.fusion.add_output(self._laid_out(view, tensor.type))
        self.given.append(name)

    def _fresh(self, site: OpContext, tensor: Tensor, copied: bool) -> View:
        """The tensor in memory of its own. A fusion would give a copy as a view, and an expansion with stride 0."""
        view, dtype = tensor.view, tensor.type.dtype
        if not copied and not is_expanded(view):
            return site.cast(view, dtype)
        if dtype == "bool":
            return site.ops.logical_or(view, site.full(False))
        return site.cast(site.ops.mul(site.own(tensor), site.full(1)), dtype)

    def _laid_out(self, view: View, kind: TensorType) -> View:
        """The view in the declared order of dimensions, said even where it is the usual one: left unsaid, nvFuser
        takes the order of some input.
        """
        order = dense_order(*concrete(self.region, kind))
        if order is None:
            raise ExecutorError("nvfuser gives no output with gaps or overlaps in memory")
        if len(order) < 2:
            return view
        return self.nvfuser.ops.stride_order(view, [len(order) - 1 - order.index(d) for d in range(len(order))])
