"""Which ops each kernel was made of that Inductor compiles for a program: what a profile is read by.

The ops of the joint graph are marked before anything of it is taken apart, as where regions are carved out of it; Inductor says
of each kernel which nodes went into it, and what a node was made of, it keeps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node

from fuseplan.graph import Graph, TensorType
from fuseplan.plan import Plan
from fuseplan.runtime.carving import PASS, captured_of, known_to_torchs_cut, parts_of, role_of, take_apart
from fuseplan.runtime.inductor_host import options_under
from fuseplan.segment import is_anchor

_MARK = "fuseplan_op"
_TELLS = "set_kernel_post_grad_provenance_tracing"
"""What Inductor calls for each kernel, with what went into it …"""
_WHERE = tuple(
    f"torch._inductor.{name}" for name in ("debug", "ir", "scheduler", "codegen.triton", "codegen.cpp", "codegen.simd")
)
"""… and where it may have that from."""
_TO_TELL = {"fx_graph_cache": False, "trace.provenance_tracking_level": 1, "cpp.enable_kernel_profile": True}
"""Options of Inductor under which it says so, and kernels of a CPU are seen by a profiler."""


@dataclass(frozen=True)
class MadeKernel:
    """One call of a kernel in a compiled graph."""

    role: str
    """That of the compiled graph: `forward`, `backward` or `inference`."""
    name: str
    is_library: bool
    """Whether it is a call of ATen, which may take several kernels or none."""
    ops: tuple[int, ...]
    """Those of the joint graph of which something went into it."""
    ends_apart: bool = False
    """Whether it leaves parts of sums that ATen adds up right behind it."""


@dataclass
class MadeOf:
    """All that is known of the kernels of one program, in the order in which they are called."""

    graphs: dict[str, Graph] = field(default_factory=dict)
    """The joint graph, or that of a program that is not trained, by its role there."""
    parts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Of each op of these a number: those of one may be carved out together."""
    kernels: list[MadeKernel] = field(default_factory=list)

    def of_library(self, last: Node | None, origins: Collection[Node]) -> tuple[int, ...]:
        """The ops of a call of ATen, of which Inductor says `last`, where that is one node's. It tells of what its arguments were
        made as well, which other kernels have computed.
        """
        marks, own = set(_marks(origins)), set(_marks([] if last is None else [last]))
        ops = [op for graph in self.graphs.values() for op in graph.ops]
        if last is not None and not own:
            own = set(islice(self._anchors_like(last), 1))
        return tuple(sorted({mark for mark in marks if is_anchor(ops[mark])} | own or marks))

    def _anchors_like(self, node: Node) -> Iterator[int]:
        """The anchors that give what a node gives, and read what it reads, of which it does not say: a pattern of Inductor's has put it in
        their place, such as a product with a sum behind it.
        """
        read, value = set(_marks(node.all_input_nodes)), node.meta.get("val")
        for graph in self.graphs.values():
            for i, op in enumerate(graph.ops):
                kind = graph.types[op.outputs[0].name] if is_anchor(op) else None
                alike = isinstance(kind, TensorType) and _sizes(kind.shape) == _sizes(getattr(value, "shape", ()))
                if alike and any(graph.producer.get(name) in read for name in op.reads):
                    yield i


class _Marking(CustomGraphPass):
    def __init__(self, found: MadeOf) -> None:
        self.found = found

    def uuid(self) -> None:
        """None: nothing is to be kept."""

    def __call__(self, graph: FxGraph) -> None:
        captured = captured_of(graph)
        for number, node in enumerate(captured.nodes):
            node.meta["custom"] = {**(node.meta.get("custom") or {}), _MARK: number}
        self.found.graphs[role_of(graph)] = captured.graph
        self.found.parts[role_of(graph)] = parts_of(captured)
        take_apart(captured.gm)


def compile_to_tell(
    gm: GraphModule, example_inputs: Sequence[Any], patches: dict[str, Any], found: MadeOf
) -> Callable[..., Any]:
    """The program as Inductor compiles it under these options of its own. What its kernels are made of comes into `found`, of a
    backward at its first call; the calls of each compiled graph are a range of the profiler's, called as `range_of` says.
    """
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner
    from torch._inductor.utils import BoxedBool

    def inner(gm: GraphModule, example_inputs: Sequence[Any], **options: Any) -> Any:
        role = "backward" if options.get("is_backward") else "inference" if options.get("is_inference") else "forward"
        options["cudagraphs"] = BoxedBool(False)
        with _told(found, role):
            code: Any = compile_fx_inner(gm, example_inputs, **options)
        return _ranged(code, role)

    told = {**patches, **_TO_TELL, PASS: _Marking(found)}
    with torch._functorch.config.patch(enable_autograd_cache=False), known_to_torchs_cut():
        compiled: Any = compile_fx(gm, list(example_inputs), inner, config_patches=told, decompositions={})
    return compiled  # type: ignore[no-any-return]


def options_of(plan: Plan) -> dict[str, Any]:
    """Those of Inductor that a plan sets."""
    return options_under(plan.settings) or {}


def range_of(role: str) -> str:
    """What a profiler calls the time in which a compiled graph runs."""
    return f"fuseplan {role}"


def _ranged(code: Callable[..., Any], role: str) -> Callable[..., Any]:
    def call(args: list[Any]) -> Any:
        with torch.profiler.record_function(range_of(role)):
            return code(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


@contextmanager
def _told(found: MadeOf, role: str) -> Iterator[None]:
    """While it lasts, what Inductor says of kernels is written down."""
    import torch._inductor.debug as debug

    tells: Any = getattr(debug, _TELLS)

    def hear(schedule: Any, name: str, is_extern: bool = False) -> Any:
        made = found.of_library(schedule.origin_node, schedule.origins) if is_extern else _of_schedule(schedule)
        found.kernels.append(MadeKernel(role, name, is_extern, made))
        return tells(schedule, name, is_extern)

    def define(scheduling: Any, source: str, schedule: Any, kernel: Any) -> Any:
        name = defines(scheduling, source, schedule, kernel)
        if getattr(kernel, "mix_order_reduction", False):  # of which it says nothing
            found.kernels.append(MadeKernel(role, name, False, _of_schedule(schedule), ends_apart=True))
        return name

    scheduling: Any = getattr(sys.modules.get("torch._inductor.codegen.triton"), "TritonScheduling", None)
    defines: Any = getattr(scheduling, "define_kernel", None)
    places = [module for name in _WHERE if getattr(module := sys.modules.get(name), _TELLS, None) is tells]
    for place in places:
        setattr(place, _TELLS, hear)
    if defines is not None:
        scheduling.define_kernel = define
    try:
        yield
    finally:
        if defines is not None:
            scheduling.define_kernel = defines
        for place in places:
            setattr(place, _TELLS, tells)


def _of_schedule(schedule: Any) -> tuple[int, ...]:
    """The ops of a kernel that Inductor has scheduled."""
    nodes = [one.node for one in schedule if getattr(one, "node", None) is not None]
    return tuple(sorted(set(_marks(origin for node in nodes for origin in node.origins))))


def _sizes(shape: Iterable[Any]) -> list[str]:
    return [str(size) for size in shape]


def _marks(origins: Iterable[Node]) -> Iterator[int]:
    for node in origins:
        mark = (node.meta.get("custom") or {}).get(_MARK)
        if mark is not None:
            yield mark
