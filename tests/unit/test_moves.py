"""Moves: what each does, what it refuses, and that a legal way leads from any cut to any other."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuts import all_apart, wander
from fuseplan.errors import PlanError
from fuseplan.graph import Alias, Graph, Op, Ref, TensorType, Value
from fuseplan.segment import Region, Segmentation, check_segmentation, maximal_regions
from fuseplan.segment.moves import Move, apply, moves_between, tidy

TYPE = TensorType("float32", (4, 4), (4, 1))


def op(name: str, target: str, *reads: str, view: bool = False, random: bool = False, writes: str = "") -> Op:
    aliases = (Alias(0, reads[0]),) if view or writes else ()
    args = tuple(Ref(read) for read in reads)
    return Op(f"aten.{target}.default", args, (), (Value(name, TYPE),), aliases, (writes,) if writes else (), random)


def program(*ops: Op, outputs: tuple[str, ...]) -> Graph:
    graph = Graph(tuple(Value(name, TYPE) for name in "xy"), ops, tuple(Ref(name) for name in outputs))
    graph.validate()
    return graph


def cut(*regions: Region) -> Segmentation:
    return Segmentation(regions)


def fused(*ops: int, recompute: tuple[int, ...] = (), executor: str = "nvfuser") -> Region:
    return Region(ops, executor, recompute=recompute)


VIEWS = program(
    op("a", "view", "x", view=True),
    op("b", "permute", "a", view=True),
    op("c", "gelu", "b"),
    op("d", "t", "c", view=True),
    op("e", "neg", "d"),
    op("f", "view", "e", view=True),
    outputs=("f",),
)
"""Views before, inside and after what computes."""

FAN = program(
    op("d", "exp", "x"),
    op("e", "neg", "d"),
    op("m", "mm", "e", "e"),
    op("f", "add", "m", "d"),
    op("g", "relu", "f"),
    outputs=("g",),
)
"""A cheap op that is read before a matmul and after it."""

WHOLE = cut(fused(0, 1, 2, 3, 4, 5))


@pytest.mark.parametrize(
    ("graph", "start", "move", "result"),
    [
        (VIEWS, WHOLE, Move("peel-head", region=2), cut(fused(2, 3, 4, 5))),
        (VIEWS, WHOLE, Move("peel-tail", region=0), cut(fused(0, 1, 2, 3, 4))),
        (VIEWS, WHOLE, Move("peel-both", region=0), cut(fused(2, 3, 4))),
        (VIEWS, cut(fused(2, 3, 4, recompute=(0, 1))), Move("peel-head", region=2), cut(fused(2, 3, 4))),
        (VIEWS, cut(fused(2, 3, 4)), Move("keep", region=3), WHOLE),
        (VIEWS, WHOLE, Move("evict", (5,)), cut(fused(0, 1, 2, 3, 4))),
        (VIEWS, cut(fused(0, 1), fused(2)), Move("evict", (0, 1)), cut(fused(2))),
        (VIEWS, cut(fused(0, 1), fused(2)), Move("evict", (2,)), cut(fused(0, 1))),
        (VIEWS, cut(fused(2), fused(5)), Move("merge-up", (3,)), cut(fused(2, 3), fused(5))),
        (VIEWS, cut(fused(2), fused(5)), Move("merge-down", (4,)), cut(fused(2), fused(4, 5))),
        (VIEWS, cut(fused(2), fused(3, 4, executor="inductor")), Move("merge-up", (3, 4)), cut(fused(2, 3, 4))),
        (VIEWS, WHOLE, Move("split", (4, 5)), cut(fused(0, 1, 2, 3), fused(4, 5))),
        (FAN, cut(fused(0), fused(1), fused(3)), Move("recompute", (0,)),
         cut(fused(1, recompute=(0,)), fused(3, recompute=(0,)))),
        (FAN, cut(fused(0, 1), fused(3)), Move("recompute", (0,)), cut(fused(0, 1), fused(3, recompute=(0,)))),
        (FAN, cut(fused(1), fused(3)), Move("recompute", (0,), 3), cut(fused(1), fused(3, recompute=(0,)))),
        (FAN, cut(fused(0, 1), fused(3)), Move("recompute", (0,), 1), cut(fused(1, recompute=(0,)), fused(3))),
        (FAN, cut(fused(1, recompute=(0,)), fused(3, recompute=(0,))), Move("reuse", (0,)), cut(fused(1), fused(3))),
        (FAN, cut(fused(3, 4, recompute=(0,))), Move("split", (4,)), cut(fused(3, recompute=(0,)), fused(4))),
        (FAN, cut(fused(3, 4, recompute=(0,))), Move("evict", (3,)), cut(fused(4))),
        (FAN, cut(fused(3, recompute=(0,)), fused(4)), Move("merge-up", (4,)), cut(fused(3, 4, recompute=(0,)))),
        (FAN, cut(), Move("run", (3,), executor="nvfuser"), cut(fused(3))),
        (FAN, cut(fused(3, 4)), Move("run", (), 4, "aten", "flat"), cut(Region((3, 4), "aten", "flat"))),
    ],
    ids=lambda value: value.text if isinstance(value, Move) else "",
)  # fmt: skip
def test_what_a_move_does(graph: Graph, start: Segmentation, move: Move, result: Segmentation) -> None:
    assert apply(graph, start, move) == result


@pytest.mark.parametrize(
    ("graph", "start", "move", "complaint"),
    [
        (VIEWS, cut(fused(2, 3, 4)), Move("peel-head", region=2), "has no view at its head"),
        (VIEWS, cut(fused(0, 1, 2)), Move("peel-both", region=2), "has no view at its tail"),
        (VIEWS, WHOLE, Move("keep", region=2), "no view stands beside"),
        (VIEWS, cut(), Move("evict", (2,)), "is in no region"),
        (VIEWS, cut(), Move("evict", (9,)), "there is no op 9; the graph has 6"),
        (VIEWS, cut(fused(0, 1, 2)), Move("evict", (0, 1)), "not a region of views"),
        (VIEWS, WHOLE, Move("evict", (2,)), "would wait for itself"),
        (VIEWS, WHOLE, Move("split", (2,)), "would wait for itself"),
        (VIEWS, WHOLE, Move("split", (0, 1, 2, 3, 4, 5)), "are not a part of the region"),
        (VIEWS, cut(fused(2), fused(4)), Move("split", (2, 4)), "are not a part of the region"),
        (VIEWS, cut(fused(4)), Move("merge-up", (3,)), "so there is no home for it"),
        (VIEWS, cut(fused(4)), Move("merge-up", (3,), 4), "merge it the other way"),
        (VIEWS, cut(fused(1)), Move("merge-up", (3,), 1), "would wait for itself"),
        (VIEWS, cut(fused(1), fused(3, 4)), Move("merge-up", (3,)), "not one op of nobody, nor all of a region"),
        (VIEWS, WHOLE, Move("merge-up", (0, 1, 2, 3, 4, 5), 0), "is in the region at op 0 already"),
        (FAN, cut(fused(1)), Move("recompute", (0,), 3), "is in no region"),
        (FAN, cut(fused(4)), Move("recompute", (0,)), "no region reads op 0"),
        (FAN, cut(fused(1, recompute=(0,))), Move("recompute", (0,), 1), "computes op 0 (aten.exp) already"),
        (FAN, cut(fused(0, 1)), Move("recompute", (1,), 1), "nothing else in the region at op 0 reads op 1"),
        (FAN, cut(fused(1)), Move("reuse", (0,), 1), "is not recomputed there"),
        (FAN, cut(fused(0, 3)), Move("run", (), 0, "nvfuser"), "runs under nvfuser"),
        (FAN, cut(), Move("melt"), "there is no move 'melt'"),
        (program(op("a", "rand", "x", random=True), op("b", "exp", "a"), outputs=("b",)), cut(fused(1)),
         Move("recompute", (0,)), "draws random numbers"),
    ],
    ids=lambda value: value.text if isinstance(value, Move) else "",
)  # fmt: skip
def test_what_a_move_refuses(graph: Graph, start: Segmentation, move: Move, complaint: str) -> None:
    with pytest.raises(PlanError) as error:
        apply(graph, start, move)
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    ("move", "text"),
    [
        (Move("evict", (7,), target="aten.view"), "evict op 7 (aten.view)"),
        (Move("merge-up", (7, 8, 9), 3, target="aten.t"), "merge ops 7 (aten.t) and 8-9 up into the region at op 3"),
        (Move("split", (7, 8), 3), "split ops 7 and 8 off the region at op 3"),
        (Move("recompute", (5,), target="aten.exp"), "recompute op 5 (aten.exp) in each region that reads it"),
        (Move("run", (), 3, "aten", "padded"), "run the region at op 3 under aten (padded)"),
    ],
)
def test_a_move_in_words(move: Move, text: str) -> None:
    assert move.text == text


# From one cut to another


def texts(graph: Graph, start: Segmentation, target: Segmentation) -> list[str]:
    return [move.text for move in moves_between(graph, start, target)]


def test_a_way_that_a_person_can_read() -> None:
    assert texts(VIEWS, WHOLE, cut(fused(2, 3, 4))) == ["peel the views at both ends off the region at op 0"]
    assert texts(VIEWS, WHOLE, cut(fused(0, 1, 2, 3, 4))) == ["peel the views at the tail off the region at op 0"]
    assert texts(VIEWS, WHOLE, cut(fused(2, executor="inductor"), fused(4))) == [
        "peel the views at both ends off the region at op 0",
        "split op 4 (aten.neg) off the region at op 2",
        "evict op 3 (aten.t)",
        "run the region at op 2 under inductor",
    ]
    assert texts(FAN, cut(fused(0, 1), fused(3, 4)), cut(fused(1, recompute=(0,)), fused(3, 4, recompute=(0,)))) == [
        "recompute op 0 (aten.exp) in the region at op 0",
        "recompute op 0 (aten.exp) in the region at op 3",
    ]
    assert texts(FAN, cut(), cut(fused(3, 4))) == [
        "run op 3 (aten.add) under nvfuser",
        "merge op 4 (aten.relu) up into the region at op 3",
    ]
    assert texts(FAN, cut(fused(3, 4)), cut(fused(3, 4))) == []


def test_a_cut_that_is_not_legal_has_no_way_to_it() -> None:
    with pytest.raises(PlanError, match="wait for itself"):
        moves_between(FAN, cut(), cut(fused(1, 3)))


def random_graph(random: Random, size: int) -> Graph:
    """Views, writes, random numbers, values that many read, and values that nobody does."""
    names, ops = ["x", "y"], list[Op]()
    for i in range(size):
        reads = tuple(dict.fromkeys(random.choice(names[-6:] if random.random() < 0.7 else names) for _ in range(2)))
        kind = random.random()
        if kind < 0.25:
            ops.append(op(f"v{i}", "view", reads[0], view=True))
        elif kind < 0.3:
            ops.append(op(f"v{i}", "rand", *reads, random=True))
        elif kind < 0.35:
            ops.append(op(f"v{i}", "copy_", *reads, writes=reads[0]))
        else:
            ops.append(op(f"v{i}", "add", *reads))
        names.append(f"v{i}")
    return program(*ops, outputs=tuple(random.sample(names[2:], 2)))


def walk(graph: Graph, start: Segmentation, moves: tuple[Move, ...]) -> Segmentation:
    """Where the moves lead; each checks that it may be made."""
    for move in moves:
        start = apply(graph, start, move)
    return start


def some_cut(graph: Graph, random: Random) -> Segmentation:
    begin = random.choice([cut(), all_apart(graph), maximal_regions(graph, [True] * len(graph.ops), "one")])
    try:
        check_segmentation(graph, begin)
    except PlanError:  # what ties two islands may be the order of writes, which the greedy cut at 64 ops does not weigh
        begin = cut()
    return wander(graph, begin, random, 4 * len(graph.ops))[0]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 14))
def test_a_legal_way_leads_from_any_cut_to_any_other(seed: int, size: int) -> None:
    check_a_way(Random(seed), size)


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", range(2, 24))
def test_legal_ways_in_larger_graphs(size: int) -> None:
    for seed in range(250):
        check_a_way(Random(1000 * seed + size), size)


def check_a_way(random: Random, size: int) -> None:
    graph = random_graph(random, size)
    start, target = some_cut(graph, random), some_cut(graph, random)
    assert walk(graph, start, moves_between(graph, start, target)) == tidy(graph, target)


TRAPS = {
    "it recomputes what reads it": (
        program(
            op("a", "view", "y", view=True), op("b", "add", "x", "a"), op("c", "add", "b", "a"), op("d", "t", "a", view=True),
            op("e", "add", "a", "c"), outputs=("a", "e"),
        ),
        cut(fused(0, 2, 3, 4, recompute=(1,))),
        cut(fused(0, 1, 2, 4), fused(3)),
    ),
    "they wait for each other but for what one recomputes": (
        program(
            op("a", "view", "x", view=True), op("b", "add", "y", "a"), op("c", "add", "a", "b"), outputs=("c", "a"),
        ),
        cut(fused(1), fused(2)),
        cut(fused(0, 2), fused(1, recompute=(0,))),
    ),
    "the pieces are together what neither has": (
        program(
            op("o", "exp", "x"), op("c", "neg", "o"), op("p", "add", "c", "y"), op("z", "add", "p", "o"), outputs=("z", "c"),
        ),
        cut(fused(0, 2, 3, recompute=(1,))),
        cut(fused(0, 3), fused(1, recompute=(0,)), fused(2)),
    ),
}  # fmt: skip
"""Pairs of cuts between which the shortest ways are not legal."""


@pytest.mark.parametrize("trap", TRAPS)
def test_a_legal_way_where_the_near_one_is_not(trap: str) -> None:
    graph, start, target = TRAPS[trap]
    for one, other in ((start, target), (target, start)):
        assert walk(graph, one, moves_between(graph, one, other)) == tidy(graph, other)


def test_a_large_graph_costs_per_op_what_a_small_one_does() -> None:
    """Counted in what is looked at, not in time: each op is asked for its reads a bounded number of times."""
    asked = {size: questions(size) / size for size in (200, 2000)}
    assert asked[2000] < 1.5 * asked[200]


def questions(size: int) -> int:
    """How often the ops of a graph of that size are asked what they read, on the way between two cuts of it."""
    plain = random_graph(Random(size), size)
    count = 0

    class Asked(Op):
        @property
        def reads(self) -> tuple[str, ...]:  # type: ignore[override]
            nonlocal count
            count += 1
            return super().reads

    ops = tuple(Asked(o.target, o.args, o.kwargs, o.outputs, o.aliases, o.mutates, o.random) for o in plain.ops)
    graph = Graph(plain.inputs, ops, plain.outputs)
    start, target = (fours(graph, shift) for shift in (0, 2))
    count = 0
    assert len(moves_between(graph, start, target)) > size / 4
    return count


def fours(graph: Graph, shift: int) -> Segmentation:
    """Each four ops in a row: neighbours in the order of the graph can always run together."""
    size = len(graph.ops)
    return cut(*(fused(*range(i, min(i + 4, size))) for i in range(shift, size, 4)))
