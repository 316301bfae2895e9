"""All that fuseplan uses of Inductor's private interfaces to compile, and why each piece is needed. Nothing else imports them.

Written against torch 2.10 to 2.13. Importing this module costs a second: callers do so when they compile.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import sympy
import torch
from torch._dynamo.convert_frame import compile_lock
from torch._guards import TracingContext, tracing
from torch._inductor import config
from torch._inductor.async_compile import CompiledTritonKernels
from torch._inductor.codecache import FxGraphCache
from torch._inductor.compile_fx import _recursive_joint_graph_passes, compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.output_code import CompiledFxGraphConstants
from torch._inductor.utils import BoxedBool, get_donated_idxs
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from fuseplan.capture.fx.to_fx import fake_inputs
from fuseplan.executors.base import Compiled
from fuseplan.graph import Symbol

Condition = Callable[[Mapping[str, int]], bool]
_TAKES_DEVICE = "input_device" in inspect.signature(_recursive_joint_graph_passes).parameters  # not in torch 2.10


def compile_graph(gm: GraphModule, patches: Mapping[str, Any], *, gaps: bool = False) -> Compiled:
    """Compile an ATen-level FX graph with fake values, under config `patches`; no output of it may be a view. With `gaps`
    outputs lie as Inductor leaves them, which may be with gaps between their rows.

    What comes back is the code that Inductor wrote, not the CompiledFxGraph around it: that costs more at each call (scripts/bench regions),
    for profiling and bookkeeping of a cache that is written by its first call only.
    """
    fakes = fake_inputs(gm)
    mode = fake_mode(gm)
    with _isolated(mode), config.patch(dict(patches)):
        wanted = [node.meta["val"] for node in gm.graph.output_node().args[0]]  # type: ignore[union-attr]
        traced = _decompose(gm, fakes, mode, wanted)
        device = next((f.device for f in fakes if isinstance(f, torch.Tensor)), torch.device("cpu"))
        # without these passes, lowering meets ops that "should have been handled" by them
        told: dict[str, Any] = {"input_device": device} if _TAKES_DEVICE else {}
        traced = _recursive_joint_graph_passes(traced, **told) or traced
        output = traced.graph.output_node()
        if not gaps:
            _close_gaps(traced, wanted, mode)
        # the strides of these are kept as they are, of all others they are Inductor's to choose
        output.meta["user_visible_output_idxs"] = list(range(len(wanted)))
        compiled = compile_fx_inner(traced, fakes, cudagraphs=BoxedBool(False), is_inference=False, is_backward=False)
    return _code(compiled)


def _code(compiled: Any) -> Compiled:
    call: Compiled = getattr(compiled, "current_callable", None) or compiled
    # CompiledFxGraph.__del__ empties the code that it owns, so it has to live as long as the code
    getattr(call, "__self__", call).__dict__["_compiled_fx_graph"] = compiled
    return call


def cache_key(call: Compiled) -> str | None:
    """Under which key Inductor's cache keeps what `compile_graph` gave; None where it does not."""
    compiled = getattr(getattr(call, "__self__", call), "__dict__", {}).get("_compiled_fx_graph")
    return getattr(compiled, "_fx_graph_cache_key", None)


def recall(key: str, patches: Mapping[str, Any]) -> Compiled | None:
    """What `compile_graph` gave under that key and these patches, if Inductor's cache on this machine still has it.

    The key holds all that decides the code, settings and versions too, so whoever passes one vouches that these are
    as they were. Nothing is traced, nor is the key made: those two are most of the time of a hit.
    """
    with _isolated(FakeTensorMode(shape_env=ShapeEnv())), config.patch(dict(patches)):
        compiled = _load(key, [], "forward")
    return None if compiled is None else _code(compiled)


def recall_whole(key: str, example_inputs: Sequence[Any], role: str) -> Any:
    """The code of a whole graph that Inductor's cache has under that key, as torch loads it itself, or None. It is for the
    compilation of a program that is going on.
    """
    CompiledTritonKernels.cache_clear()
    return _load(key, example_inputs, role)


def _load(key: str, example_inputs: Sequence[Any], role: str) -> Any:
    constants, backward = CompiledFxGraphConstants(), role == "backward"
    compiled, _ = FxGraphCache.load_with_key(key, [], example_inputs, True, None, backward, constants)
    if compiled is None:
        return None
    told: Any = {"cudagraphs": BoxedBool(False), "is_backward": backward, "is_inference": role == "inference"}
    compiled.post_compile(example_inputs, constants, told)
    compiled._fx_graph_cache_key = key
    return compiled


def may_overwrite() -> bool:
    """Whether the backward that is compiled now may overwrite what its forward saved, as torch has decided."""
    return bool(get_donated_idxs())


@contextmanager
def _isolated(mode: FakeTensorMode) -> Iterator[None]:
    """Compile as if alone: one at a time, whatever the caller is tracing, and whatever it has switched on."""
    with ExitStack() as stack:
        stack.enter_context(compile_lock)
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch._C._DisableAutocast())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        # Inductor writes output strides into the context; in that of an outer compilation they would pass for its own
        stack.enter_context(tracing(TracingContext(mode)))
        yield


def fake_mode(gm: GraphModule) -> FakeTensorMode:
    """The mode that the fake values of `gm` live in."""
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch._subclasses.FakeTensor):
            return value.fake_mode
    return FakeTensorMode()


def _decompose(gm: GraphModule, fakes: Sequence[Any], mode: FakeTensorMode, wanted: Sequence[Any]) -> GraphModule:
    """Retrace with Inductor's decompositions, which it insists on, and outputs of the kinds that `wanted` has."""

    def program(*args: Any) -> list[Any]:
        return [_of_kind(got, want) for got, want in zip(gm(*args), wanted, strict=True)]

    table = select_decomp_table()
    with mode:
        return make_fx(program, decomposition_table=table, tracing_mode="real", _allow_non_fake_inputs=True)(*fakes)


def _of_kind(got: Any, want: Any) -> Any:
    """Some decompositions give another dtype than the operator itself, or other strides: order the dimensions as it does."""
    if not isinstance(got, torch.Tensor):
        return got
    if got.dtype != want.dtype:
        got = got.to(want.dtype)
    if _same(got.stride(), want.stride()):
        return got
    hints = [_hint(stride) for stride in want.stride()]
    order = sorted(range(got.dim()), key=lambda d: (-hints[d], d))
    back = sorted(range(got.dim()), key=lambda d: order[d])
    return got.permute(order).clone(memory_format=torch.contiguous_format).permute(back)


def _close_gaps(gm: GraphModule, wanted: Sequence[Any], mode: FakeTensorMode) -> None:
    """Copy the outputs that the passes have given other strides: a matmul that is padded leaves gaps between its rows."""
    output = gm.graph.output_node()
    found: Any = output.args[0]
    changed = {
        node: want
        for node, want in zip(found, wanted, strict=True)
        if isinstance(want, torch.Tensor) and not _same(node.meta["val"].stride(), want.stride())
    }
    for node, want in changed.items():
        copy = _copying(node.meta["val"], want, mode)
        at = {copy.graph.find_nodes(op="placeholder")[0]: node}
        with gm.graph.inserting_before(output):
            for one in copy.graph.nodes:
                if one.op == "call_function":
                    at[one] = gm.graph.node_copy(one, at.__getitem__)
            (result,) = copy.graph.output_node().args
            output.replace_input_with(node, at[result])
    if changed:
        gm.recompile()


def _copying(value: torch.Tensor, want: torch.Tensor, mode: FakeTensorMode) -> GraphModule:
    def copied(given: torch.Tensor) -> Any:
        return _of_kind(given, want)

    with mode:
        return make_fx(copied)(value)


def _same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return all(_expr(x) == _expr(y) for x, y in zip(a, b, strict=True))


def _expr(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _hint(size: Any) -> int:
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


def condition(gm: GraphModule, symbols: Sequence[Symbol]) -> Condition | None:
    """For which sizes the code compiled from `gm` is right, or None where it is for all that `symbols` allow.

    Inductor decides some things by the size that it sees (32-bit indices, a reduction in one go), and notes that as a
    guard. Under torch.compile Dynamo checks the guards; a region that is compiled by itself has to.
    """
    shape_env = fake_mode(gm).shape_env
    if shape_env is None or not symbols:
        return None
    sources: Any = shape_env.var_to_sources  # each symbol has one ConstantSource, which to_fx named
    names = {symbol: source[0].source_name for symbol, source in sources.items()}
    allowed = {
        symbol.name: ValueRanges(symbol.low, int_oo if symbol.high is None else symbol.high) for symbol in symbols
    }
    ranges = {symbol: allowed[name] for symbol, name in names.items() if name in allowed}
    # a symbol that turned out to have one value is replaced, and its guard simplified away
    fixed = [sympy.Eq(symbol, value) for symbol, value in shape_env.replacements.items() if symbol in ranges]
    guards = dict.fromkeys([*(guard.expr for guard in shape_env.guards), *fixed])
    every = [expr for expr in guards if bound_sympy(expr, ranges).lower is not sympy.true]
    if not every:
        return None

    def holds(sizes: Mapping[str, int]) -> bool:
        values = {symbol: sympy.Integer(sizes[name]) for symbol, name in names.items() if name in sizes}
        return all(expr.xreplace(values) == sympy.true for expr in every)

    return holds
