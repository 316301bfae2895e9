"""What tests import of each other, and of the package, is there: a name that moved would be found only by who runs that test."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from symtable import symtable

from checks.project import ROOT, modules
from checks.sources import imports, module_named


def missing(files: Mapping[str, Path], known: Mapping[str, Path]) -> list[str]:
    """One line for each name that a file takes from a known module which has no such name."""
    found = []
    for _, path in sorted(files.items()):
        for imported in imports(path):
            module = module_named(imported.name, known)
            name = imported.name.rpartition(".")[2]
            if module is not None and module != imported.name and not _names(known[module]) & {name, "__getattr__"}:
                found.append(f"{path}:{imported.line}: {module} has no {name}")
    return found


def modules_of_tests(root: Path) -> dict[str, Path]:
    """The modules under tests/ by the names that tests import them by."""
    files = sorted((root / "tests").rglob("*.py"))
    return {".".join(path.relative_to(root / "tests").with_suffix("").parts): path for path in files}


@cache
def _names(path: Path) -> set[str]:
    """What a module binds at its top level."""
    table = symtable(path.read_text(encoding="utf-8"), str(path), "exec")
    return {each.get_name() for each in table.get_symbols() if each.is_assigned() or each.is_imported()}


if __name__ == "__main__":
    tests = modules_of_tests(ROOT)
    problems = missing(tests, {**modules(ROOT), **tests})
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    sys.exit(bool(problems))
