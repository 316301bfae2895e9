"""Makes build/types/fuseplan: links that give the folders their package names, for tools that install nothing.

Type checkers don't run the finder of an editable install; a GPU host may have no package index. The small
.dist-info beside the links is what makes the entry point of torch.compile known there.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from checks.project import FOLDERS, ROOT


def make(root: Path) -> Path:
    """Make the linked tree anew and return the folder to put on the path."""
    place = root / "build" / "types"
    shutil.rmtree(place, ignore_errors=True)
    package = place / "fuseplan"
    package.mkdir(parents=True)
    for source in sorted((root / FOLDERS["fuseplan"]).iterdir()):
        if source.name != "__pycache__":
            (package / source.name).symlink_to(source)
    for name, folder in FOLDERS.items():
        if name != "fuseplan":
            (package / name.removeprefix("fuseplan.")).symlink_to(root / folder)
    _write_metadata(root, place)
    return place


def _write_metadata(root: Path, place: Path) -> None:
    version = _find(root / "planner" / "__init__.py", r'^__version__ = "(.+)"$')
    entry_point = _find(
        root / "pyproject.toml", r'^\[project\.entry-points\.torch_dynamo_backends\]\nfuseplan = "(.+)"$'
    )
    info = place / f"fuseplan-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: fuseplan\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[torch_dynamo_backends]\nfuseplan = {entry_point}\n")


def _find(path: Path, pattern: str) -> str:
    match = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise SystemExit(f"{path}: nothing matches {pattern}")
    return match.group(1)


if __name__ == "__main__":
    print(make(ROOT))
