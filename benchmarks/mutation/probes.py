"""Which tests reach which mutants: a copy says so itself wherever an expression is evaluated that one of them changes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.mutation.sites import Mutant, mutants

Probes = Mapping[str, Mapping[tuple[int, int], int]]
"""Of each file the expressions that tell that they are evaluated, by their places, and what they tell."""


def probes(tree: Path, chosen: Sequence[Mutant]) -> Probes:
    """Those of the mutants, each of which tells its number; and where one changes what runs when its file is imported, one of
    each function of that file, which tells the number of the file, below zero.
    """
    found: dict[str, dict[tuple[int, int], int]] = {}
    files = list(dict.fromkeys(one.file for one in chosen))
    for number, one in enumerate(chosen):
        found.setdefault(one.file, {}).setdefault((one.start, one.end), number)
    for number, file in enumerate(files):
        source = (tree / file).read_text(encoding="utf-8")
        functions = list(_functions(ast.parse(source)))
        if all(_function(functions, one.line) for one in chosen if one.file == file):
            continue
        told = {_function(functions, one.line) for one in chosen if one.file == file}
        for one in mutants(file, source):
            function = _function(functions, one.line)
            if function is not None and function not in told:
                told.add(function)
                found[file].setdefault((one.start, one.end), -1 - number)
    return found


def run_at_import(tree: Path, chosen: Sequence[Mutant]) -> set[int]:
    """The numbers of those that no function holds."""
    found = set()
    for number, one in enumerate(chosen):
        functions = list(_functions(ast.parse((tree / one.file).read_text(encoding="utf-8"))))
        if _function(functions, one.line) is None:
            found.add(number)
    return found


def told_by(number: int, chosen: Sequence[Mutant]) -> int:
    """The number that a mutant's expression tells: that of the first one that changes it."""
    one = chosen[number]
    return next(
        i for i, other in enumerate(chosen) if (other.file, other.start, other.end) == (one.file, one.start, one.end)
    )


def file_number(chosen: Sequence[Mutant], file: str) -> int:
    """What functions of a file tell, where one of its mutants runs when it is imported."""
    return -1 - list(dict.fromkeys(one.file for one in chosen)).index(file)


def probed(source: bytes, places: Mapping[tuple[int, int], int]) -> bytes:
    """The file, whose expressions at these places tell a function called `__reached__` when they are evaluated.

    >>> probed(b"a + (b * 2)", {(0, 11): 7, (9, 10): 8})
    b'(__reached__(7), a + (b * (__reached__(8), 2)[1]))[1]'
    """
    inserted: list[tuple[int, int, bytes]] = []
    for number, ((start, end), told) in enumerate(sorted(places.items(), key=lambda one: (one[0][0], -one[0][1]))):
        inserted.append((start, number, b"(__reached__(%d), " % told))
        inserted.append((end, -number, b")[1]"))
    for place, _, text in sorted(inserted, reverse=True):
        source = source[:place] + text + source[place:]
    return source


def _functions(node: ast.AST) -> Iterator[tuple[int, int]]:
    """The first and the last line of the body of each outermost function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield child.body[0].lineno, child.end_lineno or child.lineno
        else:
            yield from _functions(child)


def _function(functions: Sequence[tuple[int, int]], line: int) -> tuple[int, int] | None:
    return next((one for one in functions if one[0] <= line <= one[1]), None)
