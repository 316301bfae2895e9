"""Tests with torch that need no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fresh import fresh_compiler
from fuseplan.tuning_db import Places, Store

__all__ = ["fresh_compiler"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A database of its own."""
    opened = Store(Places(user=tmp_path / "tuning.db"))
    yield opened
    opened.close()
