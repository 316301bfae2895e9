"""The tuning databases that are replayed: those of the tests, and one that was really tuned (`tuned_database.py` made it)."""

from __future__ import annotations

import lzma
from pathlib import Path

TUNED = Path(__file__).parent / "tuned_on_a_cpu.sqlite3.xz"


def copied(file: Path, folder: Path) -> Path:
    """A copy to work on of a stored database, unpacked."""
    content = file.read_bytes()
    copy = folder / file.name.removesuffix(".xz")
    copy.write_bytes(lzma.decompress(content) if file.suffix == ".xz" else content)
    return copy
