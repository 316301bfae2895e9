"""The inductor executor: a region compiled by TorchInductor by itself, called without anything around its code."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import torch
from torch._ops import OpOverload

from fuseplan.capture.fx.targets import find_target
from fuseplan.capture.fx.to_fx import to_fx
from fuseplan.errors import ExecutorError, GraphError, UnsupportedError
from fuseplan.executors.aten.anchors import anchor_variants
from fuseplan.executors.base import GAPS, Compiled, refuse_unsupported
from fuseplan.executors.flat import flatten
from fuseplan.executors.inductor.traits import INDUCTOR
from fuseplan.executors.layout import concrete, dense_order, shared_outputs
from fuseplan.graph import Graph, Op, Ref, ScalarType, Symbol, TensorType
from fuseplan.graph.words import counted
from fuseplan.judge.reference import draws

_MATMULS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten._int_mm", "aten._scaled_mm")
_TUNED = {"coordinate_descent_tuning": True}
_TUNED_MATMUL = {"max_autotune": True}
Condition = Callable[[Mapping[str, int]], bool]
MAX_SPECIALIZED = 4
"""Compilations of one dynamic region for sizes that Inductor tells apart; other sizes then run under ATen."""
_SUMS = ("aten.sum.dim_IntList", "aten.mean.dim")
_WEIGHT_NORM = "aten._weight_norm_interface.default"
_GIVE_STATISTICS = (
    "aten.native_layer_norm.", "aten.native_group_norm.", "aten.native_batch_norm.", "aten._native_batch_norm_legit",
    "aten._batch_norm_with_update", _WEIGHT_NORM,
)  # fmt: skip
_LOW = ("bfloat16", "float16")
_KEEPS_DIMS = (2, 12)
"""Before this torch, a sum on a GPU that keeps its dimensions may come out without (github.com/pytorch/pytorch/pull/177782)."""


class InductorExecutor:
    """Runs what Inductor lowers, decomposes or calls, in regions without writes whose outputs are no views."""

    name = INDUCTOR.name
    traits = INDUCTOR

    def version(self) -> str:
        """Inductor is part of torch; on a GPU, Triton writes its kernels."""
        triton = importlib.util.find_spec("triton") and importlib.metadata.version("triton")
        return f"{torch.__version__}, triton {triton}" if triton else str(torch.__version__)

    def version_on(self, device: str) -> str | None:
        """Where it has a compiler for such a device."""
        from fuseplan.executors.inductor import toolchain  # torch._inductor takes its time to import

        return self.version() if toolchain.missing(device) is None else None

    def available(self) -> str | None:
        """Whether Inductor finds its compiler: Triton where there is a GPU, else one for C++."""
        from fuseplan.executors.inductor import toolchain

        return toolchain.missing("cuda" if torch.cuda.is_available() else "cpu")

    def supports(self, op: Op, graph: Graph) -> str | None:
        """Refuse effects, sizes that depend on data, and what this torch does not have."""
        if op.opaque is not None:
            return op.opaque
        try:
            target = find_target(op.target)
        except GraphError as error:
            return str(error)
        return _refusal(op, graph, target)

    def refuses(self, region: Graph) -> str | None:
        """Why the region as a whole is not for Inductor, though each of its ops may be; None if it is.

        Inductor gives a view back as a dense copy, and wants every symbol as an input.
        """
        producer = region.producer
        shared = shared_outputs(region)
        for arg in region.outputs:
            if not isinstance(arg, Ref):
                continue
            op = region.ops[producer[arg.name]] if arg.name in producer else None
            if op is not None and arg.name in shared:
                return f"{arg.name} at its edge is a view ({op.target}) of what others hold too, which is for aten"
            if op is not None and op.is_view and not _is_dense(region, arg):
                return f"{arg.name} at its edge is a view ({op.target}) with gaps or overlaps, which is for aten"
            if op is None and all(arg.name != value.name for value in region.inputs):
                return f"it gives out the constant {arg.name}, which is for aten"
        held = {value.type.expr for value in region.inputs if isinstance(value.type, ScalarType)}
        free = [symbol.name for symbol in region.symbols if symbol.name not in held]
        return f"the size {free[0]} is not among its inputs" if free else None

    def variants(self, region: Graph) -> tuple[str, ...]:
        """`tuned` searches tile sizes on a GPU, and matmul templates where the region holds a matmul; `gaps` leaves the
        result of a matmul as padding it has made it.
        """
        gaps = (GAPS,) if _on_gpu(region) and "padded" in anchor_variants(region) else ()
        return ("default", "tuned", *gaps) if _on_gpu(region) or _has_matmul(region) else ("default",)

    def compile(self, region: Graph, variant: str = "default") -> Compiled:
        """The code that Inductor writes for the region."""
        if variant not in ("default", "tuned", GAPS):
            raise UnsupportedError(
                f"inductor has no variant {variant!r} for this region: {', '.join(self.variants(region))}"
            )
        refuse_unsupported(self, region)
        _refuse_machine(region)
        shape = _Outputs.of(region)
        inner = replace(region, outputs=shape.computed)
        if not shape.computed:
            return flatten(to_fx(region))  # nothing but inputs and numbers: no code to write
        call = _dynamic(inner, variant) if region.symbols else _compile(inner, variant)[0]
        return shape.around(call)

    def kept(self, call: Compiled) -> str | None:
        """Where to find again what `compile` gave, in this process or another one; None where it is not kept."""
        from fuseplan.executors.inductor import api

        return api.cache_key(getattr(call, "__wrapped__", call))

    def recall(self, region: Graph, variant: str, kept: str) -> Compiled | None:
        """What `compile` gave for the region where it was `kept`; None if it is there no more."""
        from fuseplan.executors.inductor import api

        call = api.recall(kept, _patches(region, variant))
        return None if call is None else _Outputs.of(region).around(call)


def _refusal(op: Op, graph: Graph, target: Callable[..., Any]) -> str | None:
    if op.mutates:
        return f"it writes to {', '.join(op.mutates)} in place"
    if isinstance(target, OpOverload):
        if target.namespace == "_c10d_functional":
            return "it is a collective"
        if torch.Tag.data_dependent_output in target.tags or _counts(op, graph, target):
            return "what it gives, or how much, depends on data"
        if not any(isinstance(value.type, (TensorType, ScalarType)) for value in op.outputs):
            return "it gives no value"
        if _rounds_statistics(op, graph):
            return "it would round statistics that others expect in float32"
    types = graph.types
    for name in (*op.reads, *(value.name for value in op.outputs)):
        kind = types.get(name)
        if isinstance(kind, ScalarType) and kind.kind != "int":
            return f"{name} is a {kind.kind} that is known at run time only"
    return None


def _rounds_statistics(op: Op, graph: Graph) -> bool:
    """Whether statistics that are read would come out in low precision, as tracing has them and Inductor makes them. On a
    CPU ATen makes them in float32, and its own backward takes no others.
    """
    mixed = "float32" in _dtypes(op.reads, graph) or op.target == _WEIGHT_NORM
    read = [v.name for v in op.outputs[1:] if graph.users.get(v.name) or Ref(v.name) in graph.outputs]
    return op.target.startswith(_GIVE_STATISTICS) and mixed and not _dtypes(read, graph).isdisjoint(_LOW)


def _dtypes(names: Sequence[str], graph: Graph) -> set[str]:
    kinds = (graph.types[name] for name in names)
    return {kind.dtype for kind in kinds if isinstance(kind, TensorType)}


def _counts(op: Op, graph: Graph, target: OpOverload) -> bool:
    """Whether the size of what the op gives depends on data; indexing is marked so, but only a mask makes it so."""
    if torch.Tag.dynamic_output_shape not in target.tags:
        return False
    if op.target not in ("aten.index.Tensor", "aten._unsafe_index.Tensor"):
        return True
    indices = [graph.types[name] for name in op.reads[1:]]
    return any(isinstance(kind, TensorType) and kind.dtype in ("bool", "uint8") for kind in indices)


def _is_dense(region: Graph, arg: Ref) -> bool:
    kind = region.types[arg.name]
    return not isinstance(kind, TensorType) or dense_order(*concrete(region, kind)) is not None


def _refuse_machine(region: Graph) -> None:
    from fuseplan.executors.inductor import toolchain

    reason = toolchain.missing("cuda" if _on_gpu(region) else "cpu")
    if reason is not None:
        raise ExecutorError(f"inductor cannot compile here: {reason}")


def _on_gpu(region: Graph) -> bool:
    return any(isinstance(kind, TensorType) and kind.device.startswith("cuda") for kind in region.types.values())


def _has_matmul(region: Graph) -> bool:
    return any(op.target.rsplit(".", 1)[0] in _MATMULS for op in region.ops)


def _patches(region: Graph, variant: str) -> dict[str, Any]:
    patches: dict[str, Any] = {}
    if variant == "tuned":
        patches |= _TUNED | (_TUNED_MATMUL if _has_matmul(region) else {})
    if any(draws(op) for op in region.ops):
        patches["fallback_random"] = True  # the same numbers as eager's under the same seed
    if region.symbols:
        patches["fx_graph_cache"] = False  # raises KeyError: 'kwargs' on graphs with symbols
    return patches


def _compile(region: Graph, variant: str) -> tuple[Compiled, Condition | None]:
    """The code for a region, and for which sizes it holds (None: for all)."""
    from fuseplan.executors.inductor import api

    try:
        gm = to_fx(region)
    except GraphError as error:
        raise ExecutorError(
            f"inductor cannot be given a region of {counted(len(region.ops), 'op')}: {_summary(error)}"
        ) from error
    patches = _patches(region, variant)
    try:
        return api.compile_graph(gm, patches, gaps=variant == GAPS), api.condition(gm, region.symbols)
    except Exception as error:  # a compiler fails with anything; here that becomes our error
        raise ExecutorError(
            f"inductor failed on a region of {counted(len(region.ops), 'op')}: {_summary(error)}"
        ) from error


def _summary(error: Exception) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


@dataclass(frozen=True)
class _Outputs:
    """Where each output of a region comes from, as only what is computed goes through Inductor."""

    computed: tuple[Ref, ...]
    picks: tuple[tuple[str, Any], ...]  # ("computed", i), ("input", i) or ("number", value)
    plain: bool
    shapes: Mapping[int, tuple[int, ...]]
    """Of what is computed, those whose shape has to be said again."""

    @classmethod
    def of(cls, region: Graph) -> _Outputs:
        inputs = {value.name: i for i, value in enumerate(region.inputs)}
        made = region.producer
        computed = tuple(dict.fromkeys(arg for arg in region.outputs if isinstance(arg, Ref) and arg.name in made))
        picks: list[tuple[str, Any]] = []
        for arg in region.outputs:
            if not isinstance(arg, Ref):
                picks.append(("number", arg))
            elif arg.name in inputs:
                picks.append(("input", inputs[arg.name]))
            else:
                picks.append(("computed", computed.index(arg)))
        shapes = _with_ones(region, computed) if _loses_dims(region) else {}
        return cls(computed, tuple(picks), computed == region.outputs and not shapes, shapes)

    def around(self, call: Compiled) -> Compiled:
        """`call` itself where all outputs are computed, each once; else with the others put in their places."""
        if self.plain:
            return call
        needed = sorted({i for kind, i in self.picks if kind == "input"})
        names = {"computed": "y", "input": "x"}
        result = [f"{names[kind]}{what}" if kind in names else repr(what) for kind, what in self.picks]
        # as source: lists that are built and indexed take three times as long
        lines = [f"x{i} = args[{i}]" for i in needed]
        lines.append(f"{''.join(f'y{i}, ' for i in range(len(self.computed)))}= call(args)")
        lines += [f"y{i} = y{i}.view({shape})" for i, shape in self.shapes.items()]
        lines.append(f"return [{', '.join(result)}]")
        namespace: dict[str, Any] = {"call": call, "nan": float("nan"), "inf": float("inf")}
        exec("def assembled(args):\n    " + "\n    ".join(lines), namespace)
        namespace["assembled"].__wrapped__ = call
        return namespace["assembled"]  # type: ignore[no-any-return]


def _loses_dims(region: Graph) -> bool:
    old = tuple(map(int, torch.__version__.split(".")[:2])) < _KEEPS_DIMS
    return old and _on_gpu(region) and any(op.target in _SUMS for op in region.ops)


def _with_ones(region: Graph, computed: Sequence[Ref]) -> dict[int, tuple[int, ...]]:
    """The outputs that have dimensions of one element, and their shapes, with -1 for a size that is not known.

    Of two such sizes in one shape nothing can be said; checking will find a region that loses dimensions there.
    """
    shapes: dict[int, tuple[int, ...]] = {}
    for i, ref in enumerate(computed):
        kind = region.types[ref.name]
        sizes = tuple(size if isinstance(size, int) else -1 for size in getattr(kind, "shape", ()))
        if 1 in sizes and sizes.count(-1) < 2:
            shapes[i] = sizes
    return shapes


def _dynamic(region: Graph, variant: str) -> Compiled:
    call, holds = _compile(region, variant)
    return call if holds is None else _Specialized(region, variant, call, holds).callable()


class _Specialized:
    """Code for some sizes of a dynamic region; compiles anew for sizes that it does not hold for."""

    def __init__(self, region: Graph, variant: str, call: Compiled, holds: Condition) -> None:
        self.region, self.variant = region, variant
        self.compiled: list[tuple[Compiled, Condition | None]] = [(call, holds)]
        self.chosen: dict[Any, Compiled] = {}
        positions = {v.type.expr: i for i, v in enumerate(region.inputs) if isinstance(v.type, ScalarType)}
        self.where = [positions[symbol.name] for symbol in region.symbols]

    def callable(self) -> Compiled:
        """A plain function: it is called a million times, and chooses anew a few times."""
        sizes_of, known, choose = itemgetter(*self.where), self.chosen.get, self._choose

        def call(args: list[Any]) -> Any:
            return (known(sizes_of(args)) or choose(args))(args)

        call.specialized = self  # type: ignore[attr-defined]
        return call

    def _choose(self, args: list[Any]) -> Compiled:
        sizes = {symbol.name: int(args[i]) for symbol, i in zip(self.region.symbols, self.where, strict=True)}
        held = (call for call, holds in self.compiled if holds is None or holds(sizes))
        call = self.chosen[itemgetter(*self.where)(args)] = next(held, None) or self._compile_for(sizes)
        return call

    def _compile_for(self, sizes: dict[str, int]) -> Compiled:
        if len(self.compiled) >= MAX_SPECIALIZED:
            return flatten(to_fx(self.region))
        symbols = tuple(Symbol(s.name, s.low, s.high, sizes[s.name]) for s in self.region.symbols)
        self.compiled.append(_compile(replace(self.region, symbols=symbols), self.variant))
        return self.compiled[-1][0]
