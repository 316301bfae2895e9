"""For pytest in a copied tree: which lines each test reaches, and how long it takes. `REACHED` names the file that it writes."""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

coverage: Any = import_module("coverage")  # which only this script needs
_coverage = coverage.Coverage(data_file=None, source=[os.environ["REACHED_SOURCE"]], config_file=False)
_coverage.start()
_seconds: dict[str, float] = {}
_failed: set[str] = set()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note under the name of the test what it reaches, its fixtures included."""
    _coverage.switch_context(item.nodeid)
    begin = time.process_time()
    yield
    _seconds[item.nodeid] = round(time.process_time() - begin, 2)
    _coverage.switch_context("")


def pytest_runtest_logreport(report: Any) -> None:
    """A test that fails as it is says nothing of a mutant."""
    if report.failed:
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write it down."""
    _coverage.stop()
    data, tree = _coverage.get_data(), Path.cwd().resolve()
    lines: dict[str, dict[str, list[int]]] = {name: {} for name in _seconds.keys() - _failed}
    for file in data.measured_files():
        name = str(Path(file).resolve().relative_to(tree))
        for line, tests in data.contexts_by_lineno(file).items():
            for test in lines.keys() & set(tests):
                lines[test].setdefault(name, []).append(line)
    content = [[test, _seconds[test], lines[test]] for test in sorted(lines)]
    Path(os.environ["REACHED"]).write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))
