"""What a newcomer would stumble over: circles of files, imports by text, long functions and files, a name with two classes."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from checks.project import ROOT, modules
from checks.sources import imports, imports_by_text, module_named, parsed, patches_by_text

MOST_LINES_OF_A_FUNCTION = 60
MOST_LINES_OF_A_FILE = 400
FOLDERS = ("planner", "models", "tuning_db", "scripts", "benchmarks")
ONE_CLASS_A_NAME = ("planner", "models", "tuning_db")
AROUND = ("scripts", "benchmarks")
"""Folders around the package, which may start it by name, but patch nothing in it by a text."""
PUBLIC_NAMES = "fuseplan"
"""The package whose table names our own modules as text: its public names load on first use."""


def circles(sources: Mapping[str, Path]) -> list[str]:
    """One line for each set of files that import each other, for type checkers or inside functions too.

    Who reads the version or another public name off the package itself imports what that is made of, not the package.
    """
    edges = {
        module: {
            found
            for imported in imports(path)
            if (found := module_named(imported.name, sources)) is not None and found not in (module, PUBLIC_NAMES)
        }
        for module, path in sources.items()
        if module != PUBLIC_NAMES
    }
    return [f"these files import each other: {', '.join(sorted(each))}" for each in _tied(edges)]


def texts(sources: Mapping[str, Path]) -> list[str]:
    """One line for each import of our own package by text, which hides it from the checks of direction and circles."""
    return [
        f"{path}:{line}: our own package is imported by a text: import it, where the layers allow it"
        for module, path in sorted(sources.items())
        if module != PUBLIC_NAMES
        for line in imports_by_text(path, sources)
    ]


def patches(files: Iterable[Path], sources: Mapping[str, Path]) -> list[str]:
    """One line for each text by which files around the package patch something in it: it breaks in silence when a module moves."""
    return [
        f"{path}:{line}: our own package is patched by a text: import the module, and patch it as an object"
        for path in files
        for line in patches_by_text(path, sources)
    ]


def long(files: Iterable[Path]) -> list[str]:
    """One line for each function and file that is too long."""
    found = []
    for path in files:
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > MOST_LINES_OF_A_FILE:
            found.append(f"{path}: {lines} lines, {MOST_LINES_OF_A_FILE} are enough for one subject")
        found += [f"{path}:{line}: {name} has {length} lines, {MOST_LINES_OF_A_FUNCTION} fit a screen"
                  for name, line, length in _functions(path) if length > MOST_LINES_OF_A_FUNCTION]  # fmt: skip
    return found


def named_twice(files: Iterable[Path]) -> list[str]:
    """One line for each public class whose name another file has given to a class of its own."""
    homes: dict[str, list[Path]] = {}
    for path in files:
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(path)
    return [
        f"class {name} is defined in {' and '.join(map(str, paths))}: one meaning a name"
        for name, paths in sorted(homes.items())
        if len(paths) > 1
    ]


def _functions(path: Path) -> Iterator[tuple[str, int, int]]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1


def _tied(edges: Mapping[str, set[str]]) -> list[set[str]]:
    """The sets of two and more modules of which each leads to every other."""
    ahead = {module: _reached(module, edges) for module in edges}
    found: list[set[str]] = []
    for module, reached in ahead.items():
        if module in reached and not any(module in known for known in found):
            found.append({other for other in reached if module in ahead.get(other, ())})
    return found


def _reached(start: str, edges: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = edges.get(waiting.pop(), set()) - seen
        seen |= new
        waiting += new
    return seen


def _files(folders: Iterable[str]) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def complaints() -> list[str]:
    """All that is wrong with the code of this repository."""
    sources = modules(ROOT)
    return [
        *circles(sources), *texts(sources), *patches(_files(AROUND), sources), *long(_files(FOLDERS)),
        *named_twice(_files(ONE_CLASS_A_NAME)),
    ]  # fmt: skip


if __name__ == "__main__":
    problems = complaints()
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    sys.exit(bool(problems))
