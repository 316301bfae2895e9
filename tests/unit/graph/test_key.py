"""What a key sees and what it does not."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuseplan import GraphError
from fuseplan.graph import Alias, Constant, Enum, Graph, Op, Ref, ScalarType, Symbol, TensorType, Value
from graph_changes import NUMBERS, Renaming, changes, moved, used_symbols
from strategies import DEVICES, graphs

F32 = TensorType("float32", (4,), (1,))


def one_op(*args: Any, symbols: tuple[Symbol, ...] = (), kind: TensorType = F32, **kwargs: Any) -> Graph:
    op = Op("aten.add.Tensor", (Ref("x"), *args), tuple(sorted(kwargs.items())), (Value("y", kind),))
    return Graph((Value("x", kind),), (op,), (Ref("y"),), (), symbols)


@st.composite
def renamings(draw: st.DrawFn, graph: Graph) -> Renaming:
    """New names for all values and symbols, and the devices of each kind exchanged."""
    values = list(graph.types)
    new = [f"{letter}{index}" for index, letter in enumerate(draw(st.text("abs_", min_size=99, max_size=99)))]
    order = draw(st.permutations(range(len(values))))
    symbols = [symbol.name for symbol in graph.symbols]
    shuffled = draw(st.permutations(["s0", "s1", "u0", "batch"]))[: len(symbols)]
    gpus = [device for device in DEVICES if device.startswith("cuda:")]
    return Renaming(
        {name: f"{new[index % 99]}_{index}" for name, index in zip(values, order, strict=True)},
        dict(zip(symbols, shuffled, strict=True)),
        {**dict(zip(gpus, draw(st.permutations(gpus)), strict=True)), "mps:0": "mps:3"},
    )


@given(st.data())
def test_names_do_not_reach_the_key(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    renamed = data.draw(renamings(graph)).graph(graph)
    assert renamed.key == graph.key


@settings(max_examples=60)
@given(graphs(max_ops=3))
def test_every_change_reaches_the_key(graph: Graph) -> None:
    for what, changed in changes(graph):
        assert changed.key != graph.key, f"{what} is not part of the key"


@settings(max_examples=40)
@given(graphs(max_ops=3))
def test_different_changes_give_different_keys(graph: Graph) -> None:
    seen: dict[str, Graph] = {}
    for _, changed in itertools.islice(changes(graph), 200):
        other = seen.setdefault(changed.key, changed)
        assert _same_but_for_effect_order(other, changed)


def _same_but_for_effect_order(one: Graph, other: Graph) -> bool:
    a, b = (
        Renaming(_own_names(graph), {s.name: s.name for s in graph.symbols}, {}).graph(graph) for graph in (one, other)
    )
    return a == b


def _own_names(graph: Graph) -> dict[str, str]:
    """Each value's own; of constants that are equal, which of them is read makes no difference."""
    first = {(c.value.type, c.data): c.value.name for c in reversed(graph.constants)}
    return {
        **{name: name for name in graph.types},
        **{c.value.name: first[c.value.type, c.data] for c in graph.constants},
    }


def test_which_of_two_equal_constants_is_read_makes_no_difference() -> None:
    kind = TensorType("int64", (0,), (1,))
    pair = (Constant(Value("s1", kind), ""), Constant(Value("s2", kind), ""))
    one, other = (Graph((), (), (Ref(name),), pair) for name in ("s1", "s2"))
    assert one.key == other.key
    assert _same_but_for_effect_order(one, other)


@given(graphs())
def test_one_more_device_changes_the_key(graph: Graph) -> None:
    gpus = [name for name, kind in graph.types.items() if isinstance(kind, TensorType) and kind.device == "cuda:0"]
    used = {name for op in graph.ops for name in (*op.reads, *(value.name for value in op.outputs))}
    used |= {value.name for value in graph.inputs} | {arg.name for arg in graph.outputs if isinstance(arg, Ref)}
    gpus = [name for name in gpus if name in used]
    for name in gpus if len(gpus) > 1 else []:
        assert moved(graph, name, "cuda:9").key != graph.key


def test_all_constants_are_different() -> None:
    keys = {one_op(number).key for number in NUMBERS}
    assert len(keys) == len(NUMBERS)
    assert len({one_op(alpha=number).key for number in NUMBERS}) == len(NUMBERS)
    assert len({one_op((0, (number,))).key for number in NUMBERS}) == len(NUMBERS)


def test_nan_is_one_constant() -> None:
    assert one_op(math.nan).key == one_op(-math.nan).key == one_op(float("nan")).key


@pytest.mark.parametrize("device", ["cuda:1", "cuda:15"])
def test_which_gpu_does_not_matter(device: str) -> None:
    there = one_op(device=Enum("device", device), kind=replace(F32, device=device))
    here = one_op(device=Enum("device", "cuda:0"), kind=replace(F32, device="cuda:0"))
    assert there.key == here.key


def test_devices_tell_apart_what_the_key_does_not() -> None:
    def graph(first: str, second: str) -> Graph:
        return one_op(device=Enum("device", second), kind=replace(F32, device=first))

    assert graph("cuda:0", "cuda:1").key == graph("cuda:1", "cuda:0").key
    assert graph("cuda:0", "cuda:1").devices == ("cuda:0", "cuda:1")
    assert graph("cuda:1", "cuda:0").devices == ("cuda:1", "cuda:0")


def test_how_many_gpus_matters() -> None:
    def to(target: str) -> str:
        return one_op(device=Enum("device", target), kind=replace(F32, device="cuda:0")).key

    assert to("cuda:0") != to("cuda:1")
    assert to("cuda:1") == to("cuda:2")
    assert len({to("cuda:0"), to("cuda:1"), to("cpu"), to("cuda"), to("xpu:0")}) == 5


def test_hints_and_unused_things_do_not_matter() -> None:
    dynamic = TensorType("float32", ("s5",), (1,))
    graph = one_op(kind=dynamic, symbols=(Symbol("s5", 2, 64, 8),))
    unused = Constant(Value("c", TensorType("bool", (), ())), "01")
    assert replace(graph, symbols=(Symbol("s5", 2, 64, 9),)).key == graph.key
    assert replace(graph, symbols=(Symbol("s1"), Symbol("s5", 2, 64))).key == graph.key
    assert replace(graph, constants=(unused,)).key == graph.key
    assert replace(graph, symbols=(Symbol("s5", 3, 64, 8),)).key != graph.key


def test_which_dims_are_equal_matters() -> None:
    symbols = (Symbol("s0"), Symbol("s1"))

    def dims(*names: str) -> str:
        return one_op(kind=TensorType("float32", names, (1,) * len(names)), symbols=symbols).key

    assert dims("s0", "s0") == dims("s1", "s1")
    assert dims("s0", "s1") == dims("s1", "s0") != dims("s0", "s0")
    assert dims("s0", "2 * s0") == dims("s0", "2*s0") != dims("s0", "2*s1")


def test_two_symbols_with_different_ranges_may_not_be_exchanged() -> None:
    wide, narrow = Symbol("s0", 0, 100), Symbol("s1", 0, 10)

    def with_first(name: str, other: str) -> str:
        return one_op(kind=TensorType("float32", (name, other), (1, 1)), symbols=(wide, narrow)).key

    assert with_first("s0", "s1") != with_first("s1", "s0")


def test_constants_are_known_by_their_contents_not_their_place() -> None:
    kind = TensorType("uint8", (1,), (1,))
    op = Op("aten.cat.default", ((Ref("a"), Ref("b")),), (), (Value("y", TensorType("uint8", (2,), (1,))),))
    one, two = Constant(Value("a", kind), "01"), Constant(Value("b", kind), "02")
    graph = Graph((), (op,), (Ref("y"),), (one, two))
    assert replace(graph, constants=(two, one)).key == graph.key
    assert replace(graph, constants=(replace(one, data="02"), replace(two, data="01"))).key != graph.key


def test_the_order_in_which_effects_are_listed_does_not_matter() -> None:
    def graph(*order: str) -> Graph:
        op = Op(
            "mylib.swap_",
            (Ref("x"), Ref("y")),
            (),
            (Value("z", F32),),
            tuple(Alias(0, name) for name in order),
            order,
        )
        return Graph((Value("x", F32), Value("y", F32)), (op,), (Ref("z"),))

    assert graph("x", "y").key == graph("y", "x").key
    assert graph("x", "y") != graph("y", "x")


def test_which_use_of_a_value_matters() -> None:
    def graph(*names: str) -> Graph:
        op = Op("aten.sub.Tensor", tuple(map(Ref, names)), (), (Value("z", F32),))
        return Graph((Value("x", F32), Value("y", F32)), (op,), (Ref("z"),))

    assert len({graph("x", "y").key, graph("y", "x").key, graph("x", "x").key, graph("y", "y").key}) == 4


@given(graphs())
def test_key_is_a_sha256_and_stays(graph: Graph) -> None:
    assert len(graph.key) == 64
    assert int(graph.key, 16) >= 0
    assert graph.key == Graph.from_json(graph.to_json()).key


def test_key_is_the_same_in_every_process_and_release() -> None:
    """Keys are stored: this one may only change together with the number in the format."""
    graph = one_op(1.0, alpha=2, kind=TensorType("float32", ("s3", 4), (4, 1), "cuda:2"), symbols=(Symbol("s3", 2),))
    assert graph.key == KEY


KEY = "091eb304f502ffa3edd4726dd32ab1ec470c4a03bbdbeeb48ce0cfe8bc00bd89"


@given(graphs(opaque=True))
def test_opaque_graphs_have_no_key_and_say_why(graph: Graph) -> None:
    graph.validate()
    assert str(graph)
    assert eval(repr(graph), _names()) == graph
    if graph.opaque:
        for use in (lambda: graph.key, graph.to_json):
            with pytest.raises(GraphError, match=r"^cannot be written down: (op|input) .*: a "):
                use()
        assert hash(graph) == hash(replace(graph))
    else:
        assert graph.key


def _names() -> dict[str, Any]:
    from fuseplan import graph

    return {name: getattr(graph, name) for name in graph.__all__}


def test_the_strategies_reach_what_they_are_for() -> None:
    """A property over graphs without symbols, aliases and the rest would hold for the wrong reason."""
    seen: set[str] = set()

    @settings(max_examples=150, database=None, derandomize=True)
    @given(graphs())
    def look(graph: Graph) -> None:
        seen.update(what for what, _ in changes(graph))
        seen.update(["symbols"] if len(used_symbols(graph)) > 1 else [])
        devices = {kind.device for kind in graph.types.values() if isinstance(kind, TensorType)}
        seen.update(["two GPUs"] if len([d for d in devices if d.startswith("cuda")]) > 1 else [])
        seen.update(["scalars"] if any(isinstance(kind, ScalarType) for kind in graph.types.values()) else [])
        seen.update(["several outputs"] if any(len(op.outputs) > 1 for op in graph.ops) else [])

    look()
    assert seen >= {
        "aliasing", "argument", "constant", "constant data", "dtype", "mutation", "op", "outputs", "randomness",
        "rank", "scalar expression", "several outputs", "shape", "stride", "symbol range", "symbols", "two GPUs",
    }  # fmt: skip
