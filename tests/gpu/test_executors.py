"""All executors on the GPU, through the conformance suite."""

from __future__ import annotations

import pytest

from conformance.suite import Conformance
from fuseplan.executors import Executor, executors


@pytest.fixture(params=["aten", "inductor", "nvfuser"])
def executor(request: pytest.FixtureRequest) -> Executor:
    return executors()[request.param]


@pytest.fixture
def device() -> str:
    return "cuda:0"


class TestExecutors(Conformance):
    """aten, inductor and nvfuser."""
