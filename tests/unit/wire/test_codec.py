"""Dataclasses come back from JSON as they were, and what does not fit is refused with the place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest

from fuseplan.tuning_db.records import NO_REPEATS, Repeats
from fuseplan.wire import codec
from fuseplan.wire.codec import AMONG_OTHERS, UNLESS_DEFAULT, CodecError, Only


@dataclass(frozen=True)
class Point:
    """Two numbers and a word."""

    x: float
    y: int = 0
    side: Literal["left", "right"] = "left"


@dataclass(frozen=True)
class Circle:
    """A point and a radius that may be unknown."""

    middle: Point
    radius: float | None = None


SHAPE = Point | Circle


@dataclass(frozen=True)
class Drawing:
    """One of everything."""

    shapes: tuple[SHAPE, ...] = ()
    corners: tuple[int, str] = (0, "")
    names: Mapping[str, Point] = field(default_factory=dict)
    repeats: Repeats = NO_REPEATS
    anything: Any = None
    lists: list[bool] = field(default_factory=list)
    first: SHAPE | None = None
    note: float = field(default=0.0, compare=False)


FULL = Drawing(
    (Point(1.5, 2, "right"), Circle(Point(0.0), 3.0), Circle(Point(1.0))),
    (3, "three"),
    {"origin": Point(0.0)},
    Repeats((1.0, 2.5)),
    {"any": [1, None, "thing"]},
    [True, False],
    Point(9.0),
)


@pytest.mark.parametrize("drawing", [Drawing(), FULL])
def test_what_was_written_comes_back(drawing: Drawing) -> None:
    text = codec.to_json(drawing)
    assert "\n" not in text
    assert codec.from_json(Drawing, text) == drawing
    assert codec.from_json(Drawing, text.encode()) == drawing


def test_a_union_is_told_apart_by_the_name_of_the_class() -> None:
    for shape in (Point(1.0), Circle(Point(2.0))):
        assert codec.from_json(SHAPE, codec.to_json(shape, SHAPE)) == shape


def test_a_note_stays_where_it_was_made() -> None:
    assert codec.from_json(Drawing, codec.to_json(Drawing(note=float("inf")))).note == 0.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Point is no JSON: "),
        ("[]", r"Point is \[\], which is not an object"),
        ('{"x":1.0,"y":2}', "Point misses side"),
        ('{"x":1.0,"y":2,"side":"left","z":3}', "Point has no z"),
        ('{"x":"1","y":2,"side":"left"}', "Point.x is '1', which is not float"),
        ('{"x":true,"y":2,"side":"left"}', "Point.x is True, which is not float"),
        ('{"x":1.0,"y":2.0,"side":"left"}', "Point.y is 2.0, which is not int"),
        ('{"x":1.0,"y":null,"side":"left"}', "Point.y is None, which is not int"),
        ('{"x":1.0,"y":2,"side":"up"}', "Point.side is 'up', which is not "),
        ('{"x":NaN,"y":2,"side":"left"}', "NaN is no number"),
        ('{"x":Infinity,"y":2,"side":"left"}', "Infinity is no number"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_place(text: str, message: str) -> None:
    with pytest.raises(CodecError, match=message) as refused:
        codec.from_json(Point, text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shapes": {}}, "Drawing.shapes is {}, which is not a list"),
        (
            {"shapes": [{"kind": "Square"}]},
            r"kind of Drawing.shapes\[0\] is 'Square', which is not one of Point, Circle",
        ),
        ({"shapes": [7]}, "which is not one of Point, Circle"),
        ({"corners": [1]}, r"Drawing.corners is \[1\], which is not a list of 2"),
        ({"names": []}, r"Drawing.names is \[\], which is not an object"),
        ({"names": {"a": 1}}, "Drawing.names.a is 1, which is not an object"),
        ({"repeats": 1}, "Drawing.repeats is 1, which is not str"),
        ({"lists": [1]}, r"Drawing.lists\[0\] is 1, which is not bool"),
    ],
)
def test_the_place_is_told_however_deep_it_is(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CodecError, match=message):
        codec.read(Drawing, {**codec.plain(Drawing()), **change})


def test_what_is_no_number_is_not_written() -> None:
    with pytest.raises(CodecError, match="Point cannot be written as JSON"):
        codec.to_json(Point(float("nan")))


def test_a_type_that_has_no_json_is_a_mistake_of_the_program() -> None:
    with pytest.raises(TypeError, match="there is no JSON for"):
        codec.to_json({1})


@dataclass(frozen=True)
class Street:
    """Values of which not all are good, and one that is written only where there is something to write."""

    length: Annotated[float, Only(lambda value: None if value >= 0 else "a length", lambda value: round(value, 1))] = (
        0.0
    )
    note: str = field(default="", metadata=UNLESS_DEFAULT)

    def to_json(self) -> str:
        """Its fields and more, as a class that has JSON of its own writes them."""
        return f"street {codec.plain_fields(self)}"


def test_which_values_of_a_type_are_good_stands_beside_it() -> None:
    assert codec.plain_fields(Street(1.26)) == {"length": 1.3}
    assert codec.read_fields(Street, {"length": 1.3}) == Street(1.3)
    with pytest.raises(CodecError, match=r"Street\.length is -1\.0, which is not a length"):
        codec.read_fields(Street, {"length": -1.0})


def test_a_field_may_be_left_out_where_it_has_its_default() -> None:
    assert codec.read_fields(Street, codec.plain_fields(Street(2.0, "new"))) == Street(2.0, "new")
    for data, message in (({"length": 1.0, "note": ""}, "Street.note is ''"), ({"note": "new"}, "misses length")):
        with pytest.raises(CodecError, match=message):
            codec.read_fields(Street, data)


@dataclass(frozen=True)
class House:
    """One whose street stands among its own fields."""

    number: int
    street: Street = field(metadata=AMONG_OTHERS)


def test_the_fields_of_a_part_may_stand_among_those_of_the_whole() -> None:
    for street in (Street(2.0, "new"), Street(2.0)):
        house = House(3, street)
        assert codec.read(House, codec.plain_fields(house)) == house
    assert codec.plain_fields(House(3, Street(2.0, "new"))) == {"number": 3, "length": 2.0, "note": "new"}
    for data, message in (
        ({"number": 3}, "House misses length"),
        ({"number": 3, "length": -1.0}, r"House\.length is -1\.0"),
        ({"number": 3, "length": 1.0, "street": {}}, "House has no street"),
        ({"number": 3, "length": 1.0, "way": 1}, "House has no way"),
    ):
        with pytest.raises(CodecError, match=message):
            codec.read(House, data)
