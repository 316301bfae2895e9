"""Tests with torch that need no GPU."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from fresh import fresh_compiler
from fuseplan.tuning_db import Places, Store

__all__ = ["fresh_compiler"]


@pytest.fixture(scope="module", autouse=True)
def _at_rest() -> None:
    """What the modules before have left is no garbage of this one's: what vets a plan collects a dozen times, and went through all that
    a hundred modules had imported and compiled, for half a second each.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A database of its own."""
    opened = Store(Places(user=tmp_path / "tuning.db"))
    yield opened
    opened.close()
