"""What stands in a picture of a graph: boxes within boxes, and the arrows between them. Where it goes is the layout's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fuseplan.drawing.fold import Hulled, Stretch, folded, units_of
from fuseplan.graph import Graph, Op, Ref, TensorType, Value
from fuseplan.graph.ir import Arg, Type
from fuseplan.graph.printing import op_line, type_text
from fuseplan.graph.words import counted
from fuseplan.segment import Segmentation, is_anchor

WHOLE = 48
"""Ops of the largest graph of which everything is drawn, its inputs and outputs too."""
MOST_INSIDE = 48
"""Ops of the largest region whose inside is drawn."""
MOST_BOXES = 400
"""Boxes of the largest picture; of a graph with more, less is shown."""
_LONGEST = 30
_SHORT = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}


@dataclass(eq=False)
class Rectangle:
    """One rectangle: an op, or a hull with others inside. `kind` is a class of the style sheet."""

    kind: str
    lines: tuple[str, ...] = ()
    hint: str = ""
    executor: str = ""
    number: int | None = None
    inside: list[Rectangle] = field(default_factory=list)


@dataclass(frozen=True)
class Arrow:
    """From one box to another, with what goes along it."""

    first: Rectangle
    last: Rectangle
    hint: str


@dataclass
class Picture:
    """All boxes from the top, in an order in which they may run, and the arrows between those that hold no others."""

    boxes: list[Rectangle]
    arrows: list[Arrow]
    counts: Counter[str]
    """How many regions each executor has in the graph; under "" how many anchors there are."""
    alone: int = 0
    """Ops of a cut graph that are in no region."""


def picture(graph: Graph, segmentation: Segmentation | None, labels: Mapping[int, str]) -> Picture:
    """Choose what is shown of a graph."""
    return _Drawer(graph, units_of(graph, segmentation), labels).picture()


class _Drawer:
    def __init__(self, graph: Graph, units: Sequence[Hulled], labels: Mapping[int, str]) -> None:
        self.graph, self.units, self.labels = graph, units, labels
        self.whole = len(graph.ops) <= WHOLE
        self.most_inside = MOST_INSIDE
        self.home = {op: number for number, unit in enumerate(units) for op in unit.ops}
        self.place: dict[tuple[int, int], Rectangle] = {}  # of an op in a unit
        self.turn: dict[int, tuple[int, int]] = {}  # of a unit: the frame that it is drawn in, and its turn there

    def picture(self) -> Picture:
        blocks = self._blocks()
        numbers = {id(unit): number for number, unit in enumerate(self.units)}
        boxes = []
        for frame, block in enumerate(blocks):
            for turn, units in enumerate(block.turns):
                self.turn.update({numbers[id(unit)]: (frame, turn) for unit in units})
            boxes += self._block(block, numbers)
        arrows: dict[tuple[int, int], Arrow] = {}
        for arrow in self._arrows():
            arrows.setdefault((id(arrow.first), id(arrow.last)), arrow)
        if self.whole:
            self._ends(boxes, arrows)
        counts = Counter(unit.executor for unit in self.units if unit.number is not None)
        counts[""] = sum(map(is_anchor, self.graph.ops))
        alone = sum(unit.number is None and bool(unit.executor) for unit in self.units)
        return Picture(boxes, list(arrows.values()), counts, alone)

    def _blocks(self) -> list[Stretch]:
        """What is drawn; where that would be too much, regions are closed, and then ops and regions lumped together."""
        if self.whole:
            return [Stretch(((unit,),)) for unit in self.units]
        blocks = folded(self.graph, self.units)
        if sum(map(self._boxes, blocks)) > MOST_BOXES:
            self.most_inside = 1
        if sum(map(self._boxes, blocks)) > MOST_BOXES:
            blocks = _lumped(blocks, lambda block: block.turns[0][0].number is None)
        while sum(map(self._boxes, blocks)) > MOST_BOXES:
            blocks = _lumped(blocks, lambda _: True, 2)
        return blocks

    def _boxes(self, block: Stretch) -> int:
        if _is_lump(block):
            return 1
        return sum(len(unit.drawn) if self._is_open(unit) else 1 for unit in block.turns[0])

    def _is_open(self, unit: Hulled) -> bool:
        return len(unit.drawn) <= self.most_inside

    def _block(self, block: Stretch, numbers: Mapping[int, int]) -> list[Rectangle]:
        if _is_lump(block):
            ops = [op for unit in block.turns[0] for op in unit.ops]
            box = Rectangle("lump", (counted(len(ops), "op"), *_most(self.graph, ops)), _names(self.graph, ops))
            self.place.update({(numbers[id(unit)], op): box for unit in block.turns[0] for op in unit.drawn})
            return [box]
        drawn = [self._unit(unit, numbers[id(unit)]) for unit in block.turns[0]]
        for other in block.turns[1:]:
            for like, unit in zip(block.turns[0], other, strict=True):
                for first, op in zip(like.drawn, unit.drawn, strict=True):
                    self.place[numbers[id(unit)], op] = self.place[numbers[id(like)], first]
        times = len(block.turns)
        if times == 1:
            return drawn
        many = counted(sum(len(unit.ops) for unit in block.turns[0]), "op")
        hint = f"{times} times the same {many} one after the other, drawn once"
        return [Rectangle("repeat", (f"×{times}",), hint, inside=drawn)]

    def _unit(self, unit: Hulled, number: int) -> Rectangle:
        if not self._is_open(unit):
            box = Rectangle("closed", _most(self.graph, unit.ops), _names(self.graph, unit.ops))
            self.place.update(dict.fromkeys(((number, op) for op in unit.drawn), box))
            inside = [box]
        else:
            inside = []
            for op in unit.drawn:
                inside.append(self._op(op, unit.executor if unit.number is None else "", op in unit.again))
                self.place[number, op] = inside[-1]
        if unit.number is None and (unit.executor or len(inside) == 1):
            return inside[0]
        return self._hull(unit, inside)

    def _hull(self, unit: Hulled, inside: list[Rectangle]) -> Rectangle:
        many = counted(len(unit.ops), "op")
        if unit.number is None:
            return Rectangle("island", (many,), f"an island: {many} that may be fused", inside=inside)
        variant = "" if unit.variant == "default" else f" {unit.variant}"
        label = self.labels.get(unit.number, "")
        name = f"{unit.executor}{variant}"
        lines = (name, *([_cut(label)] if label else []))
        hint = f"region {unit.number}: {many} under {name}" + (f", {label}" if label else "")
        return Rectangle("region", lines, hint, unit.executor, unit.number, inside)

    def _op(self, index: int, executor: str, again: bool) -> Rectangle:
        op = self.graph.ops[index]
        kind = "anchor" if is_anchor(op) else "view" if op.is_view else "op"
        given = next((short_type(value.type) for value in op.outputs), "")
        hint = f"op {index}: {op_line(op)}" + ("; computed once more here" if again else "")
        return Rectangle(f"{kind} again" if again else kind, (_cut(short_name(op)), _cut(given)), hint[:1000], executor)

    def _arrows(self) -> Iterator[Arrow]:
        producer, types = self.graph.producer, self.graph.types
        for number, unit in enumerate(self.units):
            inside = set(unit.drawn)
            for op in unit.drawn:
                for name in self.graph.ops[op].reads:
                    made = producer.get(name)
                    source = number if made in inside else self.home.get(made, -1) if made is not None else -1
                    if made is None or source < 0:
                        continue
                    first, last = self.place.get((source, made)), self.place[number, op]
                    (frame, turn), (other, its) = self.turn[source], self.turn[number]
                    if first is not None and first is not last and (frame != other or turn == its):
                        yield Arrow(first, last, f"{name}: {type_text(types[name])}")

    def _ends(self, boxes: list[Rectangle], arrows: dict[tuple[int, int], Arrow]) -> None:
        """The inputs and the outputs of the graph, before and after all else."""
        read: dict[str, list[Rectangle]] = {}
        for (number, op), box in self.place.items():
            for name in self.graph.ops[op].reads:
                if self.graph.producer.get(name) not in self.units[number].drawn:
                    read.setdefault(name, []).append(box)
        given = [(value, "input") for value in self.graph.inputs]
        given += [(constant.value, "constant") for constant in self.graph.constants]
        tops: dict[str, Rectangle] = {}
        for value, kind in given:
            top = tops[value.name] = Rectangle(
                "end", (_cut(value.name), _cut(short_type(value.type))), _told(kind, value)
            )
            for box in read.get(value.name, ()):
                arrows[id(top), id(box)] = Arrow(top, box, _told(kind, value))
        boxes[:0] = list(tops.values())
        for name in dict.fromkeys(arg.name for arg in _refs(self.graph.outputs)):
            value = Value(name, self.graph.types[name])
            bottom = Rectangle("end", (_cut(f"out {name}"), _cut(short_type(value.type))), _told("output", value))
            made = self.graph.producer.get(name)
            source = tops[name] if made is None else self.place[self.home[made], made]
            arrows[id(source), id(bottom)] = Arrow(source, bottom, _told("output", value))
            boxes.append(bottom)


def short_name(op: Op) -> str:
    """What an op is called in a picture: without its namespace, and its overload where that is the default.

    >>> short_name(Op("aten.add.Tensor", (), (), ())), short_name(Op("aten.relu.default", (), (), ()))
    ('add', 'relu')
    """
    namespace, _, rest = op.target.partition(".")
    name = rest.partition(".")[0] or namespace
    return name if namespace in ("aten", "prims") else f"{namespace}.{name}"


def short_type(kind: Type) -> str:
    """A type in a few letters.

    >>> short_type(TensorType("bfloat16", (8, "s0"), ("s0", 1)))
    'bf16[8, s0]'
    """
    if not isinstance(kind, TensorType):
        return type_text(kind)
    letters = kind.dtype.rstrip("0123456789")
    dtype = kind.dtype.replace(letters, _SHORT[letters], 1) if letters in _SHORT else kind.dtype
    return f"{dtype}[{', '.join(map(str, kind.shape))}]"


def _lumped(blocks: Sequence[Stretch], may: Callable[[Stretch], bool], most: int | None = None) -> list[Stretch]:
    """Neighbours that may be lumped together, are: up to `most` of them."""
    groups: list[list[Stretch]] = []
    growing = False
    for block in blocks:
        can = may(block)
        if can and growing and (most is None or len(groups[-1]) < most):
            groups[-1].append(block)
        else:
            groups.append([block])
        growing = can
    return [group[0] if len(group) == 1 else _lump(group) for group in groups]


def _lump(blocks: Sequence[Stretch]) -> Stretch:
    return Stretch((tuple(unit for block in blocks for turn in block.turns for unit in turn),))


def _is_lump(block: Stretch) -> bool:
    return len(block.turns) == 1 and len(block.turns[0]) > 1


def _most(graph: Graph, ops: Sequence[int]) -> tuple[str, ...]:
    """The ops that stand there most often."""
    counted = Counter(short_name(graph.ops[op]) for op in ops).most_common()
    lines = [_cut(name if times == 1 else f"{name} ×{times}") for name, times in counted[:6]]
    return (*lines, f"and {len(counted) - 6} more kinds") if len(counted) > 6 else tuple(lines)


def _names(graph: Graph, ops: Sequence[int]) -> str:
    text = f"ops {min(ops)} to {max(ops)}: " + ", ".join(short_name(graph.ops[op]) for op in ops[:200])
    return text if len(text) <= 1000 else f"{text[:999]}…"


def _told(kind: str, value: Value) -> str:
    return f"{kind} {value.name}: {type_text(value.type)}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _refs(args: Sequence[Arg]) -> Iterator[Ref]:
    for arg in args:
        if isinstance(arg, Ref):
            yield arg
        elif isinstance(arg, tuple):
            yield from _refs(arg)
