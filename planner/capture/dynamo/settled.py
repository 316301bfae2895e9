"""A program's dynamic sizes among its inputs, settled: each once, before the first tensor that has it.

Dynamo makes an input of each size of each tensor. Where two turn out to be equal, which one is used hangs on the names of
what they were read from, and those that nobody uses are dropped: the same program that is rebuilt from its trace, or called
through another function, has other inputs. So that it has the same key, graphs and plan, all look at the settled one.
Blocks that are checkpointed stay as they are.

Of the numbers that a program gives, those that are inputs, and that Python knows by then, are outputs once or not at all, as Dynamo comes
to them: the settled program gives each input once, and no number that is known.

A size may turn out to be fixed after parts of the program were captured with one that varies, as where a batch meets a cache of so
many rows. Those parts ask for it still, and a program that is rebuilt from its trace never does: it is written as the number that it is.

Weights and other tensors that it holds are inputs, too (`held.py`). Numbers that NumPy computes are written as what they are
(`numpy_numbers.py`), and regions that are compiled once are written out (`nested.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch
from torch.fx import Graph, GraphModule, Node

from fuseplan.capture.dynamo.copied import as_captured, node_copied
from fuseplan.capture.dynamo.held import Held, without_held
from fuseplan.capture.dynamo.nested import without_regions
from fuseplan.capture.dynamo.numpy_numbers import without_numpy
from fuseplan.capture.dynamo.own_sizes import copied_program
from fuseplan.capture.dynamo.symbols import symbol_of

Call = Callable[..., Any]
_NUMBERS = (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True)
class KnownNumber:
    """A number that is known where a program is called: itself, or an input by its place in Dynamo's order."""

    value: int = 0
    input: int | None = None


@dataclass(frozen=True)
class Settled:
    """A program with settled inputs."""

    gm: GraphModule
    example_inputs: Sequence[Any]
    order: tuple[int, ...] | None = None
    """Of each input, its place among those that Dynamo gives, and those that are held behind them; None where it is just these."""
    rewritten: bool = False
    """Whether it is another graph than Dynamo's."""
    numbers: Mapping[int, KnownNumber] = field(default_factory=dict)
    """What Dynamo's graph gives besides, by its place among those outputs."""
    held: Held | None = None
    """What Dynamo's graph holds, and this one is given."""
    nested: GraphModule | None = None
    """The program with the regions that a caller has torch compile once, where it had some that are written out here."""

    @property
    def arranged(self) -> Callable[[Sequence[Any]], Sequence[Any]]:
        """What the settled program is given, of what Dynamo gives; it knows of neither."""
        order, held = self.order, self.held
        if held is None:
            return lambda args: args if order is None else [args[i] for i in order]

        def with_held(args: Sequence[Any]) -> Sequence[Any]:
            every = [*args, *held()]
            return every if order is None else [every[i] for i in order]

        return with_held

    def called(self, compiled: Call) -> Call:
        """What Dynamo calls: `compiled` is of the settled program, which is let go of."""
        if not self.rewritten:
            return compiled
        for node in self.gm.graph.find_nodes(op="placeholder"):
            node.meta.pop("grapharg", None)  # as Dynamo does with its own: it holds what the first call was given
        if self.order is None and not self.numbers and self.held is None:
            return compiled
        arranged, numbers = self.arranged, sorted(self.numbers.items())

        def call(*args: Any) -> Any:
            return compiled(*arranged(args))

        def call_and_add(*args: Any) -> Any:
            found = list(compiled(*arranged(args)))
            for place, number in numbers:  # each is where it is once those before it are there
                found.insert(place, number.value if number.input is None else args[number.input])
            return found

        return call_and_add if numbers else call


def settled(gm: GraphModule, example_inputs: Sequence[Any]) -> Settled:
    """The program that Dynamo captured, with settled inputs and without regions; `gm` stays as it is.

    >>> found = []
    >>> def backend(gm, example_inputs):
    ...     found.append(settled(gm, example_inputs))
    ...     return found[-1].called(found[-1].gm)
    >>> both = torch.compile(lambda x, y: torch.cat([x, y]).view(x.shape[1], -1), backend=backend, dynamic=True)
    >>> both(torch.ones(2, 4), torch.ones(3, 4)).shape, len(found[0].example_inputs)
    (torch.Size([4, 5]), 5)
    """
    found = _with_settled_inputs(gm, example_inputs)
    whole = without_regions(found.gm)
    if whole is found.gm:
        return found
    return replace(found, gm=without_numpy(whole), rewritten=True, nested=copied_program(found.gm))


def _with_settled_inputs(gm: GraphModule, example_inputs: Sequence[Any]) -> Settled:
    captured = gm
    gm, held = without_held(gm)
    example_inputs = example_inputs if held is None else [*example_inputs, *held()]
    gm = _without_dead_sizes(without_numpy(gm))
    placeholders = gm.graph.find_nodes(op="placeholder")
    sizes = {i: size for i, node in enumerate(placeholders) if (size := symbol_of(_value(node))) is not None}
    fixed = _fixed(gm)
    order = _order(placeholders, sizes, fixed)
    same = order == tuple(range(len(placeholders)))
    numbers = _numbers(gm, {placeholders[i]: i for i in sizes}, fixed)
    if same and not fixed and not numbers:
        return Settled(gm, example_inputs, rewritten=gm is not captured, held=held)
    rewritten = _rewritten(gm, placeholders, sizes, order, fixed)
    if numbers:
        _leave(rewritten, numbers)
    given = [example_inputs[i] for i in order]
    return Settled(rewritten, given, None if same else order, rewritten=True, numbers=numbers, held=held)


def _numbers(gm: GraphModule, sizes: Mapping[Node, int], fixed: Mapping[Node, int]) -> dict[int, KnownNumber]:
    """The outputs that are known numbers, and those that are inputs for the second time, by their places."""
    (outputs,) = gm.graph.output_node().args
    if not isinstance(outputs, (tuple, list)):
        return {}
    found: dict[int, KnownNumber] = {}
    given = set[sympy.Symbol]()
    for place, one in enumerate(outputs):
        if isinstance(one, Node) and one in sizes and one not in fixed:
            size = symbol_of(_value(one))
            if size in given:
                found[place] = KnownNumber(input=sizes[one])
            elif size is not None:
                given.add(size)
        elif (number := fixed.get(one) if isinstance(one, Node) else one) is not None and _is_number(number):
            found[place] = KnownNumber(int(number))
    return found


def _leave(gm: GraphModule, numbers: Mapping[int, KnownNumber]) -> None:
    """Give these no more."""
    output = gm.graph.output_node()
    (outputs,) = output.args
    output.args = (tuple(one for place, one in enumerate(outputs) if place not in numbers),)  # type: ignore[arg-type]
    gm.recompile()


def _without_dead_sizes(gm: GraphModule) -> GraphModule:
    """The program without what it computes of sizes that nobody uses, as where Python has compared two: a program that is rebuilt compares
    others. `gm` itself where there is nothing of that kind.
    """
    dead: dict[Node, None] = {}
    for node in reversed(gm.graph.nodes):
        if dead.keys() >= node.users.keys() and _is_of_sizes_alone(node):
            dead[node] = None
    if not dead:
        return gm
    graph, copies = Graph(), dict[Node, Any]()
    for node in gm.graph.nodes:
        if node not in dead:
            copies[node] = node_copied(graph, node, copies.__getitem__)
    return as_captured(gm, graph)


def _is_of_sizes_alone(node: Node) -> bool:
    """Whether it computes numbers of sizes, and does nothing else."""
    value = _value(node)
    numbers = value if isinstance(value, tuple) else (value,)
    if not numbers or not all(isinstance(one, _NUMBERS) for one in numbers):
        return False
    name = getattr(node.target, "__name__", "")
    is_sym = getattr(node.target, "__module__", None) == "torch" and name.lstrip("_").startswith("sym_")
    return node.op != "placeholder" and (_asks(node) or (node.op == "call_function" and is_sym))


def _fixed(gm: GraphModule) -> dict[Node, int]:
    """The sizes that the program is given, or asks for, and that are fixed by now."""
    found = {}
    for node in gm.graph.nodes:
        value = _value(node)
        number = value.node.expr if isinstance(value, torch.SymInt) else value
        if _asks(node) and _is_number(number) and (node.users or node.op == "placeholder"):
            found[node] = int(number)
    return found


def _asks(node: Node) -> bool:
    """Whether it asks for a size, or computes with what others ask for, and does nothing else."""
    if node.op == "placeholder":
        return isinstance(_value(node), torch.SymInt)
    if node.op == "call_method":
        return node.target in ("size", "stride", "numel", "storage_offset")
    return node.op == "call_function" and getattr(node.target, "__module__", None) in ("_operator", "math")


def _is_number(value: Any) -> bool:
    return bool(value.is_Integer) if isinstance(value, sympy.Expr) else type(value) is int


def _order(placeholders: Sequence[Node], sizes: dict[int, sympy.Symbol], fixed: Mapping[Node, int]) -> tuple[int, ...]:
    """The inputs that stay, in their order: a size goes before the first tensor that has it, and else stays where it is. Dynamo's
    own order where all is in its place.
    """
    first: dict[sympy.Symbol, int] = {}
    for i, size in sizes.items():
        first.setdefault(size, i)
    shapes = [_symbols(_value(node)) for node in placeholders]
    of_tensors = {size for shape in shapes for size in shape}
    order: dict[int, None] = {}
    for i, shape in enumerate(shapes):
        for size in shape:
            if size in first:
                order[first[size]] = None
        if placeholders[i] not in fixed and (i not in sizes or (sizes[i] not in of_tensors and first[sizes[i]] == i)):
            order[i] = None
    return tuple(order)


def _rewritten(
    gm: GraphModule,
    placeholders: Sequence[Node],
    sizes: dict[int, sympy.Symbol],
    order: Sequence[int],
    fixed: Mapping[Node, int],
) -> GraphModule:
    graph, copies = Graph(), dict[Node, Any](fixed)
    by_size = {sizes[i]: i for i in order if i in sizes}
    for i in order:
        copies[placeholders[i]] = node_copied(graph, placeholders[i], copies.__getitem__)
    for i, node in enumerate(placeholders):
        if node not in copies:
            copies[node] = copies[placeholders[by_size[sizes[i]]]]
    unasked = {node for node in gm.graph.nodes if node.users and _of_sizes(node) and fixed.keys() >= node.users.keys()}
    for node in gm.graph.nodes:
        if node.op != "placeholder" and node not in fixed and node not in unasked:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return as_captured(gm, graph)


def _of_sizes(node: Node) -> bool:
    """Whether it gives the sizes of a tensor, and nothing else."""
    return node.op == "call_method" and node.target == "size"


def _value(node: Node) -> Any:
    return node.meta.get("example_value", node.meta.get("val"))


def _symbols(value: Any) -> list[sympy.Symbol]:
    """The sizes that a tensor brings, in Dynamo's order."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return []
    parts = map(symbol_of, (*value.shape, *value.stride(), value.storage_offset()))
    return [size for size in parts if size is not None]
