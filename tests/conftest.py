"""What holds for all tests: the tuning database of whoever runs them is neither read nor written."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from fuseplan.tuning_db import layers

FITS = Path(__file__).resolve().parents[1] / "build" / "fits"
_numbers = count()
gc.disable()  # until all is imported, of which nothing is garbage: a tenth of the imports' time
# or each process finds out anew whether the compiler can use this machine's vectors: eight seconds where its caches are its own
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
signal.signal(
    signal.SIGINT, signal.default_int_handler
)  # a shell's background job ignores it, and so would its children


@pytest.fixture(scope="session")
def _databases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Below them lie the fits of the shipped cost model: under the hash of all that went into them, so they outlive a run."""
    folder = tmp_path_factory.mktemp("databases")
    FITS.mkdir(parents=True, exist_ok=True)
    (folder / "models").symlink_to(FITS)
    return folder


@pytest.fixture(scope="session")
def tuned_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of `tuned_samples`, made once: who writes to it takes a copy."""
    from tuned_samples import sample_database  # most runs of a few tests need none

    path = tmp_path_factory.mktemp("tuned") / "tuning.db"
    sample_database(path)
    return path


@pytest.fixture(autouse=True)
def own_database(_databases: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty database for each test, below which no other layer lies: no test finds a plan by accident."""
    path = _databases / f"{next(_numbers)}.sqlite3"
    monkeypatch.setenv("FUSEPLAN_DB", str(path))
    monkeypatch.delenv("FUSEPLAN_SHARED", raising=False)
    monkeypatch.setattr(layers, "SITE", _databases / "no site")
    monkeypatch.setattr(layers, "SHIPPED", _databases / "nothing shipped")
    yield path
    path.unlink(missing_ok=True)


def pytest_configure(config: pytest.Config) -> None:
    """Who only shares tests out to others collects none, and so comes to no end of it."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is one long test comes first: at the end, one worker would be at it while the others have nothing left to do."""
    items.sort(key=lambda item: "test_opinfo.py" not in item.nodeid)


def pytest_collection_finish() -> None:
    """All that is imported by now stays: to go through the half million objects of torch and others, for garbage that is not among
    them, took an eighth of the time of tests that trace models.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    gc.enable()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a failure at once: a run of an hour that is cut off would not say what it has found."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        last = report.longreprtext.strip().splitlines()[-1:]
        print(f"\nFAILED {report.nodeid} ({report.when}, {report.duration:.0f} s)", *last, file=sys.stderr, flush=True)
