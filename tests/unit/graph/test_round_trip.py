"""What is written reads back, as JSON and as Python; and what equality means."""

from __future__ import annotations

import copy
import itertools
import json
import math
import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

import fuseplan.graph
from fuseplan import GraphError
from fuseplan.graph import Alias, Constant, Enum, Graph, NoneType, Op, OpaqueType, Ref, Symbol, TensorType, Value
from fuseplan.graph.limits import MAX_NESTING
from graph_changes import NUMBERS
from strategies import graphs

NAMES = {name: getattr(fuseplan.graph, name) for name in fuseplan.graph.__all__}
F32 = TensorType("float32", (2, 3), (3, 1))


def evaluate(text: str) -> Any:
    """The value of what `repr` gave, with the names of fuseplan.graph and the builtins only."""
    return eval(text, dict(NAMES))


@given(graphs())
def test_json_round_trips(graph: Graph) -> None:
    text = graph.to_json()
    again = Graph.from_json(text)
    assert again == graph
    assert again.to_json() == text
    assert text.isascii()


@given(graphs())
def test_json_means_the_same_in_any_spelling(graph: Graph) -> None:
    document = json.loads(graph.to_json())
    turned = dict(reversed(document.items()))
    turned["ops"] = [dict(reversed(op.items())) for op in document["ops"]]
    assert Graph.from_json(json.dumps(turned, indent=2)) == graph


@given(graphs())
def test_printed_form_round_trips(graph: Graph) -> None:
    again = evaluate(repr(graph))
    assert again == graph
    assert again.key == graph.key
    assert hash(again) == hash(graph)


@given(graphs(opaque=True))
def test_the_listing_parses_back(graph: Graph) -> None:
    assert Graph.parse(str(graph)) == graph


@given(graphs(opaque=True))
def test_each_part_prints_as_python(graph: Graph) -> None:
    for part in (*graph.inputs, *graph.ops, *graph.constants, *graph.symbols):
        assert evaluate(repr(part)) == part
        assert "\n" not in repr(part)


@given(graphs(opaque=True))
def test_copies_are_equal(graph: Graph) -> None:
    assert copy.deepcopy(graph) == graph
    assert pickle.loads(pickle.dumps(graph)) == graph


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(NUMBERS, 2)))
def test_equality_tells_constants_apart(one: Any, other: Any) -> None:
    def op(number: Any) -> Op:
        return Op("aten.full.default", ((2, 3), number), (), (Value("y", F32),))

    assert op(one) != op(other)
    assert op(one) == op(copy.deepcopy(one))
    assert Graph((), (op(one),), ()) != Graph((), (op(other),), ())
    assert Graph((), (op(one),), ()) == Graph((), (op(one),), ())


def test_reads_are_in_order_and_each_once() -> None:
    nested = Op(
        "aten.cat.default", ((Ref("d"), (Ref("b"), Ref("d"))), Ref("a")), (("k", Ref("c")), ("l", Ref("a"))), ()
    )
    assert nested.reads == ("d", "b", "a", "c")


def test_equality_tells_a_field_that_only_equals_its_default() -> None:
    one = Op("aten.full.default", (), (), ())
    assert replace(one, random=0) != one  # type: ignore[arg-type]


def test_nan_equals_itself() -> None:
    one = Op("aten.full.default", (math.nan, complex(math.nan, 1)), (), ())
    assert one == Op("aten.full.default", (float("nan"), complex(float("nan"), 1)), (), ())


def test_names_count_for_equality_and_not_for_the_key() -> None:
    one, other = (Graph((Value(name, F32),), (), (Ref(name),)) for name in "xy")
    assert one != other
    assert one.key == other.key
    assert one != "x"


def test_the_deepest_nesting_round_trips() -> None:
    arg: Any = 1
    for _ in range(MAX_NESTING):
        arg = (arg,)
    graph = Graph((), (Op("aten.full.default", (arg,), (("k", arg),), ()),), ())
    assert Graph.from_json(graph.to_json()) == graph == evaluate(repr(graph))
    assert "[[[" in str(graph)


GRAPH = Graph(
    inputs=(Value("x", TensorType("float32", (8, "s0"), ("s0", 1), "cuda:0")), Value("n", NoneType())),
    ops=(
        Op("aten.t.default", (Ref("x"),), (), (Value("t", F32),), (Alias(0, "x"),)),
        Op(
            "aten.full.default",
            ((2, 3), float("inf")),
            (("device", Enum("device", "cuda:0")),),
            (Value("full", F32), Value("none", NoneType())),
        ),
        Op("aten.add_.Tensor", (Ref("full"), Ref("c"), -0.0), (), (), mutates=("full",), random=True),
        Op("flex_attention", (Ref("t"),), (), (Value("o", OpaqueType("a tuple")),), opaque="a higher-order op"),
    ),
    outputs=(Ref("full"), 1, None),
    constants=(Constant(Value("c", TensorType("uint8", (2,), (1,))), "0102"),),
    symbols=(Symbol("s0", 2, None, 16), Symbol("s1", 0, 9)),
)


LISTING = """\
# 2 <= s0, such as 16
# 0 <= s1 <= 9
def graph(
    x,  # cuda:0 float32[8, s0] strides [s0, 1]
    n,  # None
):
    c = constant("0102")  # cpu uint8[2]
    t = aten.t.default(x)  # cpu float32[2, 3]; t shares x
    full, none = aten.full.default([2, 3], float("inf"), device=device("cuda:0"))  # cpu float32[2, 3], None
    aten.add_.Tensor(full, c, -0.0)  # mutates full; random
    o = flex_attention(t)  # opaque: 'a tuple'; opaque: 'a higher-order op'
    return full, 1, None"""

EXPRESSION = """\
    ops=(
        Op('aten.t.default', (Ref('x'),), (), (Value('t', F32),), (Alias(0, 'x'),)),
        Op('aten.full.default', ((2, 3), float("inf")), (('device', Enum('device', 'cuda:0')),), """


def test_listing() -> None:
    assert str(GRAPH) == LISTING


def test_printed_form_is_short_and_one_op_a_line() -> None:
    assert EXPRESSION.replace("F32", repr(F32)) in repr(GRAPH)
    assert len(repr(GRAPH).splitlines()) == 24


def test_opaque_says_which_and_why() -> None:
    assert GRAPH.opaque == ("op 3 (flex_attention): a higher-order op",)
    odd = Graph((Value("g", OpaqueType("a torch.Generator")),), (replace(GRAPH.ops[3], args=(), opaque=None),), ())
    assert odd.opaque == ("input g: a torch.Generator", "op 0 (flex_attention): a tuple")
    with pytest.raises(GraphError, match=r"^cannot be written down: input g: a torch.Generator \(and 1 more\)$"):
        odd.to_json()


def test_lookups() -> None:
    assert GRAPH.producer == {"t": 0, "full": 1, "none": 1, "o": 3}
    assert GRAPH.users == {"x": (0,), "n": (), "c": (2,), "t": (3,), "full": (2,), "none": (), "o": ()}
    assert list(GRAPH.types) == ["x", "n", "c", "t", "full", "none", "o"]
    assert [op.is_view for op in GRAPH.ops] == [True, False, False, False]
    assert GRAPH.ops[2].reads == ("full", "c")
