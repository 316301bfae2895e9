"""Tests with torch that need no GPU."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
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


@pytest.fixture(scope="session")
def _kept_fits(_databases: Path) -> Callable[[Path, str], Heads | None]:
    """What shipped rows teach, from where the fits are kept that outlive a run."""
    folder, fitted = _databases / "models", shipped._fitted

    @cache
    def kept(path: Path, key: str) -> Heads | None:
        file = folder / f"{key}.npz"
        found = shipped._kept(file) or fitted(path, key)
        if found is not None and not file.exists():
            shipped.keep(found, file)
        return found

    return kept


@pytest.fixture(scope="module", autouse=True)
def _fitted_once(_kept_fits: Callable[[Path, str], Heads | None]) -> Iterator[None]:
    """Databases with a folder of their own take fits up as well, and so do those of memory: each process would fit anew for them, for ten
    seconds and more.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shipped, "_fitted", _kept_fits)
        yield


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A database of its own."""
    opened = Store(Places(user=tmp_path / "tuning.db"))
    yield opened
    opened.close()
