"""Places of a Python file where one operator, constant or condition can be changed."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: the text of an expression of a file, by its place, and what stands there instead."""

    file: str
    line: int
    kind: str
    start: int
    end: int
    """Offsets of the expression in the bytes of the file."""
    before: str
    after: str

    def applied(self, source: bytes) -> bytes:
        """The file with the change."""
        return source[: self.start] + self.after.encode() + source[self.end :]


def drawn(tree: Path, folder: str, count: int, seed: int) -> list[Mutant]:
    """So many mutants of a folder of a checkout, all different: a file is drawn in proportion to its lines, then a place in it."""
    draw = random.Random(seed)
    files = sorted(str(path.relative_to(tree)) for path in (tree / folder).rglob("*.py"))
    lines = [len((tree / file).read_bytes().splitlines()) for file in files]
    left: dict[str, list[Mutant]] = {}
    found: list[Mutant] = []
    while len(found) < count:
        (file,) = draw.choices(files, lines)
        if file not in left:
            left[file] = sorted(mutants(file, (tree / file).read_text(encoding="utf-8")), key=lambda one: one.start)
            draw.shuffle(left[file])
        if left[file]:
            found.append(left[file].pop())
        elif not any(left.get(other, [None]) for other in files):
            break
    return found


def mutants(file: str, source: str) -> Iterator[Mutant]:
    """All mutants of a file, in the order of its syntax tree.

    >>> [one.after for one in mutants("f.py", "if a < 3: pass")]
    ['(not a < 3)', '(a <= 3)', '4']
    """
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, kind, changed in _changes(ast.parse(source)):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        before, after = source.encode()[start:end].decode(), ast.unparse(changed)
        if not isinstance(changed, ast.Constant):
            after = f"({after})"
        yield Mutant(file, node.lineno, kind, start, end, before, after)


def _changes(tree: ast.AST) -> Iterator[tuple[ast.expr, str, ast.expr]]:
    """Each expression that can be changed, and what it becomes: types, text and what only type checkers read are left out."""
    for node in _walk(tree):
        conditions: Sequence[ast.expr] = ()
        if isinstance(node, (ast.If, ast.While, ast.IfExp)):
            conditions = [node.test]
        elif isinstance(node, ast.comprehension):
            conditions = node.ifs
        for test in conditions:
            yield test, "condition", ast.UnaryOp(ast.Not(), test)
        if isinstance(node, ast.Compare):
            for i, op in enumerate(node.ops):
                ops = [*node.ops[:i], _other(op), *node.ops[i + 1 :]]
                yield node, "operator", ast.Compare(node.left, ops, node.comparators)
        elif isinstance(node, ast.BoolOp):
            yield node, "operator", ast.BoolOp(_other(node.op), node.values)
        elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS and not _is_text(node):
            yield node, "operator", ast.BinOp(node.left, _other(node.op), node.right)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node, "operator", node.operand
        elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
            yield node, "constant", ast.Constant(_other_number(node.value))


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run: no annotations, no f-strings, whose insides have no place of their own before Python 3.12."""
    if isinstance(node, ast.JoinedStr):
        return
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walk(child)


def _other(op: ast.AST) -> Any:
    return _OPERATORS[type(op)]()


def _other_number(value: float) -> float:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else value * 2 or 1.0


def _is_text(node: ast.BinOp) -> bool:
    """Whether one side is a literal text or list, or names a type: `a + "x"` has no other operator, `A | None` is a type."""
    kinds = (ast.JoinedStr, ast.List, ast.Tuple)
    return any(
        isinstance(side, kinds)
        or (isinstance(side, ast.Constant) and (isinstance(side.value, str) or side.value is None))
        for side in (node.left, node.right)
    )
