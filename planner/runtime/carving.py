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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._functorch import partitioners
from torch._guards import detect_fake_mode
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.decomposition import select_decomp_table
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from fuseplan.capture.fx.from_fx import Captured, capture_fx
from fuseplan.errors import ExecutorError, GraphError, PlanError, UnsupportedError
from fuseplan.executors import executors
from fuseplan.graph import Graph, TensorType
from fuseplan.host.carving import TANGENTS, check_carving, given_by
from fuseplan.options import Fusion
from fuseplan.plan import Plan
from fuseplan.runtime.carved import compiled_region, played
from fuseplan.runtime.kept import source
from fuseplan.runtime.record import GraphRecord, Program, RegionRecord
from fuseplan.runtime.regions import fallen_back, segmentation_of
from fuseplan.runtime.settings import settings
from fuseplan.segment import Region, Segmentation, extract, flow_of, order_edges

if TYPE_CHECKING:
    from torch._inductor.output_code import OutputCode

PASS = "joint_custom_pre_pass"
"""The option of Inductor under which it runs a pass of ours before its own."""
_TAGS = ("recompute", "ac_graph_id", "partitioner_tag")
"""What tells of an op whether it is the forward's or the backward's, and what a checkpoint does with it."""
_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)
_OF_STRIDES = (*_VIEWS, torch.ops.aten.as_strided.default)
_OF_ONE_OP = ("val", "tensor_meta", "eager_input_vals")


class _OnceMoreError(PlanError):
    """A region stays the host's after torch has asked for the name under which its caches know the program with all regions."""


class Carving(CustomGraphPass):
    """Carves the regions of a plan out of a graph that Inductor is about to compile, and then takes apart what is left of it."""

    def __init__(self, plan: Plan, program: Program, options: Collection[str]) -> None:
        """`options` are those of Inductor that the plan sets: regions are compiled without them, as they are in a process that
        finds the program in torch's caches.
        """
        self.plan, self.program, self.under = plan, program, settings()
        self.before = {name: getattr(config, name) for name in (*options, PASS)}
        theirs = getattr(config, PASS) or []
        self.theirs = theirs if isinstance(theirs, list) else [theirs]
        """Passes of the caller's own, which see the program as they would without ours."""
        self.refused: dict[tuple[str, Region], RegionRecord] = {}
        """What stays the host's since its executor cannot have it."""

    def uuid(self) -> str | None:
        """What torch's caches know it by: all that decides what becomes of a graph. None where nothing is to be kept: fuel is
        spent anew at each start, and what cannot be had is tried, and said, again.
        """
        known, named = executors(), sorted({region.executor for region in self.plan.regions})
        if (
            self.refused
            or self.program.fuel is not None
            or any(name not in known or known[name].available() for name in named)
        ):
            return None
        others = [one.uuid() if isinstance(one, CustomGraphPass) else None for one in self.theirs]
        if None in others:
            return None
        decides = [
            source(),
            self.under,
            repr(others),
            self.plan.identity,
            {name: known[name].version() for name in named},
        ]
        return hashlib.sha256(json.dumps(decides).encode()).hexdigest()

    def __call__(self, graph: FxGraph) -> None:
        """In place, as Inductor wants it."""
        role = role_of(graph)
        try:
            captured = captured_of(graph)
            cut = segmentation_of(self.plan, role, captured.graph)
            check_carving(captured.graph, cut)
        except GraphError as error:
            raise PlanError(f"nothing can be carved out of the {role} graph: {error}") from None
        known = len(self.refused)
        records = list(self._carve(captured, role, cut))
        if len(self.refused) > known:
            raise _OnceMoreError("it is compiled once more, without what its executor cannot have")
        record = GraphRecord(role, captured.graph, tuple(records))
        self.program.graphs[:] = [*(one for one in self.program.graphs if one.role != role), record]
        take_apart(captured.gm)
        for one in self.theirs:
            one(graph)

    def _carve(self, captured: Captured, role: str, cut: Segmentation) -> Iterator[RegionRecord]:
        wanted, calls = flow_of(captured.graph, cut).wanted, dict[int, Node]()
        for region in cut.regions:
            if region.executor not in executors():
                raise PlanError(f"there is no executor {region.executor!r}; known are {', '.join(executors())}")
            part = extract(captured.graph, region.ops, region.recompute, wanted)
            if not part.outputs:
                continue
            if (role, region) in self.refused:
                yield self.refused[role, region]
                continue
            fuel = self.program.fuel
            if fuel is not None and not fuel.take(Fusion(role, region.executor, region.variant, region.ops, part)):
                yield RegionRecord(region.ops, region.executor, region.variant, "the fuel is spent")
                continue
            text = part.to_json().replace("\n", "")  # Inductor writes it into comments of kernels
            try:
                with config.patch(self.before):
                    compiled_region(region.executor, region.variant, text, self.under)
            except (UnsupportedError, ExecutorError, GraphError) as error:
                self.refused[role, region] = fallen_back(region, part, error, "the host")
                continue
            calls |= dict.fromkeys(region.ops, _replace(captured, region, part, (text, self.under)))
            yield RegionRecord(region.ops, region.executor, region.variant, None)
        _in_order(captured, calls)


def captured_of(graph: FxGraph) -> Captured:
    """The Graph of what Inductor's joint passes are given, with its nodes."""
    gm = graph.owning_module
    assert gm is not None
    within = (getattr(gm, str(node.target), None) for node in graph.find_nodes(op="get_attr"))
    if not isinstance(graph.output_node().args[0], (list, tuple)) or any(
        isinstance(one, GraphModule) for one in within
    ):
        raise GraphError("it is a graph within a graph, or has one in it")
    return capture_fx(gm)


def parts_of(captured: Captured) -> tuple[int, ...]:
    """Of each op a number, by what torch tells of it that its cut goes by: a region is of ops of one number. Of one that reads a
    constant, or is on the CPU beside others that are not, a number below zero: none is carved out.
    """
    numbers: dict[Any, int] = {}
    on_cpu = {node for node in captured.nodes if _is_on_cpu(node)}
    alone = on_cpu if len(on_cpu) < len(captured.nodes) else set()
    return tuple(
        -1
        if node in alone or any(map(_is_constant, node.all_input_nodes))
        else numbers.setdefault(_part_of(node), len(numbers))
        for node in captured.nodes
    )


def _is_constant(node: Node) -> bool:
    return node.op == "get_attr"


def _is_on_cpu(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def _part_of(node: Node) -> tuple[Any, ...]:
    return tuple(node.meta.get(tag) for tag in _TAGS)


def role_of(graph: FxGraph) -> str:
    """Of a graph as Inductor's joint passes see it: `joint`, with its backward; or that of a program that is not trained."""
    return (
        "joint" if any(node.name.startswith(TANGENTS) for node in graph.find_nodes(op="placeholder")) else "inference"
    )


def _in_order(captured: Captured, calls: Mapping[int, Node]) -> None:
    """What reads stands behind what it reads, and what has an effect where it stood among the others: draws and writes keep
    their turns. `calls` are what runs instead of ops that were carved out.
    """
    graph = captured.gm.graph
    nodes, place = list(graph.nodes), {node: i for i, node in enumerate(graph.nodes)}
    unit = {**dict(enumerate(captured.nodes)), **calls}
    before: dict[Node, set[Node]] = {node: set(node.all_input_nodes) for node in nodes}
    for first, then in order_edges(captured.graph):
        a, b = unit[first], unit[then]
        if a in place and b in place and a is not b:
            before[b].add(a)
    waits = {node: len(found) for node, found in before.items()}
    after: dict[Node, list[Node]] = {node: [] for node in nodes}
    for node, found in before.items():
        for one in found:
            after[one].append(node)
    ready = [place[node] for node in nodes if not waits[node]]
    heapify(ready)
    last: Node | None = None
    while ready:
        node = nodes[heappop(ready)]
        if last is not None:
            last.append(node)
        last = node
        for one in after[node]:
            waits[one] -= 1
            if not waits[one]:
                heappush(ready, place[one])
    if any(waits.values()):
        raise PlanError("the regions wait for each other")


def _replace(captured: Captured, region: Region, part: Graph, told: tuple[str, str]) -> Node:
    """One operator instead of the ops of a region, which is `told` it as text, and under which settings it was compiled."""
    graph, values = captured.gm.graph, captured.values
    nodes = [captured.nodes[op] for op in sorted(region.ops)]
    parts = [user for node in nodes for user in node.users if user.target is operator.getitem]
    tensors = [values[one.name] for one in part.inputs if isinstance(one.type, TensorType)]
    numbers = [values[one.name] for one in part.inputs if not isinstance(one.type, TensorType)]
    outputs = [values[ref.name] for ref in given_by(part)]
    given = [values[one.name].meta["val"] for one in part.inputs]
    ours = torch.ops.fuseplan
    if any(_is_constant(values[one.name]) for one in part.inputs):
        raise PlanError(f"the region at op {region.ops[0]} reads a constant of the program")
    target = ours.carved_cheap.default if _is_computed_again(told[0], given) else ours.carved.default
    if len(set(map(_part_of, nodes))) > 1:
        raise PlanError(
            f"the region at op {region.ops[0]} holds ops of which torch keeps, or computes again, some by themselves"
        )
    meta = {key: value for key, value in nodes[0].meta.items() if key not in _OF_ONE_OP}
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
    return call


def _is_computed_again(text: str, given: Sequence[Any]) -> bool:
    """Whether torch would rather compute the ops of a region again in the backward than keep what they give."""
    with detect_fake_mode(given) or nullcontext(), enable_python_dispatcher():
        apart = make_fx(played(text), decomposition_table=select_decomp_table())(*given)
    targets = {node.target for node in apart.graph.nodes if node.op == "call_function"} - {operator.getitem}
    return all(getattr(target, "overloadpacket", None) in _cheap_ops() for target in targets)


@lru_cache(maxsize=1)
def _cheap_ops() -> frozenset[Any]:
    """What torch's own cut computes again."""
    return frozenset(partitioners.get_default_op_list().recomputable_ops)


@contextmanager
def known_to_torchs_cut() -> Iterator[None]:
    """While it lasts, torch's cut computes our operator again, too, for regions of what it computes again."""
    told = partitioners.get_default_op_list

    def with_ours() -> Any:
        found = told()
        found.recomputable_ops.add(torch.ops.fuseplan.carved_cheap)
        return found

    partitioners.get_default_op_list = with_ours
    try:
        yield
    finally:
        partitioners.get_default_op_list = told


def take_apart(gm: GraphModule) -> None:
    """Decompose all that Inductor decomposes, as it would have been while it was traced; in place."""
    graph = gm.graph
    places = graph.find_nodes(op="placeholder")
    values = [node.meta["val"] for node in places]

    def left(*args: Any) -> Any:
        return _AsTraced(gm).run(*args, enable_io_processing=False)

    with detect_fake_mode(values) or nullcontext(), enable_python_dispatcher(), preserve_node_meta():
        traced = make_fx(left, decomposition_table=select_decomp_table())(*values)
    last = dict(graph.output_node().meta)
    for node in reversed([node for node in graph.nodes if node.op != "placeholder"]):
        graph.erase_node(node)
    became: dict[Node, Node] = dict(zip(traced.graph.find_nodes(op="placeholder"), places, strict=True))
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            name = f"_of_what_is_left_{node.target}"
            value = getattr(traced, str(node.target))
            if isinstance(value, Tensor):
                gm.register_buffer(name, value, persistent=False)
            else:
                setattr(gm, name, value)
            became[node] = graph.get_attr(name)
            became[node].meta = dict(node.meta)
        elif node.op != "placeholder":
            became[node] = graph.node_copy(node, lambda one: became[one])
    graph.output_node().meta = last
    gm.recompile()


class _AsTraced(Interpreter):
    """Runs the ops of a graph while they are taken apart. Their parts may give other strides than they: what was traced on strides
    gets those that it was traced on.
    """

    def fetch_args_kwargs_from_env(self, n: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What a node is given."""
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        if n.target in _OF_STRIDES and isinstance(n.args[0], Node) and n.args[0].op != "placeholder":
            args = (_laid_as(args[0], n.args[0].meta["val"], n.target in _VIEWS), *args[1:])
        return args, kwargs


def _laid_as(value: Tensor, told: Tensor, is_view: bool) -> Tensor:
    strides, wanted = ([_expression(one) for one in tensor.stride()] for tensor in (value, told))
    if strides == wanted:
        return value
    if not all(isinstance(one, int) for one in (*wanted, *map(_expression, value.shape))):
        if not is_view:
            raise PlanError("memory is looked at by strides that vary")
        return value.contiguous()  # of sizes that vary it is not known by which of them a stride is made
    place = value.new_empty_strided(value.shape, told.stride())
    return torch.ops.aten.copy.default(place, value)  # type: ignore[no-any-return]


def _expression(size: Any) -> Any:
    """A size as it is written: to compare sizes that vary would be traced."""
    return size.node.expr if isinstance(size, torch.SymInt) else size


def joint_graphs(gm: GraphModule, example_inputs: Sequence[Any]) -> dict[str, Graph]:
    """The graphs out of which a plan of host `inductor` may carve regions, by their roles; nothing is compiled."""
    return {role: graph for role, (graph, _) in joint_parts(gm, example_inputs).items()}


def joint_parts(gm: GraphModule, example_inputs: Sequence[Any]) -> dict[str, tuple[Graph, tuple[int, ...]]]:
    """The same, each with the parts that its ops are of."""
    from torch._inductor.compile_fx import compile_fx

    looking, nothing = _Looking(), cast("Callable[..., OutputCode]", lambda gm, inputs, **options: gm.forward)
    with torch._functorch.config.patch(enable_autograd_cache=False):
        compile_fx(gm, list(example_inputs), nothing, config_patches={PASS: looking}, decompositions={})
    return looking.found


def compiled_around(
    plan: Plan, program: Program, patches: dict[str, Any] | None, compiler: Callable[..., Any]
) -> Callable[..., Any]:
    """What `compiler` makes, a call of `compile_fx` that lacks its options, with the regions of the plan carved out."""
    pass_ = Carving(plan, program, patches or {})
    told = {"config_patches": {**(patches or {}), PASS: pass_}, "decompositions": {}}  # whole operators first
    with known_to_torchs_cut():
        try:
            return compiler(**told)  # type: ignore[no-any-return]
        except _OnceMoreError:
            return compiler(**told)  # type: ignore[no-any-return]


class _Looking(CustomGraphPass):
    def __init__(self) -> None:
        self.found: dict[str, tuple[Graph, tuple[int, ...]]] = {}

    def uuid(self) -> None:
        """None: nothing is to be kept."""

    def __call__(self, graph: FxGraph) -> None:
        captured = captured_of(graph)
        self.found[role_of(graph)] = captured.graph, parts_of(captured)
