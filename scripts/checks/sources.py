"""What is read off the source of every file alike: its imports, and whether it names our own modules as text."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeGuard

IMPORTERS = frozenset({"import_module", "__import__", "find_spec", "resolve_name", "run_module"})
"""Functions that import what a text names."""
PATCHERS = frozenset({"patch"})
"""Functions that import what a text begins with, and put something else in its place."""
OWN_NAMES = frozenset({"__package__", "__name__"})


class Import(NamedTuple):
    """One name that a file imports, spelled in full, and the line where it does."""

    name: str
    line: int


def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return _parsed(path.read_text(encoding="utf-8"))


@cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def imports(path: Path) -> Iterator[Import]:
    """All imports of a file, those inside functions and for type checkers too."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (Import(f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def module_named(name: str, known: Mapping[str, Path]) -> str | None:
    """The module that a dotted name is, or that it is taken from; None for one that is not ours."""
    if name in known:
        return name
    parent = name.rpartition(".")[0]
    return parent if parent in known else None


def imports_by_text(path: Path, known: Mapping[str, Path]) -> Iterator[int]:
    """Lines where a file has a text to import what is ours by: the name of a module, if the file imports anything by text at all;
    and in every file a place in one, a name to be patched there, or a name that is put together from the file's own, which others
    may import by.
    """
    nodes = list(ast.walk(parsed(path)))
    calls = (node.func for node in nodes if isinstance(node, ast.Call))
    importing = any(_name(function) in IMPORTERS for function in calls)
    for node in nodes:
        if _is_place(node, known) or _is_put_together(node) or (importing and _names_ours(node, known)):
            yield node.lineno
    yield from patches_by_text(path, known)


def patches_by_text(path: Path, known: Mapping[str, Path]) -> Iterator[int]:
    """Lines where a file patches what is ours by a text such as `package.module.name`."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call) and node.args and _name(node.func) in PATCHERS:
            text = node.args[0]
            if isinstance(text, ast.Constant) and module_named(str(text.value), known) is not None:
                yield node.lineno


def _names_ours(node: ast.AST, known: Mapping[str, Path]) -> TypeGuard[ast.expr]:
    """Whether it is the name of a module of ours, or a text that begins like one."""
    if isinstance(node, ast.JoinedStr):
        return bool(node.values) and _begins_ours(node.values[0])
    return isinstance(node, ast.Constant) and node.value in known and node.value != "fuseplan"


def _is_place(node: ast.AST, known: Mapping[str, Path]) -> TypeGuard[ast.expr]:
    """Whether it is a text such as `module:Name`, of a module of ours."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return False
    module, _, name = node.value.partition(":")
    return module in known and module != "fuseplan" and name.isidentifier()


def _is_put_together(node: ast.AST) -> TypeGuard[ast.expr]:
    """Whether it is a text that the name of the file's own module or package is put into."""
    if isinstance(node, ast.JoinedStr):
        parts: list[ast.expr] = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
    elif isinstance(node, ast.BinOp):
        parts = [node.left, node.right]
    else:
        return False
    return any(isinstance(part, ast.Name) and part.id in OWN_NAMES for part in parts)


def _begins_ours(part: ast.expr) -> bool:
    return isinstance(part, ast.Constant) and str(part.value).startswith("fuseplan.")


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
