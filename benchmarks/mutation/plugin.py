"""For pytest in a copied tree whose expressions tell when they are evaluated: what each test reaches, and how long it takes.

`REACHED` names a folder, where each process adds a line for each test that is over, so that what was seen is not lost; `KNOWN`
a file with the tests that were seen before.
"""

from __future__ import annotations

import builtins
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_hits: set[int] = set()
vars(builtins)["__reached__"] = _hits.add
_failed: set[str] = set()
_out = Path(os.environ["REACHED"], f"{os.environ.get('PYTEST_XDIST_WORKER', 'here')}-{os.getpid()}.jsonl")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Keep under the name of the test what it reaches, its fixtures included."""
    _hits.clear()
    begin = time.process_time()
    yield
    seconds = round(time.process_time() - begin, 2)
    row = {"test": item.nodeid, "seconds": seconds, "failed": item.nodeid in _failed, "hits": sorted(_hits)}
    with _out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def pytest_runtest_logreport(report: Any) -> None:
    """A test that fails as it is says nothing of a mutant."""
    if report.failed:
        _failed.add(report.nodeid)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run what was not seen before."""
    known = set(Path(os.environ["KNOWN"]).read_text(encoding="utf-8").splitlines())
    config.hook.pytest_deselected(items=[one for one in items if one.nodeid in known])
    items[:] = [one for one in items if one.nodeid not in known]
