"""Which sets of ops of one graph are the same computation: cheaper than the keys of their regions, to sort places by."""

from __future__ import annotations

from collections.abc import Sequence

from fuseplan.graph import Arg, Graph, Ref
from fuseplan.solver.dag import Links

Likeness = tuple[object, ...]
HUB = 16
"""What more ops than this read belongs to no neighbourhood."""


class Alike:
    """Sets of ops with an equal `of` call the same with the same among themselves, and are needed alike outside.

    >>> from fuseplan.graph import Op, TensorType, Value
    >>> kind = TensorType("float32", (8,), (1,))
    >>> ops = [Op("aten.exp.default", (Ref(x),), (), (Value(y, kind),)) for x, y in ("ab", "bc", "cd")]
    >>> graph = Graph((Value("a", kind),), tuple(ops), (Ref("d"),))
    >>> alike = Alike(graph, Links.of(graph))
    >>> alike.of((0, 1)) == alike.of((1, 2)), alike.of((0, 1)) == alike.of((1,))
    (True, False)
    """

    def __init__(self, graph: Graph, links: Links) -> None:
        self.graph, self.links = graph, links
        self._words: dict[object, int] = {}
        self._called = [self._number(self._call(i)) for i in range(len(graph.ops))]

    def of(self, ops: Sequence[int]) -> Likeness:
        """What these ops, in order, are, whatever their names."""
        inside = set(ops)
        numbers: dict[str, int] = {}
        parts: list[object] = []
        for i in ops:
            op = self.graph.ops[i]
            names = (*op.reads, *(value.name for value in op.outputs))
            needed = i in self.links.kept or not inside.issuperset(self.links.users[i])
            parts.append((self._called[i], needed, tuple([numbers.setdefault(name, len(numbers)) for name in names])))
        return tuple(parts)

    def around(self, op: int) -> tuple[Likeness, int]:
        """What stands within two steps of an op, and where in it the op is."""
        near = {op}
        for _ in range(2):
            ends = [i for i in near if len(self.links.users[i]) <= HUB]
            near |= {j for i in ends for j in (*self.links.before[i], *self.links.users[i])}
        ops = sorted(near)
        return self.of(ops), ops.index(op)

    def _call(self, i: int) -> object:
        op = self.graph.ops[i]
        aliases = tuple(alias.output for alias in op.aliases)
        results = tuple(value.type for value in op.outputs)
        return op.target, self._said(op.args), self._said(op.kwargs), results, aliases, len(op.mutates), op.random

    def _said(self, arg: Arg | tuple[tuple[str, Arg], ...]) -> object:
        """An argument with the types of values in place of their names; numbers as they are written, 0 being no False."""
        if isinstance(arg, tuple):
            return tuple([self._said(item) for item in arg])
        return self.graph.types[arg.name] if isinstance(arg, Ref) else repr(arg)

    def _number(self, said: object) -> int:
        return self._words.setdefault(said, len(self._words))
