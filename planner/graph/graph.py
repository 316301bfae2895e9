"""The Graph itself: what capture makes, and what segments, plans and the database speak of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fuseplan.errors import GraphError
from fuseplan.graph import canon, read_json, read_text
from fuseplan.graph.ir import GraphFields, OpaqueType
from fuseplan.graph.limits import place
from fuseplan.graph.printing import graph_expression, listing
from fuseplan.graph.validate import validate


@dataclass(frozen=True, eq=False, repr=False)
class Graph(GraphFields):
    """A program: inputs, small constants, ops in order, outputs (refs, numbers or None), and its symbols.

    >>> from fuseplan.graph import Graph, Op, Ref, TensorType, Value
    >>> x = Value("x", TensorType("float32", (8, 16), (16, 1)))
    >>> y = Value("y", TensorType("float32", (8, 16), (16, 1)))
    >>> graph = Graph((x,), (Op("aten.relu.default", (Ref("x"),), (), (y,)),), (Ref("y"),))
    >>> print(graph)
    def graph(
        x,  # cpu float32[8, 16]
    ):
        y = aten.relu.default(x)  # cpu float32[8, 16]
        return y
    >>> Graph.from_json(graph.to_json()) == graph == Graph.parse(str(graph))
    True
    """

    def validate(self) -> None:
        """Raise GraphError, with the place, unless the graph is well-formed. Opaque ops are well-formed."""
        return self._valid

    @cached_property
    def _valid(self) -> None:
        validate(self)

    @cached_property
    def opaque(self) -> tuple[str, ...]:
        """Why the graph cannot be written down: one reason for each such op or input; empty if it can be."""
        reasons = [f"input {v.name}: {v.type.why}" for v in self.inputs if isinstance(v.type, OpaqueType)]
        for index, op in enumerate(self.ops):
            whys = [value.type.why for value in op.outputs if isinstance(value.type, OpaqueType)]
            why = op.opaque if op.opaque is not None else next(iter(whys), None)
            if why is not None:
                reasons.append(f"{place(index, op.target)}: {why}")
        return tuple(reasons)

    @property
    def key(self) -> str:
        """What the program is, whatever its names: the sha256 of its canonical JSON with all names renumbered.

        Equal for values, symbols and devices under other names, for other hints, and with unused constants or
        symbols; different for everything else. A graph that is malformed or opaque has none: GraphError.
        """
        return self._identity[0]

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices in the order of first use, in which the key numbers them: with the key, where all of it runs."""
        return self._identity[1]

    @cached_property
    def _identity(self) -> tuple[str, tuple[str, ...]]:
        self._refuse_opaque()
        return canon.key(self)

    def to_json(self) -> str:
        """The graph as canonical JSON: one text per graph, one op a line; `from_json` gives the equal graph."""
        self._refuse_opaque()
        return canon.to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Graph:
        """Read what `to_json` wrote; GraphError, with the place, for anything else."""
        graph = cls(*read_json.fields(text))
        graph.validate()
        return graph

    @classmethod
    def parse(cls, text: str) -> Graph:
        """Read what `str` gave, opaque ops included; GraphError, with the line, for anything else."""
        graph = cls(*read_text.fields(text))
        graph.validate()
        return graph

    def _refuse_opaque(self) -> None:
        self.validate()
        if self.opaque:
            more = f" (and {len(self.opaque) - 1} more)" if len(self.opaque) > 1 else ""
            raise GraphError(f"cannot be written down: {self.opaque[0]}{more}")

    def __eq__(self, other: object) -> bool:
        """Equal to the letter, names included; for the same program under other names compare keys."""
        return self is other or (repr(self) == repr(other) if isinstance(other, Graph) else NotImplemented)

    def __hash__(self) -> int:
        return hash(repr(self) if self.opaque else self.key)

    def __repr__(self) -> str:
        return graph_expression(self)

    def __str__(self) -> str:
        return listing(self)
