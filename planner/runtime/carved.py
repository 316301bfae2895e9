"""Carve-outs of host `inductor`: regions that others run, inside a program that Inductor still compiles as one.

They are carved out of what AOTAutograd has traced, forward and backward in one graph, before anything of it is taken apart.
Each becomes one operator that nobody looks into: decompositions, joint passes, the cut between forward and backward, and
Inductor's fusion come after that, and all around it. What others than its own ops write to, or share memory with, stays the
host's.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._functorch import partitioners
from torch._guards import detect_fake_mode
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.pattern_matcher import stable_topological_sort
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from fuseplan.capture.fx.composites import LIBRARY
from fuseplan.capture.fx.from_fx import Captured, capture_fx
from fuseplan.capture.fx.to_fx import to_fx
from fuseplan.errors import ExecutorError, GraphError, PlanError, UnsupportedError
from fuseplan.executors import Compiled, executors
from fuseplan.graph import Graph, TensorType
from fuseplan.host.carving import TANGENTS, check_carving, given_by
from fuseplan.options import Fusion
from fuseplan.plan import Plan
from fuseplan.runtime.declared import laid_out
from fuseplan.runtime.kept import source
from fuseplan.runtime.record import GraphRecord, Program, RegionRecord
from fuseplan.runtime.regions import fallen_back, guarded, segmentation_of
from fuseplan.runtime.settings import settings
from fuseplan.segment import Region, Segmentation, extract, flow_of

if TYPE_CHECKING:
    from torch._inductor.output_code import OutputCode

_SCHEMA = "(Tensor[] inputs, SymInt[] sizes, str executor, str variant, str graph, str settings) -> Tensor[]"
_OURS = "joint_custom_pre_pass"
"""The option of Inductor under which it runs a pass of ours before its own."""
_AS_TRACED = (torch.Tag.needs_exact_strides, torch.Tag.pt2_compliant_tag)
LIBRARY.define(f"carved{_SCHEMA}", tags=_AS_TRACED)
LIBRARY.define(f"carved_cheap{_SCHEMA}", tags=_AS_TRACED)
"""The second where torch would compute each op of the region again in the backward rather than keep what it gives."""


@lru_cache(maxsize=4096)
def _graph(text: str) -> Graph:
    return Graph.from_json(text)


@lru_cache(maxsize=4096)
def _call(executor: str, variant: str, text: str, _: Any) -> Compiled:
    """What runs a region, compiled at its first call in this process, once for each settings of torch: what torch's caches keep of
    a program is the operator and its arguments.
    """
    graph = _graph(text)
    with torch.no_grad(), torch._C._DisableAutocast():
        compiled = executors()[executor].compile(graph, variant)
    return guarded(compiled, graph, executor, frozenset(value.name for value in graph.inputs))


@lru_cache(maxsize=4096)
def _played(text: str) -> GraphModule:
    return to_fx(_graph(text))


def _arguments(graph: Graph, inputs: Sequence[Tensor], sizes: Sequence[Any]) -> list[Any]:
    tensors, numbers = iter(inputs), iter(sizes)
    return [next(tensors) if isinstance(value.type, TensorType) else next(numbers) for value in graph.inputs]


def _carved(
    inputs: Sequence[Tensor], sizes: Sequence[int], executor: str, variant: str, text: str, under: str
) -> list[Tensor]:
    graph = _graph(text)
    found = _call(executor, variant, text, under)(_arguments(graph, inputs, sizes))
    kinds = [graph.types[ref.name] for ref in given_by(graph)]
    return [
        laid_out(one, kind.stride) if isinstance(kind, TensorType) and not graph.symbols else one
        for one, kind in zip(found, kinds, strict=True)
    ]


def _carved_fake(
    inputs: Sequence[Tensor], sizes: Sequence[Any], executor: str, variant: str, text: str, under: str
) -> list[Tensor]:
    return list(_played(text)(*_arguments(_graph(text), inputs, sizes)))


for _name in ("carved", "carved_cheap"):
    LIBRARY.impl(_name, _carved, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fuseplan::{_name}", _carved_fake, lib=LIBRARY)


class Carving(CustomGraphPass):
    """Carves the regions of a plan out of a graph that Inductor is about to compile, and then takes apart what is left of it."""

    def __init__(self, plan: Plan, program: Program, options: Collection[str]) -> None:
        """`options` are those of Inductor that the plan sets: regions are compiled without them, as they are in a process that
        finds the program in torch's caches.
        """
        self.plan, self.program = plan, program
        self.before = {name: getattr(config, name) for name in (*options, _OURS)}

    def uuid(self) -> str | None:
        """What torch's caches know it by: all that decides what becomes of a graph. None where nothing is to be kept: fuel is
        spent anew at each start, and what cannot be had is said again.
        """
        known, named = executors(), sorted({region.executor for region in self.plan.regions})
        if self.program.fuel is not None or any(name not in known or known[name].available() for name in named):
            return None
        decides = [source(), self.plan.identity, {name: known[name].version() for name in named}]
        return hashlib.sha256(json.dumps(decides).encode()).hexdigest()

    def __call__(self, graph: FxGraph) -> None:
        """In place, as Inductor wants it."""
        captured, role = _captured(graph), role_of(graph)
        cut = segmentation_of(self.plan, role, captured.graph)
        records = list(_carve(captured, cut, self.program, config.patch(self.before)))
        record = GraphRecord(role, captured.graph, tuple(records))
        self.program.graphs[:] = [*(one for one in self.program.graphs if one.role != role), record]
        take_apart(captured.gm)


def _captured(graph: FxGraph) -> Captured:
    assert graph.owning_module is not None
    return capture_fx(graph.owning_module)


def role_of(graph: FxGraph) -> str:
    """Of a graph as Inductor's joint passes see it: `joint`, with its backward; or that of a program that is not trained."""
    return (
        "joint" if any(node.name.startswith(TANGENTS) for node in graph.find_nodes(op="placeholder")) else "inference"
    )


def _carve(
    captured: Captured, cut: Segmentation, program: Program, apart: AbstractContextManager[Any]
) -> Iterator[RegionRecord]:
    check_carving(captured.graph, cut)
    wanted = flow_of(captured.graph, cut).wanted
    for region in cut.regions:
        if region.executor not in executors():
            raise PlanError(f"there is no executor {region.executor!r}; known are {', '.join(executors())}")
        part = extract(captured.graph, region.ops, region.recompute, wanted)
        if not part.outputs:
            continue
        fusion = Fusion(role_of(captured.gm.graph), region.executor, region.variant, region.ops, part)
        if program.fuel is not None and not program.fuel.take(fusion):
            yield RegionRecord(region.ops, region.executor, region.variant, "the fuel is spent")
            continue
        text = part.to_json()
        try:
            with apart:
                under = settings()
                _call(region.executor, region.variant, text, under)
        except (UnsupportedError, ExecutorError, GraphError) as error:
            yield fallen_back(region, part, error, "the host")
            continue
        _replace(captured, region, part, (text, under))
        yield RegionRecord(region.ops, region.executor, region.variant, None)
    stable_topological_sort(captured.gm.graph)


def _replace(captured: Captured, region: Region, part: Graph, told: tuple[str, str]) -> None:
    """One operator instead of the ops of a region, which is `told` it as text, and under which settings it was compiled."""
    graph, values = captured.gm.graph, captured.values
    nodes = [captured.nodes[op] for op in sorted(region.ops)]
    parts = [user for node in nodes for user in node.users if user.target is operator.getitem]
    tensors = [values[one.name] for one in part.inputs if isinstance(one.type, TensorType)]
    numbers = [values[one.name] for one in part.inputs if not isinstance(one.type, TensorType)]
    outputs = [values[ref.name] for ref in given_by(part)]
    given = [values[one.name].meta["val"] for one in part.inputs]
    ours = torch.ops.fuseplan
    target = ours.carved_cheap.default if _is_computed_again(told[0], given) else ours.carved.default
    meta = {key: value for key, value in nodes[0].meta.items() if key not in ("val", "tensor_meta")}
    with graph.inserting_after(max([*nodes, *parts])):
        call = graph.call_function(target, (tensors, numbers, region.executor, region.variant, *told))
    call.meta = {**meta, "val": [node.meta["val"] for node in outputs]}
    after = call
    for i, (ref, node) in enumerate(zip(given_by(part), outputs, strict=True)):
        with graph.inserting_after(after):
            after = values[ref.name] = graph.call_function(operator.getitem, (call, i))
        after.meta = {**meta, "val": node.meta["val"]}
        node.replace_all_uses_with(after)
    for node in sorted({*nodes, *parts}, reverse=True):
        graph.erase_node(node)


def _is_computed_again(text: str, given: Sequence[Any]) -> bool:
    """Whether torch would rather compute the ops of a region again in the backward than keep what they give."""
    with detect_fake_mode(given) or nullcontext(), enable_python_dispatcher():
        apart = make_fx(_played(text), decomposition_table=select_decomp_table())(*given)
    targets = {node.target for node in apart.graph.nodes if node.op == "call_function"} - {operator.getitem}
    return all(getattr(target, "overloadpacket", None) in _cheap_ops() for target in targets)


@lru_cache(maxsize=1)
def _cheap_ops() -> frozenset[Any]:
    """What torch's own cut computes again; from now on it knows our operator for regions of these, too."""
    told = partitioners.get_default_op_list

    def with_ours() -> Any:
        found = told()
        found.recomputable_ops.add(torch.ops.fuseplan.carved_cheap)
        return found

    partitioners.get_default_op_list = with_ours
    return frozenset(told().recomputable_ops)


def take_apart(gm: GraphModule) -> None:
    """Decompose all that Inductor decomposes, as it would have been while it was traced; in place."""
    graph = gm.graph
    places = graph.find_nodes(op="placeholder")
    values = [node.meta["val"] for node in places]

    def played(*args: Any) -> Any:
        return Interpreter(gm).run(*args, enable_io_processing=False)

    with detect_fake_mode(values) or nullcontext(), enable_python_dispatcher(), preserve_node_meta():
        traced = make_fx(played, decomposition_table=select_decomp_table())(*values)
    last = dict(graph.output_node().meta)
    for node in reversed([node for node in graph.nodes if node.op != "placeholder"]):
        graph.erase_node(node)
    became: dict[Node, Node] = dict(zip(traced.graph.find_nodes(op="placeholder"), places, strict=True))
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            name = f"_of_what_is_left_{node.target}"
            setattr(gm, name, getattr(traced, str(node.target)))
            became[node] = graph.get_attr(name)
            became[node].meta = dict(node.meta)
        elif node.op != "placeholder":
            became[node] = graph.node_copy(node, lambda one: became[one])
    graph.output_node().meta = last
    gm.recompile()


def joint_graphs(gm: GraphModule, example_inputs: Sequence[Any]) -> dict[str, Graph]:
    """The graphs out of which a plan of host `inductor` may carve regions, by their roles; nothing is compiled."""
    from torch._inductor.compile_fx import compile_fx

    looking, nothing = _Looking(), cast("Callable[..., OutputCode]", lambda gm, inputs, **options: gm.forward)
    with torch._functorch.config.patch(enable_autograd_cache=False):
        compile_fx(gm, list(example_inputs), nothing, config_patches={_OURS: looking}, decompositions={})
    return looking.found


def carving(plan: Plan, program: Program, patches: dict[str, Any] | None) -> dict[str, Any]:
    """What `compile_fx` is told beside the program: whole operators first, the pass that carves, and then takes apart."""
    ours = {_OURS: Carving(plan, program, patches or {})}
    return {"config_patches": {**(patches or {}), **ours}, "decompositions": {}}


class _Looking(CustomGraphPass):
    def __init__(self) -> None:
        self.found: dict[str, Graph] = {}

    def uuid(self) -> None:
        """None: nothing is to be kept."""

    def __call__(self, graph: FxGraph) -> None:
        self.found[role_of(graph)] = _captured(graph).graph
