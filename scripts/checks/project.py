"""Where the code is: the folders of this repository, and the package names that pyproject.toml gives them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"fuseplan": "planner", "fuseplan.models": "models", "fuseplan.tuning_db": "tuning_db"}


def packages(root: Path) -> dict[str, Path]:
    """Package names and folders, read from the disk: every folder with Python files in it."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.parent.relative_to(root / folder).parts
            found[".".join((package, *parts))] = path.parent
    return found


def modules(root: Path) -> dict[str, Path]:
    """Module names and files."""
    found = {}
    for package, folder in packages(root).items():
        for path in sorted(folder.glob("*.py")):
            found[package if path.stem == "__init__" else f"{package}.{path.stem}"] = path
    return found


def listed_packages(root: Path) -> list[str]:
    """The `packages` of pyproject.toml. Python 3.10 has no TOML parser, and this list needs none."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    block = re.search(r"^packages = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    if block is None:
        raise SystemExit("pyproject.toml: found no `packages = [` list")
    return re.findall(r'"([^"]+)"', block.group(1))


if __name__ == "__main__":
    print("\n".join(modules(ROOT)))
