"""The executors that run on a CPU, through the conformance suite."""

from __future__ import annotations

import pytest

from conformance.suite import Conformance
from fuseplan.executors import Executor, executors


@pytest.fixture(params=["aten", "inductor"])
def executor(request: pytest.FixtureRequest) -> Executor:
    return executors()[request.param]


@pytest.fixture
def device() -> str:
    return "cpu"


class TestExecutors(Conformance):
    """aten and inductor."""
