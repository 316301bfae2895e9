"""All tests in this folder need a GPU: scripts/gpu-test runs them, and no other command does."""

from __future__ import annotations

from pathlib import Path

import pytest

from fresh import fresh_compiler

__all__ = ["fresh_compiler"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.gpu)
