"""Tests with torch that need no GPU."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from fresh import fresh_compiler
from fuseplan.models import shipped
from fuseplan.models.heads import Heads
from fuseplan.tuning_db import Places, Store

__all__ = ["fresh_compiler"]


@pytest.fixture(scope="module", autouse=True)
def _at_rest() -> None:
    """What the modules before have left is no garbage of this one's: what vets a plan collects a dozen times, and went through all that
    a hundred modules had imported and compiled, for half a second each.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _fits_outlive_a_run(_databases: Path) -> Iterator[None]:
    """What shipped rows teach is kept in one place, for databases with a folder of their own as well, and for none: each process would
    fit anew for them, for ten seconds and more.
    """
    folder, fitted = _databases / "models", shipped._fitted

    @cache
    def kept(path: Path, key: str) -> Heads | None:
        file = folder / f"{key}.npz"
        found = shipped._kept(file) or fitted(path, key)
        if found is not None and not file.exists():
            shipped.keep(found, file)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shipped, "_fitted", kept)
        yield


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A database of its own."""
    opened = Store(Places(user=tmp_path / "tuning.db"))
    yield opened
    opened.close()
