"""Points spelled as parameters and back: all legal cuts of small graphs, equal islands, and what has no spelling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from fuseplan.errors import PlanError
from fuseplan.graph import Alias, Graph, Op, Ref, TensorType, Value
from fuseplan.segment import Region, Segmentation, check_segmentation
from fuseplan.study.names import Point, Space, choice, decode, encode, neutral, space_of

TYPE = TensorType("float32", (4, 4), (4, 1))


def op(name: str, *reads: str, view: bool = False, mm: bool = False) -> Op:
    target = "aten.view.default" if view else "aten.mm.default" if mm else "aten.softmax.int"
    aliases = (Alias(0, reads[0]),) if view else ()
    return Op(target, tuple(map(Ref, reads)), (), (Value(name, TYPE),), aliases)


def graph(*ops: Op, gives: Sequence[str]) -> Graph:
    found = Graph((Value("x", TYPE),), ops, tuple(map(Ref, gives)))
    found.validate()
    return found


def space(program: Graph, matmuls: tuple[str, ...] = ()) -> Space:
    """One graph called `g`, where all but matmuls are fusible."""

    def runs(name: str, op: int) -> tuple[str, ...]:
        return matmuls if program.ops[op].target == "aten.mm.default" else ("a", "b/wide")

    return space_of(
        {"g": program},
        {"g": [one.target != "aten.mm.default" for one in program.ops]},
        runs,
        plans=("eager", "inductor"),
        launches=("plain", "cudagraph"),
        anchors=("as-is", "proven"),
    )


CHAIN = graph(op("a", "x"), op("b", "a"), op("c", "b"), op("d", "c"), gives=["d"])
DIAMOND = graph(op("a", "x"), op("b", "a"), op("c", "a"), op("d", "b", "c"), gives=["d"])
FORK = graph(op("v", "x", view=True), op("a", "v"), op("b", "v"), op("c", "v", "a"), gives=["a", "b", "c"])
TWO_VIEWS = graph(op("v", "x", view=True), op("w", "v", view=True), op("a", "w"), op("b", "v"), gives=["a", "b"])
# The view may be computed again, what it looks at may not.
FED = graph(op("a", "x"), op("v", "a", view=True), op("b", "v"), op("c", "v"), gives=["b", "c"])
LAYERS = graph(
    op("a", "x"), op("b", "a"), op("m", "b", mm=True), op("c", "m"), op("d", "c"), op("n", "d", mm=True), gives=["n"]
)


def partitions(ops: Sequence[int]) -> Iterator[list[list[int]]]:
    if not ops:
        yield []
        return
    for rest in partitions(ops[1:]):
        yield [[ops[0]], *rest]
        for i, block in enumerate(rest):
            yield [*rest[:i], [ops[0], *block], *rest[i + 1 :]]


def sources(program: Graph, ops: Sequence[int], again: set[int]) -> set[int]:
    """What of `again` the ops read, at once or through one another."""
    found = {program.producer[name] for i in ops for name in program.ops[i].reads if name != "x"} & again
    return found | sources(program, sorted(found), again) if found else found


def connected(program: Graph, block: Sequence[int], again: set[int]) -> bool:
    """Whether the block and what it computes again hang together."""
    whole = set(block) | sources(program, block, again)
    near = {block[0]}
    while True:
        linked = {i for i in whole for name in program.ops[i].reads if name != "x" and program.producer[name] in near}
        linked |= {program.producer[n] for i in near for n in program.ops[i].reads if n != "x"} & whole
        if linked <= near:
            return near == whole
        near |= linked


def all_cuts(program: Graph) -> Iterator[Segmentation]:
    """Every legal cut into connected regions under executor `a`, whatever of the views with several readers runs again."""
    views = [i for i, one in enumerate(program.ops) if one.is_view and len(program.users[one.outputs[0].name]) > 1]
    for bits in range(2 ** len(views)):
        again = {view for number, view in enumerate(views) if bits >> number & 1}
        for blocks in partitions([i for i in range(len(program.ops)) if i not in again]):
            if all(connected(program, block, again) for block in blocks):
                regions = (Region(tuple(b), "a", recompute=tuple(sorted(sources(program, b, again)))) for b in blocks)
                cut = Segmentation(tuple(regions))
                try:
                    check_segmentation(program, cut)
                except PlanError:
                    continue
                yield cut


@pytest.mark.parametrize(
    ("program", "count"),
    [(CHAIN, 8), (DIAMOND, 10), (FORK, 13), (TWO_VIEWS, 12), (FED, 13)],
    ids=["chain", "diamond", "fork", "two", "fed"],
)
def test_every_legal_cut_has_a_spelling_of_its_own(program: Graph, count: int) -> None:
    here = space(program)
    points = [Point.of({"g": cut}) for cut in all_cuts(program)]
    spelled = [encode(here, point) for point in points]
    assert [decode(here, params) for params in spelled] == points
    assert len({frozenset(params.items()) for params in spelled}) == len(points) == count


def test_parameters_say_where_they_are() -> None:
    assert dict(space(FORK).parameters) == {
        "plan": ("cut up", "eager", "inductor"),
        "launch": ("plain", "cudagraph"),
        "anchors": ("as-is", "proven"),
        "g.island0.cut 0-1": ("cut", "join"),
        "g.island0.cut 0-2": ("cut", "join"),
        "g.island0.cut 0-3": ("cut", "join"),
        "g.island0.cut 1-2": ("cut", "join"),  # both read the view, which each may compute for itself
        "g.island0.cut 1-3": ("cut", "join"),
        "g.island0.cut 2-3": ("cut", "join"),
        "g.island0.run 0 aten.view.default": ("aten", "a", "b/wide", "again"),
        "g.island0.run 1 aten.softmax.int": ("aten", "a", "b/wide"),
        "g.island0.run 2 aten.softmax.int": ("aten", "a", "b/wide"),
        "g.island0.run 3 aten.softmax.int": ("aten", "a", "b/wide"),
    }


def test_a_region_runs_as_its_first_op_says() -> None:
    here = space(CHAIN)
    said = {
        "g.island0.cut 1-2": "join",
        "g.island0.run 1 aten.softmax.int": "b/wide",
        "g.island0.run 2 aten.softmax.int": "a",
    }
    point = decode(here, neutral(here) | said | {"launch": "cudagraph", "anchors": "proven"})
    assert point == Point.of({"g": Segmentation((Region((1, 2), "b", "wide"),))}, "cudagraph", "proven")


def test_what_runs_alone_under_aten_is_no_region_of_a_point() -> None:
    alone = tuple(Region((i,), "aten") for i in (3, 2))
    fused = Region((1, 0), "a")
    assert Point.of({"g": Segmentation((*alone, fused))}) == Point.of({"g": Segmentation((Region((0, 1), "a"),))})
    here = space(CHAIN)
    joined = neutral(here) | {"g.island0.cut 0-1": "join"}
    assert decode(here, joined) == Point.of({"g": Segmentation()})


def test_equal_islands_are_cut_alike() -> None:
    here = space(LAYERS)
    assert [island.copies for island in here.islands["g"]] == [((0, 1), (3, 4))]
    assert [name for name in here.parameters if "island" in name] == [
        "g.island0.cut 0-1",
        "g.island0.run 0 aten.softmax.int",
        "g.island0.run 1 aten.softmax.int",
    ]
    both = Point.of({"g": Segmentation((Region((0, 1), "a"), Region((3, 4), "a")))})
    assert decode(here, encode(here, both)) == both
    with pytest.raises(PlanError, match="not a point of the space"):
        encode(here, Point.of({"g": Segmentation((Region((0, 1), "a"),))}))


def test_an_op_of_no_island_has_its_choice_as_well() -> None:
    here = space(LAYERS, matmuls=("padded",))
    assert here.parameters["g.run 2 aten.mm.default"] == ("aten", "padded")
    assert here.parameters["g.run 5 aten.mm.default"] == ("aten", "padded")
    point = Point.of({"g": Segmentation((Region((3, 4), "a"), Region((2,), "padded"), Region((0, 1), "a")))})
    assert decode(here, encode(here, point)) == point


@pytest.mark.parametrize(
    "region",
    [Region((1, 2, 3), "a"), Region((0,), "c"), Region((1,), "a", recompute=(0,)), Region((0, 3), "a")],
    ids=["with an anchor", "unknown executor", "an op that is not cheap", "ops that nothing joins"],
)
def test_what_has_no_spelling_is_refused(region: Region) -> None:
    with pytest.raises(PlanError, match="not a point of the space"):
        encode(space(LAYERS), Point.of({"g": Segmentation((region,))}))


def test_a_plan_with_a_name_says_nothing_about_cuts() -> None:
    here = space(CHAIN)
    params = encode(here, Point("inductor", "cudagraph"))
    assert params == neutral(here) | {"plan": "inductor", "launch": "cudagraph"}
    noise = {name: words[-1] for name, words in here.parameters.items()} | {"plan": "inductor", "anchors": "as-is"}
    assert decode(here, noise) == Point("inductor", "cudagraph")


def test_a_cut_that_is_not_legal_is_refused_with_the_reason() -> None:
    here = space(DIAMOND)
    around = {"g.island0.cut 0-1": "join", "g.island0.cut 1-3": "join", "g.island0.run 0 aten.softmax.int": "a"}
    with pytest.raises(PlanError, match="would wait for itself"):
        decode(here, neutral(here) | around)


def test_words_that_the_space_does_not_know_are_refused() -> None:
    here = space(CHAIN)
    with pytest.raises(PlanError, match=r"'launch' is 'rocket', not one of plain, cudagraph"):
        decode(here, neutral(here) | {"launch": "rocket"})
    with pytest.raises(PlanError, match="has no graph called 'backward'"):
        encode(here, Point.of({"backward": Segmentation()}))
    with pytest.raises(PlanError, match="'plan' is 'magic'"):
        encode(here, Point("magic"))


def test_the_choice_of_a_variant_is_one_word() -> None:
    assert [choice("aten"), choice("nvfuser", "no-views")] == ["aten", "nvfuser/no-views"]
