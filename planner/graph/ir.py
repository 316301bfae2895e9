"""The words of the one intermediate representation, from a size up to an op; `graph` puts them together.

Capture makes them, everything else reads them. All classes are frozen; names are for people and never reach the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from fuseplan.graph.literals import Printed

Dim = int | str
"""A size or stride: an int, or an integer expression over symbols such as ``"s0"`` or ``"2*s0 + 1"``."""


@dataclass(frozen=True, slots=True, repr=False)
class TensorType(Printed):
    """What is known of a tensor before it exists."""

    dtype: str
    shape: tuple[Dim, ...]
    stride: tuple[Dim, ...]
    device: str = "cpu"


@dataclass(frozen=True, slots=True, repr=False)
class ScalarType(Printed):
    """A number that is known at run time only: a size of a dynamic graph, or what ``item()`` gave."""

    kind: str  # "int", "float" or "bool"
    expr: str  # over symbols; a lone new symbol for an input


@dataclass(frozen=True, slots=True, repr=False)
class NoneType(Printed):
    """An output that an operator leaves empty, such as a gradient that nobody asked for."""


@dataclass(frozen=True, slots=True, repr=False)
class OpaqueType(Printed):
    """A value that cannot be written down; `why` says so in words."""

    why: str


Type = TensorType | ScalarType | NoneType | OpaqueType


@dataclass(frozen=True, slots=True, repr=False)
class Value(Printed):
    """A name and the type of what it stands for; defined once, by an input, a constant or an op."""

    name: str
    type: Type


@dataclass(frozen=True, slots=True, repr=False)
class Ref(Printed):
    """The use of a value."""

    name: str


@dataclass(frozen=True, slots=True, repr=False)
class Enum(Printed):
    """One of torch's own constants: ``Enum("dtype", "float32")``, likewise device, layout, memory_format."""

    kind: str
    name: str


Arg: TypeAlias = "bool | int | float | complex | str | Ref | Enum | tuple[Arg, ...] | None"


@dataclass(frozen=True, slots=True, repr=False)
class Alias(Printed):
    """Output number `output` of an op shares storage with the value called `value`."""

    output: int
    value: str


@dataclass(frozen=True, slots=True, repr=False)
class Constant(Printed):
    """A small tensor whose contents belong to the program; `data` is its bytes (C order, little endian) in hex."""

    value: Value
    data: str


@dataclass(frozen=True, slots=True, repr=False)
class Symbol(Printed):
    """A dynamic size. The range belongs to the program; the hint is one size that was seen, and is no part of the key."""

    name: str
    low: int = 0
    high: int | None = None
    hint: int | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Op(Printed):
    """One call of an operator, with every multi-output spelled out (there is no getitem)."""

    target: str  # "aten.add.Tensor"
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...]
    outputs: tuple[Value, ...]
    aliases: tuple[Alias, ...] = ()
    mutates: tuple[str, ...] = ()
    random: bool = False
    opaque: str | None = None  # why it cannot be written down, in words

    def __eq__(self, other: object) -> bool:
        """Strict where tuples are not: 0, 0.0, -0.0 and False are four constants, and nan is itself."""
        return self is other or (repr(self) == repr(other) if isinstance(other, Op) else NotImplemented)

    def __hash__(self) -> int:
        return hash((self.target, self.outputs))

    @property
    def is_view(self) -> bool:
        """Whether the op moves no data: every tensor it gives shares storage with one that it got."""
        shared = {alias.output for alias in self.aliases}
        tensors = {i for i, value in enumerate(self.outputs) if isinstance(value.type, TensorType)}
        return bool(tensors) and not self.mutates and tensors <= shared

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The names of the values that the op uses, each once, in order."""
        names: dict[str, None] = {}
        stack: list[Arg] = [value for _, value in reversed(self.kwargs)]
        stack.extend(reversed(self.args))
        while stack:
            arg = stack.pop()
            if isinstance(arg, Ref):
                names[arg.name] = None
            elif isinstance(arg, tuple):
                stack.extend(reversed(arg))
        return tuple(names)


@dataclass(frozen=True, eq=False, repr=False)
class GraphFields:
    """What a Graph consists of, and what is found in it by name: all that writing, checking and printing one needs."""

    inputs: tuple[Value, ...]
    ops: tuple[Op, ...]
    outputs: tuple[Arg, ...]
    constants: tuple[Constant, ...] = ()
    symbols: tuple[Symbol, ...] = ()

    @cached_property
    def types(self) -> Mapping[str, Type]:
        """The type of each value, by name."""
        values = [*self.inputs, *(constant.value for constant in self.constants)]
        values.extend(value for op in self.ops for value in op.outputs)
        return {value.name: value.type for value in values}

    @cached_property
    def producer(self) -> Mapping[str, int]:
        """The index of the op that gives each value; inputs and constants have none."""
        return {value.name: index for index, op in enumerate(self.ops) for value in op.outputs}

    @cached_property
    def users(self) -> Mapping[str, tuple[int, ...]]:
        """The indices of the ops that read each value, in order; empty for one that no op reads."""
        found: dict[str, list[int]] = {name: [] for name in self.types}
        for index, op in enumerate(self.ops):
            for name in op.reads:
                found.setdefault(name, []).append(index)
        return {name: tuple(indices) for name, indices in found.items()}

    @cached_property
    def symbol_holders(self) -> Mapping[str, str]:
        """For each symbol, the first value that is that symbol alone, where there is one."""
        names = {symbol.name for symbol in self.symbols}
        found: dict[str, str] = {}
        for name, kind in self.types.items() if names else ():
            if isinstance(kind, ScalarType) and kind.expr in names:
                found.setdefault(kind.expr, name)
        return found
