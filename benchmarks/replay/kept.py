"""What is kept of each section, and how the cases of a replay differ from it."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parent / "kept"
MOST = 8
"""Differences of one case that are printed."""


def keep(section: str, cases: dict[str, Any], folder: Path = KEPT) -> None:
    """Keep the cases of a section, in the place of those that were kept."""
    text = json.dumps(cases, separators=(",", ":"), sort_keys=True)
    _file(section, folder).write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def compare(section: str, found: dict[str, Any], folder: Path = KEPT) -> int:
    """Print each case that differs from the one kept, and how; return how many do."""
    file = _file(section, folder)
    kept = json.loads(lzma.decompress(file.read_bytes())) if file.exists() else {}
    differing = [case for case in {**kept, **found} if kept.get(case) != found.get(case)]
    for case in differing:
        lines = list(_differences("", kept.get(case), found.get(case)))
        more = [f"… and {len(lines) - MOST} more"] if len(lines) > MOST else []
        print("\n    ".join([f"{section}: {case}", *lines[:MOST], *more]), flush=True)  # at once: others print beside
    return len(differing)


def _file(section: str, folder: Path) -> Path:
    return folder / f"{section}.json.xz"


def _differences(where: str, kept: Any, found: Any) -> Iterator[str]:
    if kept == found:
        return
    if isinstance(kept, dict) and isinstance(found, dict):
        for key in {**kept, **found}:
            yield from _differences(f"{where}.{key}" if where else key, kept.get(key), found.get(key))
    elif isinstance(kept, list) and isinstance(found, list) and len(kept) == len(found):
        for number, (old, new) in enumerate(zip(kept, found, strict=True)):
            yield from _differences(f"{where}[{number}]", old, new)
    else:
        yield f"{where}: kept {_short(kept)}, now {_short(found)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 300 else f"{text[:300]}…"
