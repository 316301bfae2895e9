"""The listing of a graph -> the fields of a Graph: reads what `printing` wrote, line by line; `validate` then checks it."""

from __future__ import annotations

import ast
import re
import warnings
from typing import NoReturn

from fuseplan.errors import GraphError
from fuseplan.graph.ir import (
    Alias,
    Arg,
    Constant,
    Dim,
    Enum,
    NoneType,
    Op,
    OpaqueType,
    Ref,
    ScalarType,
    Symbol,
    TensorType,
    Type,
    Value,
)
from fuseplan.graph.limits import LAYOUTS, MAX_NESTING, MEMORY_FORMATS, short
from fuseplan.graph.printing import dense_strides

Fields = tuple[tuple[Value, ...], tuple[Op, ...], tuple[Arg, ...], tuple[Constant, ...], tuple[Symbol, ...]]

_NAME = r"[A-Za-z_]\w*"
_INT = r"-?\d{1,24}"  # one of 2**64 has 20
_SYMBOL = re.compile(rf"# ({_INT}) <= ({_NAME})(?: <= ({_INT}))?(?:, such as ({_INT}))?", re.ASCII)
_INPUT = re.compile(rf"({_NAME}),  # ", re.ASCII)
_CONSTANT = re.compile(rf'({_NAME}) = constant\("([0-9a-f]*)"\)  # ', re.ASCII)
_CALL = re.compile(rf"(?:({_NAME}(?:, {_NAME})*) = )?({_NAME}(?:\.\w+)*)\(", re.ASCII)
_KEYWORD = re.compile(rf"({_NAME})=", re.ASCII)
_TENSOR = re.compile(r"([a-z][a-z_]*(?::\d+)?) (\w+)\[", re.ASCII)
_SCALAR = re.compile(r"(int|float|bool) ", re.ASCII)
_SHARES = re.compile(rf"({_NAME}) shares ({_NAME})", re.ASCII)
_MUTATES = re.compile(rf"mutates ({_NAME}(?:, {_NAME})*)", re.ASCII)
_STRING = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
_NUMBER = re.compile(rf"{_INT}(?P<fraction>\.\d+)?(?P<exponent>e[+-]?\d+)?", re.ASCII)
_NAMED = re.compile(r"(value|device|float)\(")
_WORD = re.compile(rf"(?:torch\.)?{_NAME}", re.ASCII)
_CONSTANTS: dict[str, Arg] = {"None": None, "True": True, "False": False}


def fields(text: str) -> Fields:
    """The arguments of Graph, in its order."""
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    marks = [line for _, line in lines]
    if "def graph(" not in marks or "):" not in marks or not re.match("return( |$)", marks[-1]):
        raise GraphError(
            "not the text of a graph: it wants 'def graph(', its inputs, '):', ops, and a last line 'return …'"
        )
    start, body = marks.index("def graph("), marks.index("):")
    symbols = tuple(_symbol(_Line(*line)) for line in lines[:start])
    inputs = tuple(_input(_Line(*line)) for line in lines[start + 1 : body])
    constants: list[Constant] = []
    ops: list[Op] = []
    for line in lines[body + 1 : -1]:
        if not ops and _CONSTANT.match(line[1]):
            constants.append(_constant(_Line(*line)))
        else:
            ops.append(_op(_Line(*line)))
    return inputs, tuple(ops), _outputs(_Line(*lines[-1])), tuple(constants), symbols


class _Line:
    """One line of the text, and how far it has been read."""

    def __init__(self, number: int, text: str) -> None:
        self.number, self.text, self.at = number, text, 0

    def fail(self, wanted: str) -> NoReturn:
        rest = self.text[self.at :]
        raise GraphError(f"line {self.number}: {wanted} is wanted where {short(rest) if rest else 'the line ends'}")

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
        return match

    def must(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        return self.take(pattern) or self.fail(what)

    def skip(self, text: str) -> bool:
        found = self.text.startswith(text, self.at)
        self.at += len(text) if found else 0
        return found

    def expect(self, text: str) -> None:
        if not self.skip(text):
            self.fail(repr(text))

    def end(self) -> None:
        if self.at < len(self.text):
            self.fail("the end of the line")


def _symbol(line: _Line) -> Symbol:
    low, name, high, hint = line.must(_SYMBOL, "a symbol such as '# 2 <= s0 <= 9, such as 4'").groups()
    line.end()
    return Symbol(name, int(low), None if high is None else int(high), None if hint is None else int(hint))


def _input(line: _Line) -> Value:
    value = Value(line.must(_INPUT, "an input such as 'x,  # cpu float32[8]'")[1], _type(line))
    line.end()
    return value


def _constant(line: _Line) -> Constant:
    name, data = line.must(_CONSTANT, "a constant").groups()
    value = Value(name, _type(line))
    line.end()
    return Constant(value, data)


def _outputs(line: _Line) -> tuple[Arg, ...]:
    line.expect("return")
    found: list[Arg] = []
    while line.skip(", " if found else " "):
        found.append(_arg(line))
    line.end()
    return tuple(found)


def _op(line: _Line) -> Op:
    names, target = line.must(_CALL, "a call such as 'y = aten.relu.default(x)  # cpu float32[8]'").groups()
    args: list[Arg] = []
    kwargs: list[tuple[str, Arg]] = []
    while not line.skip(")"):
        if args or kwargs:
            line.expect(", ")
        keyword = line.take(_KEYWORD)
        if keyword is not None:
            kwargs.append((keyword[1], _arg(line)))
        elif kwargs:
            line.fail("a keyword argument")
        else:
            args.append(_arg(line))
    outputs: list[Value] = []
    if names:
        for name in names.split(", "):
            line.expect(", " if outputs else "  # ")
            outputs.append(Value(name, _type(line)))
    found = Op(target, tuple(args), tuple(kwargs), tuple(outputs), *_effects(line, [v.name for v in outputs]))
    line.end()
    return found


def _effects(line: _Line, outputs: list[str]) -> tuple[tuple[Alias, ...], tuple[str, ...], bool, str | None]:
    """What an op does besides giving its outputs, which the notes behind their types say."""
    aliases: list[Alias] = []
    mutates: tuple[str, ...] = ()
    random, opaque = False, None
    first = not outputs
    while line.skip("  # " if first else "; "):
        first = False
        shares = line.take(_SHARES)
        if shares is not None:
            if shares[1] not in outputs:
                line.fail(f"an output of the op, which {shares[1]} is not,")
            aliases.append(Alias(outputs.index(shares[1]), shares[2]))
        elif changed := line.take(_MUTATES):
            mutates = tuple(changed[1].split(", "))
        elif line.skip("random"):
            random = True
        else:
            line.expect("opaque: ")
            opaque = _string(line)
    return tuple(aliases), mutates, random, opaque


def _type(line: _Line) -> Type:
    tensor = line.take(_TENSOR)
    if tensor is not None:
        device, dtype = tensor.groups()
        shape = _dims(line)
        stride = _dims(line) if line.skip(" strides [") else dense_strides(shape)
        if stride is None:
            line.fail("' strides [', which a size that is no number leaves open,")
        return TensorType(dtype, shape, stride, device)
    scalar = line.take(_SCALAR)
    if scalar is not None:
        return ScalarType(scalar[1], str(_dim(line, as_text=True)))
    if line.skip("opaque: "):
        return OpaqueType(_string(line))
    line.expect("None")
    return NoneType()


def _dims(line: _Line) -> tuple[Dim, ...]:
    """The sizes up to a closing bracket."""
    found: list[Dim] = []
    while not line.skip("]"):
        if found:
            line.expect(", ")
        found.append(_dim(line))
    return tuple(found)


def _dim(line: _Line, *, as_text: bool = False) -> Dim:
    """A number, or an expression up to a comma, semicolon or bracket that is not its own."""
    if line.text[line.at : line.at + 1] in ("'", '"'):
        return _string(line)
    start, depth = line.at, 0
    while line.at < len(line.text) and (depth or line.text[line.at] not in ",;]"):
        depth += {"(": 1, ")": -1}.get(line.text[line.at], 0)
        line.at += 1
    text = line.text[start : line.at]
    if not text:
        line.fail("a size")
    return int(text) if re.fullmatch(_INT, text, re.ASCII) and not as_text else text


def _string(line: _Line) -> str:
    text = line.must(_STRING, "a string in quotes")[0]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an escape that Python does not know
            return str(ast.literal_eval(text))
    except (SyntaxError, ValueError):
        line.fail("a string as Python writes it")


def _arg(line: _Line, depth: int = 0) -> Arg:
    if depth > MAX_NESTING:
        line.fail(f"no more than {MAX_NESTING} brackets in each other")
    if line.skip("["):
        items: list[Arg] = []
        while not line.skip("]"):
            if items:
                line.expect(", ")
            items.append(_arg(line, depth + 1))
        return tuple(items)
    if line.text[line.at : line.at + 1] in ("'", '"'):
        return _string(line)
    call = line.take(_NAMED)
    if call is not None:
        text = _string(line)
        line.expect(")")
        return _named(line, call[1], text)
    if line.skip("complex("):
        real = _arg(line)
        line.expect(", ")
        imag = _arg(line)
        line.expect(")")
        if not isinstance(real, float) or not isinstance(imag, float):
            line.fail("a complex number of two floats")
        return complex(real, imag)
    number = line.take(_NUMBER)
    if number is not None:
        return float(number[0]) if number["fraction"] or number["exponent"] else int(number[0])
    return _word(line.must(_WORD, "an argument")[0])


def _named(line: _Line, call: str, text: str) -> Arg:
    if call == "value":
        return Ref(text)
    if call == "device":
        return Enum("device", text)
    if text not in ("nan", "inf", "-inf"):
        line.fail("nan, inf or -inf as a float in quotes")
    return float(text)


def _word(word: str) -> Arg:
    """A bare word: a value's name, or one of Python's or torch's constants."""
    if not word.startswith("torch."):
        return _CONSTANTS[word] if word in _CONSTANTS else Ref(word)
    name = word.removeprefix("torch.")
    if name in LAYOUTS:
        return Enum("layout", name)
    return Enum("memory_format" if name in MEMORY_FORMATS else "dtype", name)
