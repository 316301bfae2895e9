"""Some ops of a program as a program of their own: which ones they are, what they are given, and what they give.

What is given is computed anew for each part, as the program has it when the part begins: values that are written in place are others
later, and those of a large program together would fill a GPU.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from fuseplan.capture.trace.flex_call import let_through
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.load import Loaded
from fuseplan.capture.trace.write import write_trace
from fuseplan.errors import FuseplanError
from fuseplan.judge.memory import is_float


@dataclass(frozen=True)
class Effect:
    """What one node of a program gives, and where it writes."""

    floats: bool = False
    """Whether it gives a tensor of floats."""
    storages: frozenset[int] = frozenset()
    """The memory in which it lies."""
    written: frozenset[int] = frozenset()
    """The memory that it writes to."""


@dataclass(frozen=True, eq=False)
class ProgramPart:
    """Some ops as a program of their own, and the values that it is given."""

    module: GraphModule
    values: list[Any]

    @property
    def ops(self) -> int:
        """How many ops it has."""
        return sum(node.op.startswith("call") for node in self.module.graph.nodes)


class Parts:
    """Cuts parts out of a program."""

    def __init__(self, loaded: Loaded) -> None:
        assert isinstance(loaded.module, GraphModule)
        self.loaded, self.module = loaded, loaded.module
        self.ops = [node for node in self.module.graph.nodes if node.op in ("call_function", "call_method")]
        self.effects = _effects(loaded, self.module)
        held = (one for one in (*loaded.inputs(0), *self.module.parameters()) if isinstance(one, Tensor))
        self.trains = bool(loaded.trace.fields["modes"]["grad"]) and any(one.requires_grad for one in held)

    def effect(self, node: Node) -> Effect:
        """What a node gives and writes."""
        return self.effects.get(node.name, Effect())

    @property
    def outputs(self) -> list[Node]:
        """The nodes that the program gives out."""
        (out,) = self.module.graph.find_nodes(op="output")
        return list(out.all_input_nodes)

    def writers(self) -> list[Node]:
        """The ops that write to inputs, weights or buffers, but for those that another such op comes after."""
        given = [node for node in self.module.graph.nodes if node.op in ("placeholder", "get_attr")]
        outside = frozenset[int]().union(*(self.effect(node).storages for node in given))
        last: dict[int, Node] = {}
        for node in self.ops:
            last |= dict.fromkeys(self.effect(node).written & outside, node)
        return list(dict.fromkeys(last.values()))

    def shown(self, end: Node) -> list[Node]:
        """What says whether an op is right: what it gives, or else what it has written to; one that takes lists to several."""
        if self.effect(end).floats:
            return [end]
        written = self.effect(end).written
        return [arg for arg in end.all_input_nodes if self.effect(arg).floats and self.effect(arg).storages & written]

    def needed(self, ends: Collection[Node], inside: Sequence[Node]) -> list[Node]:
        """Those of `inside` on which `ends` hang: by what they read, and by what was written to the memory that they read."""
        wanted, live = set(ends), frozenset[int]().union(*(self.effect(end).storages for end in ends))
        for node in reversed(inside):
            if node in wanted or self.effect(node).written & live:
                wanted |= {node, *node.all_input_nodes}
                live |= frozenset().union(*(self.effect(arg).storages for arg in node.all_input_nodes))
        return [node for node in inside if node in wanted]

    def makes(self, end: Node, inside: Sequence[Node]) -> Node:
        """The op of `inside` after which a value is what it is when they are done: which gives it, or the last that writes to it."""
        held = self.effect(end).storages
        return next(node for node in reversed(inside) if node is end or self.effect(node).written & held)

    def leaving(self, inside: Sequence[Node]) -> list[Node]:
        """The floats that these ops give to others, and those that they write to which were there before."""
        within = set(inside)
        read = dict.fromkeys(arg for node in inside for arg in node.all_input_nodes if arg not in within)
        before = frozenset[int]().union(*(self.effect(node).storages for node in read))
        found = [
            node
            for node in inside
            if self.effect(node).floats and not (node.users and all(user in within for user in node.users))
        ]
        for node in inside:
            if self.effect(node).written & before:
                found += self.shown(node)
        return list(dict.fromkeys(found))

    def part(self, inside: Sequence[Node], shown: Sequence[Node]) -> ProgramPart:
        """These ops as a program that gives what is `shown`."""
        chosen, written = set(inside), frozenset[int]().union(*(self.effect(node).written for node in inside))
        read = [
            node
            for node in self.module.graph.nodes
            if node not in chosen
            and node.op != "output"
            and (node in shown or any(user in chosen for user in node.users))
        ]
        values = self._values(inside[0], read)
        graph, made, given = Graph(), dict[Node, Node](), list[Any]()
        for node in self.module.graph.nodes:
            if node in chosen:
                made[node] = graph.node_copy(node, lambda arg: made[arg])
            elif node in values:
                value = values[node]
                if node.op == "get_attr" and not isinstance(value, Tensor):
                    made[node] = graph.node_copy(node)
                    continue
                made[node] = graph.placeholder(node.name)
                given.append(value)
        for node in values:  # autograd lets nobody write to what gradients are collected for
            value = values[node]
            if isinstance(value, Tensor) and value.requires_grad and self.effect(node).storages & written:
                self._copied(graph, made, node)
        graph.output(tuple(made[node] for node in shown))
        return ProgramPart(GraphModule(self.module, graph), given)

    def _copied(self, graph: Graph, made: dict[Node, Node], node: Node) -> None:
        """Have the ops of a part work on a copy of what it is given."""
        entry = made[node]
        last = [one for one in graph.nodes if one.op == "placeholder"][-1]
        users = list(entry.users)
        with graph.inserting_after(last):
            made[node] = graph.call_method("clone", (entry,))
        for user in users:
            user.replace_input_with(entry, made[node])

    def _values(self, first: Node, wanted: Sequence[Node]) -> dict[Node, Any]:
        """What nodes outside of a part give, as the program has it when the part begins."""
        names, trains = {node.name for node in wanted}, self.trains
        found: dict[str, Any] = {}
        plain = GraphModule(self.module, copy.deepcopy(self.module.graph))
        stop = next(node for node in plain.graph.nodes if node.name == first.name)

        class UpTo(Interpreter):
            def run_node(self, n: Node) -> Any:
                if n is stop:
                    found.update(
                        {one.name: _kept(one, value, trains) for one, value in self.env.items() if one.name in names}
                    )
                    raise _BeginningReached
                return super().run_node(n)

        with _once(self.loaded), suppress(_BeginningReached):
            UpTo(plain).run(*self.loaded.inputs(0))
        late = [node for node in wanted if node.name not in found]
        found |= {node.name: _kept(node, _attribute(plain, str(node.target)), trains) for node in late}
        return {node: found[node.name] for node in wanted}

    def trace(self, part: ProgramPart) -> Trace:
        """A part as a trace."""
        found: list[Trace] = []

        def look(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            found.append(write_trace(gm, example_inputs, "a part that torch.compile gets wrong"))
            return gm.forward

        torch._dynamo.reset()
        with self.loaded.modes():
            torch.compile(part.module, backend=look, dynamic=False)(*map(_again, part.values))
        torch._dynamo.reset()
        if len(found) != 1:
            raise FuseplanError(f"the part becomes {len(found)} programs")
        return found[0]


class _BeginningReached(Exception):  # noqa: N818 -- no error
    """Ends a run where a part begins."""


@contextmanager
def _once(loaded: Loaded) -> Iterator[None]:
    """Around one run of the forward whose results nobody keeps."""
    kept = loaded.tensors.snapshot()
    try:
        with torch.random.fork_rng(loaded.tensors.cuda_devices()), loaded.modes(), torch.no_grad():
            torch.manual_seed(0)
            yield
    finally:
        loaded.tensors.restore(kept)


def _attribute(module: GraphModule, target: str) -> Any:
    found: Any = module
    for name in target.split("."):
        found = getattr(found, name)
    return found


def _kept(node: Node, value: Any, grad: bool) -> Any:
    """A copy of what a part is given; what the program computes has gradients, of the rest what has some there."""
    computed = node.op.startswith("call")

    def kept(tensor: Tensor) -> Tensor:
        fresh = tensor.detach().clone()
        trains = grad and tensor is value and is_float(fresh)  # of a list, a part may write to what it takes out
        return fresh.requires_grad_(trains and (computed or tensor.requires_grad))

    with torch.inference_mode(False):
        return tree_map_only(Tensor, kept, value)  # what takes lists gives lists


def _again(value: Any) -> Any:
    """The same once more: running a part may write to what it is given."""
    return tree_map_only(Tensor, lambda one: one.detach().clone().requires_grad_(one.requires_grad), value)


# what each op writes to


def _effects(loaded: Loaded, module: GraphModule) -> dict[str, Effect]:
    """What each node gives and writes, by one run under eager."""
    found: dict[str, Effect] = {}
    places, writes = _Places(), _Writes()

    class Watching(Interpreter):
        def run_node(self, n: Node) -> Any:
            writes.to.clear()
            value = super().run_node(n)
            if n.op != "output":
                found[n.name] = Effect(is_float(value), places.of([value]), places.of(writes.to))
            return value

    plain = GraphModule(module, copy.deepcopy(module.graph))
    with _once(loaded), writes:
        Watching(plain).run(*loaded.inputs(0))
    return found


class _Places:
    """Tells apart the memory of all tensors of a run, without holding it."""

    def __init__(self) -> None:
        self._known: dict[int, StorageWeakRef] = {}  # as long as there is one, nobody else gets its number

    def of(self, values: Iterable[Any]) -> frozenset[int]:
        """The memory of these values, by numbers."""
        storages = [value.untyped_storage() for value in _tensors(values)]
        for storage in storages:
            if storage._cdata not in self._known:
                self._known[storage._cdata] = StorageWeakRef(storage)
        return frozenset(storage._cdata for storage in storages)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())


class _Writes(TorchDispatchMode):
    """Sees which tensors operators write to. Of a batch norm's statistics its schema does not say so."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.to: list[Any] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if not func.is_view and func._can_decompose():  # in inference mode nobody has taken it apart before
            with self:
                return func.decompose(*args, **kwargs)
        for argument, value in zip(func._schema.arguments, args, strict=False):
            self._see(argument, value)
        for argument in func._schema.arguments:
            if argument.name in kwargs:
                self._see(argument, kwargs[argument.name])
        return func(*args, **kwargs)

    def _see(self, argument: Any, value: Any) -> None:
        written = argument.alias_info is not None and argument.alias_info.is_write
        if written or argument.name in ("running_mean", "running_var"):
            self.to.append(value)


let_through(_Writes)
