"""Numbers with which a program counts, such as how far a cache is filled: no tensor is as large as they say, and they are added to elements
or compared with them at most. What is fastest does not change with them.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.utils._pytree import tree_leaves

from fuseplan.capture.dynamo.symbols import Symbols, symbol_of

_COMPARED = {operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne}
_WORKED_OUT = {operator.add, operator.sub, operator.mul}
OUT_OF_PLACE: Mapping[Any, Any] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
}
"""What an operator is to numbers that is in place for tensors."""
_ARITHMETIC = frozenset(
    {*_WORKED_OUT, *OUT_OF_PLACE, operator.neg, operator.floordiv, operator.mod, torch.sym_max, torch.sym_min}
)
"""What makes numbers of numbers."""
_DIVIDING = {operator.floordiv, operator.mod}
_BY_ELEMENT = frozenset(
    {*_COMPARED, *_WORKED_OUT, *OUT_OF_PLACE, *(getattr(torch, one.__name__) for one in (*_COMPARED, *_WORKED_OUT))}
)
_METHODS = frozenset({f"{one.__name__}{written}" for one in (*_COMPARED, *_WORKED_OUT) for written in ("", "_")})
_WHOLE = frozenset({torch.int8, torch.int16, torch.int32, torch.int64})


@dataclass(frozen=True)
class Counts:
    """Which numbers of a program count, by their nodes."""

    inputs: tuple[Node, ...] = ()
    """What it is given."""
    numbers: tuple[Node, ...] = ()
    """What it makes of them, in the order of the graph."""
    readers: tuple[Node, ...] = ()
    """What makes tensors of any of them."""

    @staticmethod
    def of(gm: GraphModule) -> Counts:
        """Those of a Dynamo graph.

        >>> found = []
        >>> def backend(gm, example_inputs):
        ...     found.append(Counts.of(gm))
        ...     return gm.forward
        >>> seen = torch.compile(lambda x, at: (x[torch.arange(3) + at], at + 1), backend=backend, dynamic=True)
        >>> _ = seen(torch.arange(9), 4)
        >>> [len(part) for part in (found[0].inputs, found[0].numbers, found[0].readers)]
        [1, 1, 1]
        """
        given = gm.graph.find_nodes(op="placeholder")
        inputs = [node for node in given if _symbol(node) is not None]
        counting = inputs
        for nodes in (given, gm.graph.nodes):  # of most sizes the inputs say so already
            if counting:
                of_tensors = {one for node in nodes for tensor in _tensors(node) for one in free_symbols(tensor)}
                counting = [node for node in counting if _symbol(node) not in of_tensors]
        while counting:
            found = _Uses(gm, inputs, counting)
            if not found.others:
                return Counts(tuple(counting), tuple(found.made), tuple(found.readers))
            counting = [node for node in counting if node not in found.others]
        return Counts()

    def names(self, symbols: Symbols) -> set[str | None]:
        """What they are called among the sizes of the program."""
        return {symbols.name_of(node.meta["example_value"]) for node in self.inputs}

    def places(self) -> frozenset[int]:
        """Where they are among the inputs."""
        given = self.inputs[0].graph.find_nodes(op="placeholder") if self.inputs else ()
        return frozenset(place for place, node in enumerate(given) if node in self.inputs)


class _Uses:
    """What a program does with numbers of which some may count."""

    def __init__(self, gm: GraphModule, inputs: list[Node], counting: list[Node]) -> None:
        self._inputs = set(inputs)
        self.made: dict[Node, set[Node]] = {}
        """Numbers that are made of them, with those they are made of."""
        self.readers: list[Node] = []
        self.others = set[Node]()
        """Those of which something else is made."""
        self._of = {node: {node} for node in counting}
        for node in gm.graph.nodes:
            read = {one for given in node.all_input_nodes for one in self._of.get(given, ())}
            if not read or (node.op == "output" and self._are_listed(node)):
                continue
            if self._is_number(node):
                self.made[node] = self._of[node] = read
            elif self._is_read_by_element(node) or self._begins(node):
                self.readers.append(node)
            else:
                self.others |= read

    def _is_number(self, node: Node) -> bool:
        if node.op != "call_function" or node.target not in _ARITHMETIC or node.kwargs:
            return False
        if node.target in _DIVIDING and (type(node.args[1]) is not int or not node.args[1]):
            return False
        return all(
            one in self._inputs or one in self._of if isinstance(one, Node) else type(one) is int for one in node.args
        )

    def _is_read_by_element(self, node: Node) -> bool:
        """Whether whole numbers are worked out or compared, each with the same number: of others it would matter how that is rounded."""
        known = _METHODS if node.op == "call_method" else _BY_ELEMENT if node.op == "call_function" else ()
        if node.target not in known or node.kwargs or len(node.args) != 2:
            return False
        tensors = [one for one in node.args if isinstance(one, Node) and one not in self._of]
        if len(tensors) != 1 or not (_is_ordinary(tensors[0]) and _is_ordinary(node)):
            return False
        if node.target in OUT_OF_PLACE and tensors[0] is not node.args[0]:
            return False  # a number is another one then, where a tensor would be overwritten
        value = tensors[0].meta["example_value"]
        return value.dtype in _WHOLE and (value.dim() > 0 or value.dtype is torch.int64)

    def _begins(self, node: Node) -> bool:
        """Whether it is as many numbers in a row as ever, from one of these on."""
        if node.op != "call_function" or node.target is not torch.arange or len(node.args) != 2:
            return False
        if not _is_ordinary(node) or not node.kwargs.keys() <= {"device", "dtype"}:
            return False
        row = node.meta["example_value"]
        return row.dtype is torch.int64 and type(row.shape[0]) is int and node.args[0] in self._of

    def _are_listed(self, node: Node) -> bool:
        """Whether all that an output has of them stands there by itself."""
        (given,) = node.args
        listed = {one for one in given if isinstance(one, Node)} if isinstance(given, (tuple, list)) else set()
        return {one for one in node.all_input_nodes if one in self._of} <= listed


def _symbol(node: Node) -> Any:
    return symbol_of(node.meta.get("example_value"))


def _is_ordinary(node: Node) -> bool:
    """Whether it is a tensor as Dynamo sees most, and none of a transformation such as vmap, nor one of tensors."""
    value = node.meta.get("example_value")
    return type(value) is FakeTensor and value.layout is torch.strided


def _tensors(node: Node) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(node.meta.get("example_value")) if isinstance(leaf, Tensor))
