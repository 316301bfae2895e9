"""The names of a script, and what they are assigned: known without anything being run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_BLOCKS = (ast.If, ast.For, ast.While, ast.Try, ast.With)


@dataclass(eq=False)
class Scope:
    """The names that a body assigns, at which lines; bodies within blocks are part of it, functions are not."""

    body: Sequence[ast.stmt]
    parent: Scope | None = None
    assigned: dict[str, list[ast.Assign]] = field(default_factory=dict)
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    """Names of what does not stay as it was assigned."""

    def __post_init__(self) -> None:
        for statement in flat(self.body):
            if isinstance(statement, ast.Assign):
                for name in _names(statement):
                    self.assigned.setdefault(name, []).append(statement)
                self.changed.update(_changed(statement.targets))
            elif isinstance(statement, ast.AugAssign):
                self.changed.update(_changed([statement.target]), _name(statement.target))
            elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                self.changed.update(_grown(statement.value.func))
            elif isinstance(statement, ast.FunctionDef):
                self.functions[statement.name] = statement
            elif isinstance(statement, (ast.Import, ast.ImportFrom)):
                self.modules.update(_imported(statement))

    def assignment(self, name: str, line: int) -> ast.Assign | None:
        """The one that holds at a line: the last before it, else the first after it, as inputs often are."""
        found = self.assigned.get(name, [])
        before = [statement for statement in found if statement.lineno < line]
        return before[-1] if before else found[0] if found else None


def flat(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body and of the blocks in it."""
    for statement in body:
        yield statement
        if isinstance(statement, _BLOCKS):
            for part in ("body", "orelse", "finalbody"):
                yield from flat(getattr(statement, part, ()))


def _names(statement: ast.Assign) -> Iterator[str]:
    for target in statement.targets:
        for part in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
            if isinstance(part, ast.Name):
                yield part.id


def _changed(targets: Sequence[ast.expr]) -> Iterator[str]:
    """Of what is a part assigned."""
    for target in targets:
        if isinstance(target, ast.Subscript):
            yield from _name(target.value)


def _grown(function: ast.expr) -> Iterator[str]:
    if isinstance(function, ast.Attribute) and function.attr in ("append", "extend", "insert", "pop"):
        yield from _name(function.value)


def _name(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            yield alias.asname or alias.name, f"{node.module}.{alias.name}"
        else:
            yield alias.asname or alias.name.split(".")[0], alias.name if alias.asname else alias.name.split(".")[0]
