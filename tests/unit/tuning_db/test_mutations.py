"""Mutated files of those that tests/mutations.py can make: no crash, no hang, no wrong plan."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from mutations import complaints, originals


@pytest.mark.parametrize("first", [0, *(pytest.param(one, marks=pytest.mark.exhaustive) for one in range(50, 300, 50))])
def test_mutated_files(tmp_path: Path, first: int) -> None:
    plans = originals(tmp_path / "original.db")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {seed: complaints(tmp_path / "original.db", plans, seed) for seed in range(first, first + 50)}
    assert {seed: wrong for seed, (_, wrong) in found.items() if wrong} == {}
    assert len({kind for kind, _ in found.values()}) > 4
