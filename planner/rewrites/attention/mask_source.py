"""How a Dynamo graph builds an attention mask: the nodes it comes from, as a Graph of their own, and what is proven of it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import takewhile
from typing import Any

import torch
from torch._guards import tracing
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes

from fuseplan.capture.fx.from_fx import from_fx
from fuseplan.graph import Ref
from fuseplan.rewrites.reading import draws
from fuseplan.rewrites.writes import is_torchs, may_write, memory, written_by
from fuseplan.segment.masks import MaskProof, UnprovenError, classify_mask

_SHAPE_METHODS = frozenset({"size", "dim", "numel", "new_empty", "new_full", "new_ones", "new_zeros"})
_SHAPE_FUNCTIONS = frozenset({torch.empty_like, torch.full_like, torch.ones_like, torch.zeros_like})
"""What reads no element of its first argument."""
_BY_METHOD: dict[Any, str] = {
    spelled: f"bitwise_{name}_" for name in ("and", "or", "xor") for spelled in (getattr(operator, f"i{name}"), f"__i{name}__")
}  # fmt: skip
"""In-place operators that functionalization does not know, and the methods of the same effect."""


class MaskSource:
    """The nodes that decide the elements of a mask, those that write into them included: before `until`, where it is given."""

    def __init__(self, mask: Node, until: Node | None = None) -> None:
        self.mask, self.until = mask, until
        self.given: dict[Node, Any] = {}  # sizes, and tensors of which only the shape is read: with their fakes
        self.nodes: set[Node] = set()
        self._reach(mask)
        self._reach_writers()

    def _reach(self, start: Node) -> None:
        stack = [start]
        while stack:
            node = stack.pop()
            if node in self.nodes:
                continue
            self.given.pop(node, None)  # its elements matter after all
            if isinstance(node.meta.get("example_value"), torch.SymInt):
                self.given[node] = node.meta["example_value"]
            elif node.op == "call_method" or (node.op == "call_function" and is_torchs(node.target)):
                self.nodes.add(node)
                stack.extend(self._read(node))
            else:
                raise UnprovenError(f"it depends on {node.name}")

    def _read(self, node: Node) -> list[Node]:
        """The inputs whose elements matter; of the others the shape is kept."""
        shape_only = (
            node.target in _SHAPE_METHODS
            if node.op == "call_method"
            else node.target in _SHAPE_FUNCTIONS or (node.target is getattr and node.args[1] == "shape")
        )
        first = node.args[0] if node.args else None
        if not shape_only or not isinstance(first, Node) or not isinstance(first.meta.get("example_value"), FakeTensor):
            return node.all_input_nodes
        if first not in self.nodes:
            self.given[first] = first.meta["example_value"]
        return [each for each in node.all_input_nodes if each is not first]

    def _reach_writers(self) -> None:
        """Take in, until nothing new comes, whatever in the program writes to memory that these nodes share."""
        before = takewhile(lambda node: node is not self.until, self.mask.graph.nodes)
        writers = {node: written for node in before if (written := written_by(node))}
        while True:
            own = {each for node in self.nodes for each in memory(node)}
            new = [w for w in writers if w not in self.nodes and any(own & memory(each) for each in writers[w])]
            if not new:
                return
            for writer in new:
                self._reach(writer)

    def ordered(self) -> list[Node]:
        """The nodes as the program runs them."""
        return [node for node in self.mask.graph.nodes if node in self.nodes]

    def writes_after(self, call: Node) -> bool:
        """Whether the mask goes on changing after `call` has read it."""
        after = False
        for node in self.mask.graph.nodes:
            after = after or node is call
            if after and node in self.nodes and may_write(node):
                return True
        return False

    def proof(self) -> MaskProof:
        """Trace the nodes, with the sizes of the program, and classify what they build."""
        if any(map(draws, self.nodes)):  # without it, what is drawn later would be other numbers
            raise UnprovenError("it draws random numbers")
        graph = from_fx(self._traced())
        (mask,) = graph.outputs
        if not isinstance(mask, Ref):
            raise UnprovenError("it is no tensor")
        return classify_mask(graph, mask.name)

    def elements(self) -> torch.Tensor:
        """The mask itself, made once. Of tensors that are given, only the shape is read. UnprovenError where it cannot be told,
        or where it is drawn.
        """
        if any(op.random or op.opaque for op in from_fx(self._traced()).ops):
            raise UnprovenError("it draws random numbers, or calls what cannot be looked into")
        given = [value for value in self.given.values() if isinstance(value, torch.Tensor)]
        sizes = [size for value in given for size in (*value.shape, *value.stride())]
        if len(given) < len(self.given) or not all(type(size) is int for size in sizes):
            raise UnprovenError("its sizes are known at run time only")
        try:
            with tracing(None), _disable_current_modes(), torch.no_grad():
                empty = [torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=v.device) for v in given]
                (mask,) = self._build(*empty)
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            raise UnprovenError(f"it cannot be made by itself: {type(error).__name__}") from error
        if type(mask) is not torch.Tensor:
            raise UnprovenError("it is no plain tensor")
        return mask

    def _traced(self) -> GraphModule:
        example = self.mask.meta.get("example_value")
        if not isinstance(example, FakeTensor):
            raise UnprovenError("it is no plain tensor")
        build: Callable[..., Any] = self._build
        if any(may_write(node) for node in self.nodes):
            build = torch.func.functionalize(build, remove="mutations")
        trace = make_fx(build, tracing_mode="real", _allow_non_fake_inputs=True)
        try:
            # Without Dynamo's own context: torch 2.10 refuses to functionalize under another fake mode than its.
            with tracing(None), example.fake_mode, torch.no_grad():
                return trace(*self.given.values())
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            first = str(error).strip().splitlines()[:1] or [type(error).__name__]
            raise UnprovenError(f"it cannot be traced by itself: {first[0]}") from error

    def _build(self, *given: Any) -> Any:
        values: dict[Node, Any] = dict(zip(self.given, given, strict=True))
        for node in self.ordered():
            args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
            target = _BY_METHOD.get(node.target, node.target)
            if isinstance(target, str):
                values[node] = getattr(args[0], target)(*args[1:], **kwargs)
            else:
                values[node] = target(*args, **kwargs)
        return (values[self.mask],)
