"""Which value an op of a Dynamo graph reads, where tensors are written to in place: an op that writes gives a new version of what it wrote to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node

from fuseplan.rewrites.reading import changes_rules
from fuseplan.rewrites.special import memory_of
from fuseplan.rewrites.writes import written_by
from fuseplan.rewrites.written.missed import MissedError

_SHAPE_METHODS = frozenset(
    {"size", "dim", "numel", "ndimension", "stride", "get_device", "is_contiguous", "element_size"}
)
_SHAPE_ATTRIBUTES = frozenset({"shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda"})
_LIKE_ANOTHER = frozenset({"type_as", "view_as", "reshape_as", "expand_as"})


def fake_of(node: Any) -> FakeTensor:
    """The fake tensor that Dynamo has for a node; MissedError where it is no plain tensor."""
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    if type(value) is not FakeTensor or value.layout is not torch.strided:
        raise MissedError(f"{node} is no plain tensor")
    return value


def reads_elements(reader: Node, node: Node) -> bool:
    """Whether an op reads elements of a value, and not its shape or dtype alone."""
    name = reader.target if isinstance(reader.target, str) else getattr(reader.target, "__name__", "")
    if name in _LIKE_ANOTHER:
        return node in reader.args[:1]
    if name.endswith("_like") or name.startswith("new_") or (reader.op == "call_method" and name in _SHAPE_METHODS):
        return node not in reader.args[:1] and node in reader.all_input_nodes
    return not (reader.target is getattr and reader.args[1] in _SHAPE_ATTRIBUTES)


class Versions:
    """The values that the ops of a graph read, and who reads each."""

    def __init__(self, graph: Graph) -> None:
        self.place = {node: place for place, node in enumerate(graph.nodes)}
        self.writers: dict[Node, list[Node]] = {node: written for node in graph.nodes if (written := written_by(node))}
        self.readers: dict[Node, list[Node]] = defaultdict(list)
        self._read: dict[tuple[Node, Node], Node] = {}
        self._stale: dict[tuple[Node, Node], Node] = {}
        self._put_together: set[tuple[Node, Node]] = set()
        self._follow(graph)

    def read(self, reader: Node, argument: Any) -> Any:
        """The node whose result `reader` sees under this argument; what is no node is itself."""
        if not isinstance(argument, Node):
            return argument
        writer = self._stale.get((reader, argument))
        if writer is not None:
            raise MissedError(f"{argument.name} is written to by {writer.name} before {reader.name} reads it")
        return self._read.get((reader, argument), argument)

    def there(self, reader: Node, argument: Any) -> Any:
        """The node whose memory `reader` sees under this argument, as it lies there: `put_together` says what that means."""
        return self._read.get((reader, argument), argument) if isinstance(argument, Node) else argument

    def put_together(self, reader: Node, node: Node) -> bool:
        """Whether parts of a value were written by others before `reader` sees it: how it was made says nothing of it then."""
        return (reader, node) in self._put_together

    def elements_read_by(self, node: Node) -> list[Node]:
        """The ops that read elements of this value, and not its shape alone."""
        return [reader for reader in self.readers[node] if reads_elements(reader, node)]

    def written_between(
        self, node: Node, since: Node, until: Node | None = None, among: Collection[Node] = ()
    ) -> Node | None:
        """Who besides `among` writes to a value after one op and before another, or ever."""
        start, end = self.place[since], len(self.place) if until is None else self.place[until]
        for writer, written in self.writers.items():
            if writer in among or not start < self.place[writer] < end:
                continue
            if any(self.memory(node) & self.memory(each) for each in written):
                return writer
        return None

    def check_unwritten(self, node: Node, since: Node, until: Node | None = None, among: Collection[Node] = ()) -> None:
        """MissedError where somebody writes to a value meanwhile."""
        writer = self.written_between(node, since, until, among)
        if writer is not None:
            raise MissedError(
                f"{node.name} is written to by {writer.name} {'later' if until is None else 'in between'}"
            )

    def written_elsewhere(self, nodes: Collection[Node]) -> Node | None:
        """Which of some ops writes into what others have as well: without it, these would have another value."""
        own = set(nodes)
        for node in nodes:
            storages = {each for written in self.writers.get(node, ()) for each in self.memory(written)}
            if any(not self._by_storage[each] <= own for each in storages):
                return node
        return None

    @cached_property
    def _by_storage(self) -> Mapping[int, set[Node]]:
        """All nodes, by what they lie in."""
        found: dict[int, set[Node]] = defaultdict(set)
        for node in self.place:
            for each in self.memory(node):
                found[each].add(node)
        return found

    @cached_property
    def changes(self) -> list[Node]:
        """What changes the rules of computing, in order."""
        return [node for node in self.place if changes_rules(node)]

    def memory(self, node: Node) -> set[int]:
        """The storages that a value lies in."""
        if node not in self._memory:
            self._memory[node] = memory_of(node.meta.get("example_value"))
        return self._memory[node]

    @cached_property
    def _memory(self) -> dict[Node, set[int]]:
        return {}

    def _follow(self, graph: Graph) -> None:
        latest: dict[Node, Node] = {}
        stale: dict[Node, Node] = {}
        seen: list[Node] = []
        for node in graph.nodes:
            for argument in node.all_input_nodes:
                if argument in stale:
                    self._stale[node, argument] = stale[argument]
                    self._put_together.add((node, latest.get(argument, argument)))
                self._read[node, argument] = latest.get(argument, argument)
                self.readers[latest.get(argument, argument)].append(node)
            if node in self.writers:
                self._write(node, seen, latest, stale)
            seen.append(node)

    def _write(self, writer: Node, seen: list[Node], latest: dict[Node, Node], stale: dict[Node, Node]) -> None:
        """Note that whatever shares memory with what is written to has another value from here on."""
        written = {latest.get(node, node) for node in self.writers[writer]}
        memory = {each for node in written for each in self.memory(node)}
        same = len(written) == 1 and _in_place_of(writer, next(iter(written)))
        for node in seen:
            if not memory & self.memory(node):
                continue
            if same and latest.get(node, node) in written:
                latest[node] = writer
            else:
                stale[node] = writer


def _in_place_of(writer: Node, written: Node) -> bool:
    """Whether an op gives back, whole, what it has written to."""
    new, old = writer.meta.get("example_value"), written.meta.get("example_value")
    if not isinstance(new, torch.Tensor) or not isinstance(old, torch.Tensor):
        return False
    same_memory = memory_of(new) == memory_of(old)
    return same_memory and new.dtype == old.dtype and new.shape == old.shape and new.stride() == old.stride()
