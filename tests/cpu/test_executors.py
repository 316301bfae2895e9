"""The executors that run on a CPU, through the conformance suite."""

from __future__ import annotations

import pytest

from conformance.suite import Conformance
from fuseplan.errors import ExecutorError
from fuseplan.executors import Executor, executors
from fuseplan.executors.known import EXECUTORS
from fuseplan.graph import Graph, Op, Ref, TensorType, Value


@pytest.fixture(params=["aten", "inductor"])
def executor(request: pytest.FixtureRequest) -> Executor:
    return executors()[request.param]


@pytest.fixture
def device() -> str:
    return "cpu"


def test_each_is_listed_with_its_class_and_with_its_traits() -> None:
    assert [one.traits for one in executors().values()] == list(EXECUTORS)
    assert [one.name for one in executors().values()] == [traits.name for traits in EXECUTORS] == list(executors())


class TestExecutors(Conformance):
    """aten and inductor."""

    def test_a_region_that_cannot_run_is_an_executor_error(self, executor: Executor) -> None:
        """Its types say what its op does not accept: a graph from elsewhere may be like that."""
        left, right = (Value(name, TensorType("float32", (8, n), (n, 1))) for name, n in (("a", 3), ("b", 5)))
        out = Value("y", TensorType("float32", (8, 5), (5, 1)))
        op = Op("aten.add.Tensor", (Ref("a"), Ref("b")), (), (out,))
        with pytest.raises(ExecutorError, match=executor.name) as error:
            executor.compile(Graph((left, right), (op,), (Ref("y"),)))
        assert "\n" not in str(error.value)
