"""Dataclasses as JSON and back, by their type hints: nothing is written by hand, and nothing is taken that does not fit.

Known are str, int, float, bool, None, Any, Literal, tuples, lists, mappings from text, dataclasses, unions of dataclasses, which
travel with the name of their class, and classes with a `to_json` and a `from_json` of their own, which travel as that text.
Which values of a type are good can stand beside it: ``Annotated[float, Only(...)]``.
A field that two equal objects may differ in (`compare=False`) is a note of whoever made the object, and stays there.
"""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, overload

from fuseplan.errors import FuseplanError

_T = TypeVar("_T")
_KIND = "kind"
"""The key under which a member of a union says of which class it is."""
_CLASSES: Mapping[Any, frozenset[type]] = {
    **{kind: frozenset({kind}) for kind in (str, int, bool, type(None))}, float: frozenset({float, int})
}  # fmt: skip
"""Types that JSON has itself, and the classes of their values."""
_PLAIN: Mapping[str, Any] = {**{kind.__name__: kind for kind in _CLASSES}, "str | None": str | None}
"""Hints that mean the same everywhere."""
_SHOWN = 40
"""So many letters of what does not fit are shown."""
UNLESS_DEFAULT = {"unless default": True}
"""Metadata of a field that is written only where it differs from its default: what came before the field has no word of it."""
AMONG_OTHERS = {"among others": True}
"""Metadata of a field that holds a dataclass, whose own fields stand among those of the object that has it."""


class CodecError(FuseplanError):
    """A text is not the JSON of what was expected: what is wrong, and where."""


class _Form(NamedTuple):
    """How one type is written as plain data, and read from it; reading hears the place, for what it complains of. Places inside
    of it are made up when there is something to complain of: what fits is read without them.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any, str], Any]
    are_values: Callable[[list[Any]], bool] | None = None
    """Whether data are values of the type just as they stand: of a whole list, since a call for each takes longer than the rest."""


class Only(NamedTuple):
    """Which values of a type are good, and how they are written, where that is not as they are."""

    wanted: Callable[[Any], str | None]
    """What a value should be and is not; None for one that is good."""
    write: Callable[[Any], Any] | None = None


def to_json(value: Any, kind: Any = None) -> str:
    """One line of JSON; `kind` is the type that it will be read as, where that is not its class.

    >>> from fuseplan.measure.race import Sample
    >>> to_json(Sample(1.0, 2.0, 3.5))
    '{"device_us":1.0,"host_us":2.0,"wall_us":3.5,"seconds":0.0,"held_up":0.0}'
    """
    try:
        return json.dumps(plain(value, kind), separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise CodecError(f"{type(value).__name__} cannot be written as JSON: {error}") from None


@overload
def from_json(kind: type[_T], text: str | bytes) -> _T: ...
@overload
def from_json(kind: Any, text: str | bytes) -> Any: ...
def from_json(kind: Any, text: str | bytes) -> Any:
    """What `to_json` wrote; CodecError for anything else.

    >>> from fuseplan.measure.race import Sample
    >>> from_json(Sample, '{"device_us":1.0,"host_us":2.0,"wall_us":"3"}')
    Traceback (most recent call last):
    ...
    fuseplan.wire.codec.CodecError: Sample misses held_up, seconds
    """
    try:
        data = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"{_name(kind)} is no JSON: {error}") from None
    return read(kind, data)


def plain(value: Any, kind: Any = None) -> Any:
    """A value as what JSON has: dicts, lists, text, numbers."""
    form: _Form = _form(_class(value) if kind is None else kind)
    return form.write(value)


def read(kind: Any, data: Any) -> Any:
    """The value of that type that `plain` wrote."""
    return _form(kind).read(data, _name(kind))


def plain_fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass as what JSON has, though it has a `to_json` of its own."""
    found: dict[str, Any] = _object(_class(value)).write(value)
    return found


def read_fields(kind: type[_T], data: Any) -> _T:
    """The dataclass whose fields `plain_fields` wrote."""
    found: _T = _object(_same(kind)).read(data, _name(kind))
    return found


def prepared(kind: type[_T]) -> type[_T]:
    """A dataclass whose form is made with it: whoever reads the first one in a process does not wait for that."""
    _object(_same(kind))
    return kind


@cache
def _form(kind: Any) -> _Form:
    """The form of one type; `_form` of a type that holds itself is asked for when it is met, not before."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return _Form(_same, lambda data, at: data)
    if kind in _CLASSES:
        return _simple(kind)
    if origin is Annotated:
        return _only(*inner)
    if origin is Literal:
        return _Form(_same, lambda data, at: data if _is_one_of(data, inner) else _misfit(data, _name(kind), at))
    if origin in (Union, types.UnionType):
        return _union(inner)
    if origin is tuple and inner[-1:] != (...,):
        return _row(inner)
    if origin in (tuple, list):
        return _sequence(origin, inner[0])
    if origin in (dict, Mapping):
        return _mapping(inner[1])
    if hasattr(kind, "to_json") and hasattr(kind, "from_json"):
        return _Form(lambda value: value.to_json(), lambda data, at: kind.from_json(_form(str).read(data, at)))
    if is_dataclass(kind):
        return _object(_same(kind))
    raise TypeError(f"there is no JSON for {kind!r}")


def _simple(kind: Any) -> _Form:
    fits = _CLASSES[kind]
    return _Form(
        _same,
        lambda data, at: data if type(data) in fits else _misfit(data, _name(kind), at),
        lambda data: fits.issuperset(map(type, data)),
    )


def _only(kind: Any, only: Only) -> _Form:
    """A type of which not all values are good."""
    form, fits = _form(kind), _CLASSES.get(kind, frozenset())

    def read_good(data: Any, at: str) -> Any:
        value = data if type(data) in fits else form.read(data, at)
        wanted = only.wanted(value)
        return value if wanted is None else _misfit(data, wanted, at)

    def are_good(data: list[Any]) -> bool:
        return fits.issuperset(map(type, data)) and not any(map(only.wanted, data))

    return _Form(only.write or form.write, read_good, are_good if fits else None)


def _union(members: tuple[Any, ...]) -> _Form:
    """A class or None, or one of several classes by name."""
    kinds = [one for one in members if one is not type(None)]
    optional = len(kinds) < len(members)
    if len(kinds) == 1:
        inner = _form(kinds[0])
        return _Form(
            lambda value: None if value is None else inner.write(value),
            lambda data, at: None if data is None else inner.read(data, at),
        )
    named = {one.__name__: one for one in kinds}

    def write(value: Any) -> Any:
        return None if value is None else {_KIND: type(value).__name__, **_form(_class(value)).write(value)}

    def read_one(data: Any, at: str) -> Any:
        if data is None and optional:
            return None
        name = data.get(_KIND) if isinstance(data, dict) else None
        if not isinstance(name, str) or name not in named:
            return _misfit(name, f"one of {', '.join(named)}", f"{_KIND} of {at}")
        return _form(named[name]).read({key: value for key, value in data.items() if key != _KIND}, name)

    return _Form(write, read_one)


def _row(kinds: tuple[Any, ...]) -> _Form:
    """A tuple with a type for each place."""
    forms = [_form(kind) for kind in kinds]

    def read_row(data: Any, at: str) -> Any:
        if not isinstance(data, list) or len(data) != len(forms):
            return _misfit(data, f"a list of {len(forms)}", at)
        return tuple(form.read(one, f"{at}[{i}]") for i, (form, one) in enumerate(zip(forms, data, strict=True)))

    return _Form(lambda value: [form.write(one) for form, one in zip(forms, value, strict=True)], read_row)


def _sequence(origin: Any, kind: Any) -> _Form:
    form = _form(kind)
    are_values = form.are_values

    def read_all(data: Any, at: str) -> Any:
        if not isinstance(data, list):
            return _misfit(data, "a list", at)
        if not data or (are_values is not None and are_values(data)):
            return origin(data)
        try:
            return origin([form.read(one, at) for one in data])
        except CodecError:
            for i, one in enumerate(data):
                form.read(one, f"{at}[{i}]")  # which says where
            raise

    return _Form(list if form.write is _same else lambda value: [form.write(one) for one in value], read_all)


def _mapping(kind: Any) -> _Form:
    form = _form(kind)

    def read_all(data: Any, at: str) -> Any:
        if not isinstance(data, dict):
            return _misfit(data, "an object", at)
        return {key: form.read(one, f"{at}.{key}") for key, one in data.items()}

    return _Form(lambda value: {key: form.write(one) for key, one in value.items()}, read_all)


@cache
def _object(kind: Any) -> _Form:
    """A dataclass: exactly its fields, but for notes."""
    hints, own = _hints(kind), fields(kind)
    forms = {one.name: _form(hints[one.name]) for one in own if one.compare}
    defaults = {one.name: one.default for one in own if one.metadata == UNLESS_DEFAULT}
    among = {one.name: _names_in(hints[one.name]) for one in own if one.metadata == AMONG_OTHERS}
    forms |= {name: _object(hints[name]) for name in among}
    writes = [(name, form.write) for name, form in forms.items()]
    reads = {name: form.read for name, form in forms.items()}
    needed = forms.keys() - defaults.keys()

    def read_object(data: Any, at: str) -> Any:
        if not isinstance(data, dict):
            return _misfit(data, "an object", at)
        data = _gathered(data, among, at) if among else data
        names = data.keys()
        if names != forms.keys() and not needed <= names <= forms.keys():
            missing, unknown = sorted(needed - names), sorted(names - forms.keys())
            raise CodecError(f"{at} misses {', '.join(missing)}" if missing else f"{at} has no {', '.join(unknown)}")
        try:
            values = {name: reads[name](one, at) for name, one in data.items()}
        except CodecError:
            for name, form in forms.items():
                if name in data:
                    form.read(data[name], at if name in among else f"{at}.{name}")  # which says where
            raise
        again = _first_default(values, defaults)
        return kind(**values) if again is None else _misfit(data[again], "written where it is that", f"{at}.{again}")

    def write(value: Any) -> dict[str, Any]:
        found = {name: write_one(getattr(value, name)) for name, write_one in writes}
        for name, default in defaults.items():
            if getattr(value, name) == default:
                del found[name]
        for name in among:
            found |= found.pop(name)
        return found

    return _Form(write, read_object)


def _hints(kind: Any) -> dict[str, Any]:
    """What `get_type_hints` gives, of a dataclass. It compiles each hint by itself, which the first look-up of a process waits for."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        hints = getattr(base, "__annotations__", {})
        texts = {name: one for name, one in hints.items() if type(one) is str and one not in _PLAIN}
        found |= {name: _PLAIN.get(one, one) for name, one in hints.items() if name not in texts}
        if texts:
            around = vars(sys.modules[base.__module__])
            found |= zip(
                texts, eval(f"[{','.join(texts.values())}]", around, vars(base)), strict=True
            )  # our own source
    return found


def _names_in(kind: Any) -> frozenset[str]:
    return frozenset(one.name for one in fields(kind) if one.compare)


def _first_default(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> str | None:
    """The first field that is there with its default."""
    for name, default in defaults.items():
        if name in values and values[name] == default:
            return name
    return None


def _gathered(data: Mapping[str, Any], among: Mapping[str, frozenset[str]], at: str) -> Mapping[str, Any]:
    """An object as it was written, with the fields of each part that stand among the others gathered under its name."""
    for name, inside in among.items():
        if name in data and name not in inside:
            raise CodecError(f"{at} has no {name}")
        own = {key: value for key, value in data.items() if key in inside}
        data = {**{key: value for key, value in data.items() if key not in inside}, name: own}
    return data


def _class(value: Any) -> Any:
    return type(value)


def _same(value: Any) -> Any:
    return value


def _is_one_of(data: Any, known: tuple[Any, ...]) -> bool:
    return any(type(data) is type(one) and data == one for one in known)


def _misfit(data: Any, wanted: str, at: str) -> Any:
    raise CodecError(f"{at} is {repr(data)[:_SHOWN]}, which is not {wanted}")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
