"""Plans of an organisation, and who serves them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fuseplan.tuning_db import Store
from fuseplan.tuning_db.exchange import export
from fuseplan.tuning_db.layers import places
from plan_server import Open, Served, serving
from stored import OTHER_PROGRAM, fill, question, store_at


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as found:
        yield found


@pytest.fixture(scope="session")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the same plans as a database and as an export."""
    folder = tmp_path_factory.mktemp("plans")
    store = store_at(folder / "plans.db")
    fill(store)
    export(store.file, folder / "plans.jsonl")
    export(store.file, folder / "plans.jsonl.gz")
    store.close()
    return folder


@pytest.fixture
def open_store(tmp_path: Path) -> Open:
    """A new process's store, under this value of the variable, which has looked something up."""

    def opened(value: object) -> Store:
        store = Store(places({"HOME": str(tmp_path), "FUSEPLAN_SHARED": str(value)}))
        store.find_plan(question(program=OTHER_PROGRAM))
        return store

    return opened
