"""A small fixed sample of scripts/soak."""

from __future__ import annotations

import pytest

from soak.cases import CASES, Size


@pytest.mark.parametrize("case", ["plain", "killed", "gone"])
def test_soak(case: str) -> None:
    outcome = CASES[case](Size(writers=4, readers=2, seconds=4.0, kills=10))
    assert outcome.wrong == [], outcome.text
