"""The `packages` of pyproject.toml are the folders on the disk: one that is not listed would miss from the wheel."""

from __future__ import annotations

import sys
from pathlib import Path

from checks.project import FOLDERS, ROOT, listed_packages, packages


def differences(root: Path) -> list[str]:
    """One line for each package that is listed but not there, there but not listed, listed twice, or hidden by a file."""
    names, there = listed_packages(root), packages(root)
    listed = set(names)
    found = [f"pyproject.toml lists {name} twice" for name in sorted(listed) if names.count(name) > 1]
    found += [f"pyproject.toml lists {name}, but there is no such folder" for name in sorted(listed - there.keys())]
    found += [
        f"{there[name]} is not in `packages` of pyproject.toml as {name}" for name in sorted(there.keys() - listed)
    ]
    found += [f"{path} has no __init__.py" for path in there.values() if not (path / "__init__.py").exists()]
    for name in FOLDERS.keys() - {"fuseplan"}:
        hidden = root / "planner" / f"{name.removeprefix('fuseplan.')}.py"
        if hidden.exists():
            found.append(f"{hidden} stands where the package {name} does")
    return found


if __name__ == "__main__":
    problems = differences(ROOT)
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    sys.exit(bool(problems))
