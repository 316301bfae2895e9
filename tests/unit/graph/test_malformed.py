"""Whatever is wrong with a graph is one GraphError of one line that says where; nothing else ever escapes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuseplan import GraphError
from fuseplan.graph import (
    Alias,
    Constant,
    Enum,
    Graph,
    NoneType,
    Op,
    OpaqueType,
    Ref,
    ScalarType,
    Symbol,
    TensorType,
    Value,
)
from strategies import graphs

F32 = TensorType("float32", (2, 3), (3, 1))
X = Value("x", F32)
RELU = Op("aten.relu.default", (Ref("x"),), (), (Value("y", F32),))
GOOD = Graph((X,), (RELU,), (Ref("y"),))


def op(**changed: Any) -> Graph:
    return replace(GOOD, ops=(replace(RELU, **changed),))


def typed(kind: Any, *symbols: Symbol) -> Graph:
    return Graph((Value("x", kind),), (), (), (), symbols)


def tensor(**changed: Any) -> Graph:
    return typed(replace(F32, **changed), Symbol("s0"))


def data(text: Any, **changed: Any) -> Graph:
    return Graph((), (), (), (Constant(Value("c", replace(F32, **changed)), text),))


def deep(levels: int) -> Any:
    arg: Any = 1
    for _ in range(levels):
        arg = (arg,)
    return arg


ADD = Op("aten.add.Tensor", (Ref("x"), Ref("b")), (), (Value("a", F32),))
MUL = Op("aten.mul.Tensor", (Ref("a"), Ref("x")), (), (Value("b", F32),))

MALFORMED: dict[str, tuple[Graph, str]] = {
    "cycle": (
        Graph((X,), (ADD, MUL), (Ref("a"),)),
        "op 0 (aten.add.Tensor): uses 'b', which op 1 (aten.mul.Tensor) defines only later: a cycle, or ops in the",
    ),
    "its own output": (op(args=(Ref("y"),)), "op 0 (aten.relu.default): uses 'y', which it defines itself: a cycle"),
    "undefined": (op(args=(Ref("z"),)), "op 0 (aten.relu.default): uses 'z', which nothing defines"),
    "undefined, nested": (op(kwargs=(("k", (1, (Ref("z"),))),)), "op 0 (aten.relu.default): uses 'z', which nothing"),
    "undefined output": (replace(GOOD, outputs=(Ref("z"),)), "graph output 0: 'z' is not defined"),
    "defined twice": (op(outputs=(X,)), "op 0 (aten.relu.default): output x: the name is taken already"),
    "two inputs of one name": (replace(GOOD, inputs=(X, X)), "input 1 x: the name is taken already"),
    "dtype": (tensor(dtype="float33"), "input 0 x: unknown dtype 'float33'"),
    "dtype of an op": (
        op(outputs=(Value("y", replace(F32, dtype="half")),)),
        "op 0 (aten.relu.default): output y: unknown dtype 'half'",
    ),
    "dtype argument": (op(args=(Enum("dtype", "f32"),)), "argument 0: unknown 'dtype' 'f32'"),
    "enum": (op(args=(Enum("colour", "red"),)), "argument 0: unknown 'colour' 'red'"),
    "layout": (op(args=(Enum("layout", "dense"),)), "argument 0: unknown 'layout' 'dense'"),
    "device": (tensor(device="cuda:x"), "input 0 x: 'cuda:x' is no device"),
    "device spelled twice": (tensor(device="cuda:00"), "input 0 x: 'cuda:00' is no device"),
    "device argument": (op(args=(Enum("device", "GPU\n"),)), "argument 0: unknown 'device'"),
    "arity of strides": (tensor(stride=(1,)), "input 0 x: 2 sizes and 1 strides"),
    "negative size": (tensor(shape=(-1, 3)), "input 0 x: size or stride is -1, not within"),
    "bool size": (tensor(shape=(True, 3)), "input 0 x: size or stride is a bool, not an int"),
    "float size": (tensor(shape=(2.0, 3)), "input 0 x: size or stride is a float, not an int"),
    "list of sizes": (tensor(shape=[2, 3]), "input 0 x: shape is a list, not a tuple"),
    "huge size": (tensor(shape=(2**63, 3)), "input 0 x: size or stride is 9223372036854775808, not within"),
    "number as text": (tensor(shape=("2", 3)), "input 0 x: size or stride '2' has no symbol: write it as a number"),
    "unknown symbol": (tensor(shape=("s9", 3)), "input 0 x: unknown symbol 's9' in 's9'"),
    "unknown function": (tensor(shape=("system(s0)", 3)), "unknown function 'system' in the expression 'system(s0)'"),
    "broken expression": (tensor(shape=("s0 +", 3)), "input 0 x: the expression 's0 +' ends too early"),
    "deep expression": (tensor(shape=("(" * 4000 + "s0" + ")" * 4001, 3)), "stands in the wrong place"),
    "long expression": (tensor(shape=("s0+" * 9999 + "s0", 3)), "an expression of 29999 characters"),
    "rank": (tensor(shape=(1,) * 65, stride=(1,) * 65), "input 0 x: 65 sizes and 65 strides"),
    "no type": (typed(None), "input 0 x: its type is a NoneType"),
    "scalar kind": (typed(ScalarType("str", "1")), "input 0 x: a scalar of kind 'str', not int, float or bool"),
    "scalar symbol": (typed(ScalarType("int", "u0")), "input 0 x: unknown symbol 'u0' in 'u0'"),
    "empty range": (typed(F32, Symbol("s0", 5, 4)), "symbol s0: high is 4, not within [5, "),
    "range of floats": (typed(F32, Symbol("s0", 0.5)), "symbol s0: low is a float, not an int"),  # type: ignore[arg-type]
    "hint out of range": (typed(F32, Symbol("s0", 2, 4, 5)), "symbol s0: hint is 5, not within [2, 4]"),
    "symbol twice": (typed(F32, Symbol("s0"), Symbol("s0")), "symbol s0: another has that name"),
    "symbol Max": (typed(F32, Symbol("Max")), "symbol Max: a function has that name"),
    "name": (Graph((Value("a b", F32),), (), ()), "the name of input 0 is 'a b', not an identifier"),
    "name with a line end": (Graph((Value("ab\n", F32),), (), ()), "the name of input 0 is 'ab\\n', not an identifier"),
    "long name": (Graph((Value("a" * 10_000_000, F32),), (), ()), "the name of input 0 is 'aaaa"),
    "target": (op(target="aten::relu"), "op 0 (aten::relu): target 'aten::relu' is no dotted name"),
    "long target": (op(target="a" * 10_000_000), "op 0 ('aaaa"),
    "long string": (op(args=("a" * 10_000_000,)), "op 0 (aten.relu.default): argument 0: a string of 10000000 char"),
    "deep argument": (op(args=(deep(33),)), "op 0 (aten.relu.default): argument 0: nested deeper than 32"),
    "very deep argument": (op(args=(deep(100_000),)), "op 0 (aten.relu.default): argument 0: nested deeper than 32"),
    "huge int": (op(args=(2**64,)), "op 0 (aten.relu.default): argument 0: it is 18446744073709551616, not within"),
    "very huge int": (op(args=(10**5000,)), "op 0 (aten.relu.default): argument 0: it is 0x"),
    "list argument": (op(args=([1],)), "op 0 (aten.relu.default): argument 0: a list, which a graph cannot hold"),
    "bytes": (op(kwargs=(("k", b""),)), "op 0 (aten.relu.default): argument k: a bytes, which a graph cannot hold"),
    "unsorted keywords": (op(kwargs=(("b", 1), ("a", 1))), "keyword arguments are not sorted, or a stands twice"),
    "keyword twice": (op(kwargs=(("a", 1), ("a", 1))), "keyword arguments are not sorted, or a stands twice"),
    "arity of keywords": (op(kwargs=(("a",),)), "a keyword argument is no pair of name and value"),
    "alias out of range": (op(aliases=(Alias(1, "x"),)), "the output of an alias is 1, not within [0, 0]"),
    "alias of what it does not read": (op(aliases=(Alias(0, "y"),)), "aliases 'y', which it does not read"),
    "alias twice": (op(aliases=(Alias(0, "x"),) * 2), "the alias of output 0 and x stands twice"),
    "alias of nothing": (
        op(outputs=(Value("y", NoneType()),), aliases=(Alias(0, "x"),)),
        "op 0 (aten.relu.default): output 0 is no tensor and cannot alias x",
    ),
    "mutates what it does not read": (op(mutates=("y",)), "mutates 'y', which it does not read"),
    "mutates twice": (op(mutates=("x", "x")), "mutates names a value twice"),
    "random": (op(random=1), "op 0 (aten.relu.default): random is an int, not a bool"),
    "opaque without a reason": (op(opaque=""), "op 0 (aten.relu.default): it is opaque and does not say why"),
    "opaque type without a reason": (typed(OpaqueType("")), "input 0 x: its type is opaque and does not say why"),
    "no op": (replace(GOOD, ops=(None,)), "op 0: op is a NoneType, not an Op"),  # type: ignore[arg-type]
    "no tuple of ops": (replace(GOOD, ops=[RELU]), "ops is a list, not a tuple"),  # type: ignore[arg-type]
    "tuple output": (replace(GOOD, outputs=((1,),)), "graph output 0: a tuple is no reference, number or None"),
    "string output": (replace(GOOD, outputs=("x",)), "graph output 0: a str is no reference, number or None"),
    "constant too short": (data("00"), "constant 0 c: 1 bytes of data for a tensor of 24"),
    "constant in upper case": (data("AB" * 24), "constant 0 c: data is not lower-case hex"),
    "constant too large": (data("00" * (2**16 + 4), shape=(2**14 + 1,), stride=(1,)), "hex of at most 65536 bytes"),
    "constant with a symbol": (data("00", shape=("s0", 3)), "constant 0 c: unknown symbol 's0' in 's0'"),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_graph(what: str) -> None:
    graph, message = MALFORMED[what]
    for use in (graph.validate, lambda: graph.key, graph.to_json):
        assert message in (complaint(use) or "it was taken")


def test_the_graph_that_the_others_are_made_of_is_fine() -> None:
    assert GOOD.key
    assert tensor().key
    assert data("00" * 24).key
    assert op(aliases=(Alias(0, "x"),), mutates=("x",), opaque="is new").opaque


def complaint(use: Callable[[], object]) -> str | None:
    """The one line with which GraphError says what is wrong, or None; any other exception is a bug."""
    try:
        use()
    except GraphError as error:
        line = str(error)
    else:
        return None
    assert line.isprintable()
    assert 0 < len(line) < 500
    return line


JUNK = (
    None,
    True,
    3,
    -1,
    2**70,
    0.5,
    float("nan"),
    "",
    "x",
    "é\n",
    (),
    (1,),
    ((),),
    [],
    {},
    object(),
    Ref("x"),
    F32,
    X,
)


def damaged(thing: Any) -> st.SearchStrategy[Any]:
    """The dataclass or tuple with something else in the place of one of its parts, at any depth."""
    ways: list[st.SearchStrategy[Any]] = [st.sampled_from(JUNK)]
    if is_dataclass(thing) and not isinstance(thing, type):
        for field in fields(thing):
            part = st.deferred(lambda name=field.name: damaged(getattr(thing, name)))  # type: ignore[misc]
            ways.append(part.map(lambda part, name=field.name: replace(thing, **{name: part})))
    elif isinstance(thing, tuple):
        for index in range(len(thing)):
            part = st.deferred(lambda index=index: damaged(thing[index]))  # type: ignore[misc]
            ways.append(part.map(lambda part, index=index: (*thing[:index], part, *thing[index + 1 :])))
    return st.one_of(ways[1:] or ways) if isinstance(thing, Graph) else st.one_of(ways)


@settings(max_examples=60)
@given(st.data())
def test_junk_in_the_place_of_any_part(data: st.DataObject) -> None:
    graph = data.draw(damaged(data.draw(graphs(max_ops=3))))
    if complaint(graph.validate) is None:
        assert graph.opaque or Graph.from_json(graph.to_json()) == graph


FULL = Graph(
    (X, Value("n", ScalarType("int", "s0"))),
    (replace(RELU, kwargs=(("k", Enum("dtype", "int8")),), aliases=(Alias(0, "x"),), mutates=("x",), random=True),),
    (Ref("y"),),
    (Constant(Value("c", TensorType("uint8", (1,), (1,))), "01"),),
    (Symbol("s0", 0, 9, 1),),
)


def everywhere(thing: Any, new: object) -> Iterator[Any]:
    """The same with `new` in the place of each part, one at a time."""
    yield new
    if is_dataclass(thing) and not isinstance(thing, type):
        for field in fields(thing):
            parts = everywhere(getattr(thing, field.name), new)
            yield from (replace(thing, **{field.name: part}) for part in parts)
    elif isinstance(thing, tuple):
        for index, item in enumerate(thing):
            yield from ((*thing[:index], part, *thing[index + 1 :]) for part in everywhere(item, new))


@pytest.mark.parametrize("what", ["deep", "int", "str"])
def test_something_enormous_in_the_place_of_any_part(what: str) -> None:
    new = {"deep": deep(100_000), "int": 10**5000, "str": "é\n" * 10**6}[what]
    graphs = [graph for graph in everywhere(FULL, new) if isinstance(graph, Graph)]
    assert len(graphs) > 60
    assert all(complaint(graph.validate) or graph.opaque for graph in graphs)  # a reason may be any text


# JSON

GOOD_JSON = GOOD.to_json()


def changed(old: str, new: str) -> str:
    assert old in GOOD_JSON
    return GOOD_JSON.replace(old, new, 1)


RELU_ARGS = '"args":[{"ref":"x"}]'
BAD_JSON: dict[str, tuple[str, str]] = {
    "nothing": ("", "not JSON: line 1, column 1"),
    "no object": ("[]", "not a graph: it has no 'format'"),
    "cut short": (GOOD_JSON[:-40], "not JSON: line"),
    "more after it": (GOOD_JSON + "{}", "not JSON: line"),
    "other format": (changed("graph/1", "graph/2"), "unknown format 'fuseplan.graph/2': this fuseplan reads"),
    "unknown field": (changed('"ops"', '"extra":1,"ops"'), "unknown field 'extra'"),
    "unknown field of an op": (changed('"args"', '"fast":1,"args"'), "op 0 (aten.relu.default): unknown field 'fast'"),
    "no field": (changed('"symbols":[],', ""), "the field 'symbols' is missing"),
    "field twice": (changed('"symbols"', '"ops":[],"symbols"'), "the field 'ops' stands twice in one object"),
    "wrong type": (changed('"ops":[', '"ops":{"a":['), "not JSON"),
    "ops is no array": (json.dumps({**json.loads(GOOD_JSON), "ops": {}}), "the list of ops is an object, not an array"),
    "args is no array": (changed(RELU_ARGS, '"args":1'), "op 0 (aten.relu.default): args is a number, not an array"),
    "arity of a type": (changed(",[3,1]", ""), "input 0: a tensor type has 3 items, not 4"),
    "arity of an alias": (changed(RELU_ARGS, f'{RELU_ARGS},"aliases":[[0]]'), "an alias has 1 items, not 2"),
    "arity of a complex": (changed('{"ref":"x"}', '{"complex":[1.0]}'), "a complex number has 1 items, not 2"),
    "two tags": (changed('{"ref":"x"}', '{"ref":"x","enum":1}'), "an object with 2 fields, not one tag"),
    "unknown tag": (changed('{"ref":"x"}', '{"code":"x"}'), "op 0 (aten.relu.default): unknown argument 'code'"),
    "no reference": (changed('{"ref":"x"}', '{"ref":["x"]}'), "argument 0: a reference to a list, not to a name"),
    "NaN": (changed('{"ref":"x"}', "NaN"), "NaN is not JSON"),
    "Infinity": (changed('{"ref":"x"}', "-Infinity"), "-Infinity is not JSON"),
    "huge float": (changed('{"ref":"x"}', "1e999"), "the number '1e999' is out of range"),
    "huge int": (changed('{"ref":"x"}', "9" * 24), "argument 0: it is 999999999999999999999999, not within"),
    "very huge int": (changed('{"ref":"x"}', "9" * 100_000), "the integer '9999"),
    "float word": (changed('{"ref":"x"}', '{"float":"1.0"}'), "'1.0' is no float word: nan, inf or -inf"),
    "int in a complex": (changed('{"ref":"x"}', '{"complex":[1,2]}'), "a part of a complex number is no float"),
    "10 MB string": (changed('{"ref":"x"}', f'"{"a" * 10_000_000}"'), "argument 0: a string of 10000000 characters"),
    "10 MB name": (changed('"name":"x"', f'"name":"{"a" * 10_000_000}"'), "the name of input 0 is 'aaaa"),
    "10 MB field": (changed('"ops"', f'"{"a" * 10_000_000}":1,"ops"'), "unknown field 'aaaa"),
    "too big": (" " * (64 * 2**20) + GOOD_JSON, "characters (at most 67108864)"),
    "deep": (changed('{"ref":"x"}', "[" * 40 + "]" * 40), "op 0 (aten.relu.default): nested deeper than 32"),
    "very deep": (changed('{"ref":"x"}', "[" * 100_000 + "]" * 100_000), "not a graph: JSON nested too deep"),
    "only deep": ('{"a":' * 100_000, "not a graph: JSON nested too deep"),
    "bytes": (GOOD_JSON.encode(), "not JSON text: a bytes"),  # type: ignore[dict-item]
    "cycle": (changed('{"ref":"x"}', '{"ref":"y"}'), "op 0 (aten.relu.default): uses 'y', which it defines itself"),
    "dtype": (changed('"float32"', '"float"'), "input 0 x: unknown dtype 'float'"),
}


@pytest.mark.parametrize("what", BAD_JSON)
def test_bad_json(what: str) -> None:
    text, message = BAD_JSON[what]
    assert message in (complaint(lambda: Graph.from_json(text)) or "it was read")


def read(text: str) -> None:
    """What is read is a graph that reads back, or one clear line."""
    if complaint(lambda: Graph.from_json(text)) is None:
        graph = Graph.from_json(text)
        assert Graph.from_json(graph.to_json()) == graph


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.sampled_from(["ref", "enum", "float", "complex", "tensor"]), inner)
    ),
    max_leaves=5,
)


def paths(item: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands in a JSON document."""
    inner = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ()
    return [path] + [found for key, value in inner for found in paths(value, (*path, key))]


@settings(max_examples=60)
@given(st.data())
def test_json_with_a_part_exchanged(data: st.DataObject) -> None:
    document = json.loads(data.draw(graphs(max_ops=3)).to_json())
    *path, last = data.draw(st.sampled_from(paths(document)[1:]))
    owner = document
    for step in path:
        owner = owner[step]
    way = data.draw(st.sampled_from(["replace", "delete", "double", "add"]))
    if way == "delete":
        del owner[last]
    elif way == "double" and isinstance(owner, list):
        owner.append(owner[last])
    elif way == "add" and isinstance(owner[last], dict):
        owner[last][data.draw(st.text(max_size=3))] = data.draw(values)
    else:
        owner[last] = data.draw(values)
    read(json.dumps(document))


@settings(max_examples=60)
@given(graphs(max_ops=2), st.data())
def test_text_with_some_characters_exchanged(graph: Graph, data: st.DataObject) -> None:
    text = graph.to_json()
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(start + 5, len(text))))
    new = data.draw(
        st.text(max_size=3) | st.sampled_from(["{", "}", "[", "]", ",", ":", '"', "1", "-", "NaN", "\\ud800"])
    )
    read(text[:start] + new + text[end:])


def test_depth_in_the_place_of_any_part() -> None:
    """As deep as JSON itself can be read: what looks at it may not go down after it."""
    document = json.loads(FULL.to_json())
    for *path, last in paths(document)[1:]:
        changed_document = json.loads(FULL.to_json())
        owner = changed_document
        for step in path:
            owner = owner[step]
        owner[last] = "DEEP"
        text = json.dumps(changed_document).replace('"DEEP"', "[" * 900 + "]" * 900)
        assert complaint(lambda text=text: Graph.from_json(text)) is not None  # type: ignore[misc]


@given(st.text() | values.map(json.dumps))
def test_text_that_was_never_a_graph(text: str) -> None:
    assert complaint(lambda: Graph.from_json(text)) is not None


LISTING = """
# 2 <= s0
def graph(
    x,  # cpu float32[4, s0] strides [s0, 1]
):
    y = aten.add.Tensor(x, 1.5, alpha=2)  # cpu float32[4, s0] strides [s0, 1]
    return y
"""


@pytest.mark.parametrize(
    ("there", "instead", "why"),
    [
        ("return y", "y", "its inputs"),
        ("# 2 <= s0", "# s0", "line 2: a symbol such as"),
        ("x,  # cpu", "x  # cpu", "line 4: an input such as"),
        (" strides [s0, 1]\n)", "\n)", r"line 4: ' strides \[', which a size that is no number leaves open"),
        ("alpha=2", "alpha=", "line 6: an argument is wanted where '"),
        ("alpha=2)", "alpha=2, x)", "line 6: a keyword argument is wanted"),
        ("x, 1.5", "'\\d', 1.5", "line 6: a string as Python writes it"),
        ("Tensor(x", "Tensor(z", "uses 'z', which nothing defines"),
        ("return y", "return y z", "line 7: the end of the line is wanted where ' z'"),
    ],
)
def test_a_listing_that_is_wrong(there: str, instead: str, why: str) -> None:
    assert Graph.parse(LISTING).outputs
    assert there in LISTING
    with pytest.raises(GraphError, match=why):
        Graph.parse(LISTING.replace(there, instead))


@settings(max_examples=60)
@given(graphs(max_ops=2, opaque=True), st.data())
def test_a_listing_with_some_characters_exchanged(graph: Graph, data: st.DataObject) -> None:
    text = str(graph)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(start + 5, len(text))))
    new = data.draw(st.text(max_size=3) | st.sampled_from(["(", ")", "[", "]", ", ", "; ", "  # ", "'", "=", "\n"]))
    try:
        found = Graph.parse(text[:start] + new + text[end:])
    except GraphError:
        return
    assert Graph.parse(str(found)) == found
