"""`scripts/bench NAME`: run one benchmark, print what it measured, and write the result file."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.result import alone, commit, write_result


def names() -> list[str]:
    """The modules and packages of this folder that measure something."""
    here = Path(__file__).parent
    return sorted(
        path.parent.name if path.stem == "__init__" else path.stem
        for path in (*here.glob("*.py"), *here.glob("*/__init__.py"))
        if "\ndef measure(" in path.read_text("utf-8")
    )


def main(arguments: list[str]) -> int:
    """Run the benchmark that the first argument names."""
    if not arguments or arguments[0] not in names():
        print(f"usage: scripts/bench NAME [ARGUMENTS], where NAME is one of: {', '.join(names())}", file=sys.stderr)
        return 2
    name, *rest = arguments
    commit()  # now: what is committed meanwhile was not measured
    found = import_module(f"benchmarks.{name}").measure(rest)
    if found is None:  # it has run others, which have written theirs
        return 0
    with alone():
        measured = found() if callable(found) else found
        path = write_result(name, rest, measured)
    print(json.dumps(measured, indent=2))
    print(f"written to {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
