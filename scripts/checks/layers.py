"""Dependencies point one way, and the lower layers import no torch. Read from the source, not from what runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from checks.project import ROOT, modules
from checks.sources import imports

# Each layer may import itself and what stands above it here. A new module of fuseplan needs a place in this list.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "garbage", "log", "charts", "noise", "turns", "wire"),
    ("graph", "durations", "host_memory", "objective", "sizes"),
    (
        "host",
        "segment",
        "models",
        "tuning_db",
        "plan",
        "plan_format",
        "options",
        "drawing",
        "looking",
        "solver",
        "executors.known",
        "executors.traits",
        "executors.*.traits",
        "judge.output",
    ),
    ("kernels", "capture", "executors", "judge", "measure", "rewrites", "study"),
    ("runtime", "stats"),
    (
        "lookup",
        "by_size",
        "backend",
        "guard",
        "fleet",
        "reload",
        "tune",
        "rerace",
        "watch",
        "tuning",
        "verify",
        "explain",
        "doctor",
        "bisect",
    ),
    ("show", "diff", "draw", "bench", "judging", "record", "recording", "run", "thunder"),
    ("following",),
    ("cli", "tuning_db.dashboard", "measure.worker", "__main__"),
)
TORCH_FREE = LAYERS[:3]
ANYONE_MAY_READ = frozenset({"__version__"})


def violations(sources: Mapping[str, Path]) -> list[str]:
    """One line for each import that breaks the order; `sources` maps module names to files."""
    found = []
    edges: dict[str, set[str]] = {}
    for module, path in sorted(sources.items()):
        unit = unit_of(module)
        if unit is None:
            if module != "fuseplan":
                found.append(f"{path}: {module} has no layer: give it one in {Path(__file__).name}")
            continue
        for imported in imports(path):
            complaint = _complaint(unit, imported.name, edges)
            if complaint:
                found.append(f"{path}:{imported.line}: {complaint}")
    return found + [f"these import each other in a circle: {' -> '.join(cycle)}" for cycle in _cycles(edges)]


def torch_in(folder: Path) -> list[str]:
    """One line for each import of torch under a folder that is to run without it: the tests of planning."""
    return [
        f"{path}:{imported.line}: what is here runs without torch"
        for path in sorted(folder.rglob("*.py"))
        for imported in imports(path)
        if imported.name.split(".")[0] == "torch"
    ]


def unit_of(name: str) -> str | None:
    """The entry of LAYERS that a dotted name of fuseplan belongs to: the longest one that fits; `*` stands for any one folder."""
    parts = name.split(".")[1:]
    known = [unit for layer in LAYERS for unit in layer]
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((unit for prefix in prefixes for unit in known if fnmatchcase(prefix, unit)), None)


def _complaint(unit: str, imported: str, edges: dict[str, set[str]]) -> str | None:
    """Why `unit` may not import this name, or None; a legal edge between units is added to `edges`."""
    top, _, rest = imported.partition(".")
    if top == "torch" and any(unit in layer for layer in TORCH_FREE):
        return f"{unit} must not import torch"
    if top != "fuseplan" or rest in ANYONE_MAY_READ:
        return None
    other = unit_of(imported)
    if other is None:
        return None if _rank(unit) == len(LAYERS) - 1 else f"{unit} imports {imported}: name the module it comes from"
    if _rank(other) > _rank(unit):
        return f"{unit} must not import {other}, which builds on it"
    if other != unit:
        edges.setdefault(unit, set()).add(other)
    return None


def _rank(unit: str) -> int:
    return next(rank for rank, layer in enumerate(LAYERS) if unit in layer)


def _cycles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """The first circle of imports among the units, if there is one."""
    done: set[str] = set()

    def walk(unit: str, path: list[str]) -> list[str] | None:
        if unit in path:
            return [*path[path.index(unit) :], unit]
        if unit in done:
            return None
        done.add(unit)
        return next((found for other in sorted(edges.get(unit, ())) if (found := walk(other, [*path, unit]))), None)

    return [cycle for cycle in (walk(unit, []) for unit in sorted(edges)) if cycle][:1]


if __name__ == "__main__":
    problems = violations(modules(ROOT)) + torch_in(ROOT / "tests" / "unit")
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    sys.exit(bool(problems))
