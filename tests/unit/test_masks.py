"""Proofs about masks, on graphs written by hand: the arithmetic, the decision procedure, and rules that need no torch."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuseplan.graph import Alias, Arg, Enum, Graph, Op, Ref, ScalarType, Symbol, TensorType, Value
from fuseplan.segment.masks import MaskProof, UnprovenError, classify_mask
from fuseplan.segment.masks.formulas import Formula, at_most, both, either, implies, negation, satisfiable
from fuseplan.segment.masks.linear import Linear, linear, size, variable

LONG = "int64"


def kind(dtype: str, *shape: int | str) -> TensorType:
    return TensorType(dtype, shape, tuple(range(len(shape), 0, -1)))


def op(name: str, out: TensorType, target: str, *args: Arg, **kwargs: Arg) -> Op:
    return Op(f"aten.{target}", args, tuple(sorted(kwargs.items())), (Value(name, out),))


def classify(*ops: Op, symbols: tuple[Symbol, ...] = ()) -> MaskProof:
    sizes = tuple(Value(symbol.name, ScalarType("int", symbol.name)) for symbol in symbols)
    graph = Graph(sizes, ops, (Ref(ops[-1].outputs[0].name),), (), symbols)
    graph.validate()
    return classify_mask(graph, ops[-1].outputs[0].name)


def compared(relation: str, rows: int | str, columns: int | str, shift: int = 0) -> tuple[Op, ...]:
    """`column relation row + shift`."""
    return (
        op("i", kind(LONG, rows), "arange.default", Ref(rows) if isinstance(rows, str) else rows),
        op("j", kind(LONG, columns), "arange.default", Ref(columns) if isinstance(columns, str) else columns),
        op("shifted", kind(LONG, rows), "add.Tensor", Ref("i"), shift),
        op("row", kind(LONG, rows, 1), "unsqueeze.default", Ref("shifted"), 1),
        op("mask", kind("bool", rows, columns), f"{relation}.Tensor", Ref("j"), Ref("row")),
    )


L, S = Symbol("s0", 2), Symbol("s1", 2)


def test_a_comparison_of_positions_is_causal_for_every_size() -> None:
    assert classify(*compared("le", "s0", "s0"), symbols=(L,)) == MaskProof("causal", "for every size")
    assert classify(*compared("le", 5, 5)) == MaskProof("causal", "for this size")


def test_queries_and_keys_need_not_be_equally_many() -> None:
    assert classify(*compared("le", "s0", "s1"), symbols=(L, S)).verdict == "causal"
    assert classify(*compared("le", 3, 7)).verdict == "causal"


@pytest.mark.parametrize(("relation", "shift"), [("lt", 0), ("le", 1), ("le", -1), ("ge", 0), ("gt", 0), ("ne", 0)])
def test_near_misses_are_refused(relation: str, shift: int) -> None:
    assert classify(*compared(relation, "s0", "s0", shift), symbols=(L,)).verdict is None
    assert classify(*compared(relation, 5, 5, shift)).verdict is None


def test_one_less_than_the_next_is_at_most() -> None:
    assert classify(*compared("lt", "s0", "s1", 1), symbols=(L, S)).verdict == "causal"


def test_a_range_of_sizes_decides() -> None:
    """`column <= row + 7` hides nothing of up to eight columns, and something of nine."""
    assert classify(*compared("le", "s0", "s1", 7), symbols=(L, Symbol("s1", 2, 8))).verdict == "all"
    assert classify(*compared("le", "s0", "s1", 7), symbols=(L, Symbol("s1", 2, 9))).verdict is None


def window(width: int, symbol: Symbol) -> MaskProof:
    near = op("near", kind("bool", "s0", "s0"), "gt.Tensor", Ref("j"), Ref("edge"))
    edge = op("edge", kind(LONG, "s0", 1), "sub.Tensor", Ref("row"), width)
    return classify(
        *compared("le", "s0", "s0"),
        edge,
        near,
        op("both", kind("bool", "s0", "s0"), "bitwise_and.Tensor", Ref("mask"), Ref("near")),
        symbols=(symbol,),
    )


def test_a_window_is_causal_only_where_no_size_exceeds_it() -> None:
    assert window(8, Symbol("s0", 2)).verdict is None
    assert window(8, Symbol("s0", 2, 9)).verdict is None
    assert window(8, Symbol("s0", 2, 8)).verdict == "causal"


def additive(dtype: str, hidden: float, shown: float = 0.0) -> MaskProof:
    return classify(
        *compared("le", "s0", "s0"),
        op("zeros", kind(dtype, "s0", "s0"), "full.default", (Ref("s0"), Ref("s0")), shown, dtype=Enum("dtype", dtype)),
        op("hides", kind("bool", "s0", "s0"), "logical_not.default", Ref("mask")),
        op("bias", kind(dtype, "s0", "s0"), "masked_fill.Scalar", Ref("zeros"), Ref("hides"), hidden),
        symbols=(L,),
    )


LOWEST = {"float32": -3.4028234663852886e38, "bfloat16": -3.3895313892515355e38, "float64": -1.7976931348623157e308}


@pytest.mark.parametrize("dtype", [*LOWEST, "float16"])
def test_infinity_hides_in_every_float_dtype(dtype: str) -> None:
    assert additive(dtype, -math.inf).verdict == "causal"


@pytest.mark.parametrize("dtype", LOWEST)
def test_the_lowest_number_hides_where_each_row_shows_something(dtype: str) -> None:
    assert additive(dtype, LOWEST[dtype]).verdict == "causal"


@pytest.mark.parametrize(
    ("dtype", "hidden", "shown"),
    [
        ("float32", -1e9, 0.0),
        ("float32", -10000.0, 0.0),
        ("float16", -65504.0, 0.0),
        ("float32", math.inf, 0.0),
        ("float32", math.nan, 0.0),
        ("float32", -math.inf, 1.0),
        ("float32", 0.0, -math.inf),
    ],
)
def test_other_numbers_prove_nothing(dtype: str, hidden: float, shown: float) -> None:
    assert additive(dtype, hidden, shown).verdict is None


def test_all_zeros_hide_nothing() -> None:
    assert additive("float32", -0.0).verdict == "all"


def test_narrow_integers_that_may_wrap_prove_nothing() -> None:
    def mask(size_of: int | str, *symbols: Symbol) -> MaskProof:
        ops = compared("le", size_of, size_of)
        first = op("i", kind("int8", size_of), *("arange.default", Ref("s0") if symbols else size_of))
        narrow = op("shifted", kind("int8", size_of), "add.Tensor", Ref("i"), 0)
        row = op("row", kind("int8", size_of, 1), "unsqueeze.default", Ref("shifted"), 1)
        return classify(first, ops[1], narrow, row, ops[4], symbols=symbols)

    assert mask(100).verdict == "causal"
    assert mask(300).verdict is None
    assert mask("s0", L).verdict is None


def test_an_unknown_operator_and_an_input_prove_nothing_unless_only_their_shape_is_read() -> None:
    given = Value("x", kind("float32", 4, 4))
    like = op("ones", kind("bool", 4, 4), "ones_like.default", Ref("x"), dtype=Enum("dtype", "bool"))
    data = op("mask", kind("bool", 4, 4), "gt.Scalar", Ref("x"), 0)
    odd = op("odd", kind("bool", 4, 4), "nonesuch.default", Ref("x"))
    graph = Graph((given,), (like, data, odd), (Ref("ones"), Ref("mask"), Ref("odd")))
    assert classify_mask(graph, "ones").verdict == "all"
    assert classify_mask(graph, "mask") == MaskProof(None, "it depends on the input x")
    assert classify_mask(graph, "odd") == MaskProof(None, "it depends on aten.nonesuch.default")


def test_what_writes_into_the_mask_proves_nothing() -> None:
    ones = op("ones", kind("bool", 4, 4), "ones.default", (4, 4))
    write = Op("aten.fill_.Scalar", (Ref("ones"), False), (), (Value("same", kind("bool", 4, 4)),), mutates=("ones",))
    graph = Graph((), (ones, write), (Ref("ones"),))
    assert classify_mask(graph, "ones").verdict is None


def test_so_does_what_writes_through_a_view() -> None:
    square = kind("bool", 4, 4)
    ones = op("ones", square, "ones.default", (4, 4))
    view = Op("aten.alias.default", (Ref("ones"),), (), (Value("view", square),), (Alias(0, "ones"),))
    write = Op("aten.fill_.Scalar", (Ref("view"), False), (), (Value("same", square),), (Alias(0, "view"),), ("view",))
    graph = Graph((), (ones, view, write), (Ref("ones"),))
    assert classify_mask(graph, "ones") == MaskProof(None, "aten.fill_.Scalar writes into it")


def test_work_is_bounded() -> None:
    """Twenty independent choices have a million combinations: no proof, and soon."""
    chain = [*compared("le", 9, 9)]
    for number in range(40):
        last = chain[-1].outputs[0].name
        edge = op(f"e{number}", kind("bool", 9, 9), "ne.Scalar", Ref("j"), number - 20)
        both_ways = op(f"x{number}", kind("bool", 9, 9), "bitwise_xor.Tensor", Ref(last), Ref(f"e{number}"))
        chain += [edge, both_ways]
    chain[5:] = [
        each if each.target != "aten.ne.Scalar" else op(each.outputs[0].name, kind("bool", 9), "ne.Scalar", *each.args)
        for each in chain[5:]
    ]
    assert "too many" in classify(*chain).reason


def test_sizes_are_read_as_linear_forms() -> None:
    assert size("2*s0 + s1 - 3") == Linear((("s0", 2), ("s1", 1)), -3)
    assert size("-(s0 - 4)*2") == Linear((("s0", -2),), 8)
    assert size(7) == linear(7)


@pytest.mark.parametrize("text", ["s0*s1", "s0//2", "Max(1, s0)", "s0 % 2", "s0**2", "300000000000000000000*s0"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(UnprovenError):
        size(text)


NAMES = ("x", "y", "z")
forms = st.builds(
    lambda factors, constant: sum((variable(n) * k for n, k in zip(NAMES, factors, strict=True)), linear(constant)),
    st.tuples(*[st.integers(-3, 3)] * 3),
    st.integers(-6, 6),
)
formulas: st.SearchStrategy[Formula] = st.recursive(
    st.one_of(st.booleans(), st.builds(at_most, forms, forms)),
    lambda inner: st.one_of(st.builds(negation, inner), st.builds(both, inner, inner), st.builds(either, inner, inner)),
    max_leaves=6,
)
BOX = range(-4, 5)


def holds(formula: Formula, values: dict[str, int]) -> bool:
    def of(form: Linear) -> int:
        return form.constant + sum(factor * values[name] for name, factor in form.terms)

    if isinstance(formula, bool):
        return formula
    if hasattr(formula, "form"):
        return of(formula.form) <= 0
    found = [holds(part, values) for part in formula.parts]
    return all(found) if type(formula).__name__ == "All" else any(found)


@given(formulas)
@settings(max_examples=200)
def test_what_some_integers_satisfy_is_never_called_unsatisfiable(formula: Formula) -> None:
    witnesses = any(holds(formula, dict(zip(NAMES, values, strict=True))) for values in product(BOX, repeat=3))
    assert satisfiable(formula) or not witnesses


@given(formulas)
def test_negation_holds_exactly_where_the_formula_does_not(formula: Formula) -> None:
    for values in product((-3, 0, 2), repeat=3):
        point = dict(zip(NAMES, values, strict=True))
        assert holds(negation(formula), point) != holds(formula, point)


def test_what_only_fractions_satisfy_is_unsatisfiable_where_tightening_shows_it() -> None:
    x = variable("x")
    assert not satisfiable(both(at_most(1, x * 2), at_most(x * 2, 1)))


def test_implication_over_all_sizes() -> None:
    i, s = variable("i"), variable("s")
    inside = both(at_most(0, i), at_most(i + 1, s))
    assert implies(inside, at_most(1, s))
    assert not implies(inside, at_most(2, s))
