"""Thunder's issue 1251: a view, or a single op, that stands between what others run. Which region each op goes to, and by what evidence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_on_213
from fuseplan.capture.trace.format import Trace
from fuseplan.measure.environment import environment
from fuseplan.plan import Plan
from fuseplan.tuning.queue.waiting import waiting
from fuseplan.tuning_db import Places, Store, StoredPlan

thunder_on_213.supply()
import thunder  # noqa: E402
from thunder.extend import OperatorExecutor  # noqa: E402

import fuseplan  # noqa: E402
import fuseplan.thunder  # noqa: E402

BLAS = OperatorExecutor("blas", version="1")
"""Somebody else who takes the products, so that what is between them stands alone, as it does under nvFuser."""
product = BLAS.register_operator("blas_matmul", meta=thunder.torch.matmul.meta, fn=torch.matmul)
BLAS.register_implementation(thunder.torch.matmul, product)

X, W = torch.randn(4, 4), torch.randn(4, 4)


@pytest.fixture(autouse=True)
def without_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is eager: what these tests are about does not depend on it, and compiling takes seconds."""
    monkeypatch.setattr("fuseplan.lookup.missing_compiler", lambda *_: "no compiler in this test")


def run(f: Callable[..., Tensor], *others: Any, **options: Any) -> Any:
    found = thunder.jit(f, executors=[*others, fuseplan.thunder.executor(**options)])
    torch.testing.assert_close(found(X, W), f(X, W))
    return found


def where(jitted: Any) -> dict[str, str | None]:
    """The region of each op by its name."""
    return {place.op: place.region for place in fuseplan.thunder.places(jitted)}


def evidence(jitted: Any, op: str) -> str:
    (found,) = [place.why for place in fuseplan.thunder.places(jitted) if place.op == op]
    return found


def met(f: Callable[..., Tensor]) -> dict[str, Trace]:
    """The programs that are asked for, by the names of what they call, such as `mul,add`."""
    with fuseplan.record() as recording:
        run(f, BLAS)
    asked = [trace for trace in recording.programs if "Fuseplan" not in trace.name]
    return {",".join(_called(trace)): trace for trace in asked}


def _called(trace: Trace) -> list[str]:
    return [str(node["target"]).split(".")[-1].strip("'\"") for node in trace.fields["nodes"] if "target" in node]


def keep(path: Path, trace: Trace, plan: str, us: float) -> None:
    store = Store(Places(path))
    assert store.add_plan(StoredPlan(trace.key, environment("cpu"), Plan.named(plan), wall_us=us, noise_us=us / 100))
    store.close()


def view_between(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).view(2, 8).view(4, 4) @ w


def test_a_view_between_products_is_in_their_region() -> None:
    found = run(view_between)
    assert where(found) == {"matmul": "Fuseplan0", "view": "Fuseplan0"}


def test_a_lone_view_never_becomes_a_region() -> None:
    with fuseplan.record() as recording:
        found = run(view_between, BLAS)
        lone = run(lambda x, w: x.view(2, 8))
    assert where(found) == {"view": None}
    assert {place.why for place in fuseplan.thunder.places(found)} == {"a view needs no kernel"}
    assert where(lone) == {"view": None}
    assert recording.programs == []
    assert "Fuseplan" not in str(thunder.last_traces(found)[-1])


def op_between(x: Tensor, w: Tensor) -> Tensor:
    return torch.sigmoid(x @ w) @ w


def test_a_single_op_has_the_home_that_was_measured_for_it(own_database: Path) -> None:
    (trace,) = met(op_between).values()
    unmeasured = run(op_between, BLAS)
    assert where(unmeasured) == {"sigmoid": "Fuseplan0"}
    assert "no plan is stored for program" in evidence(unmeasured, "sigmoid")
    keep(own_database, trace, "eager", 3.0)
    alone = run(op_between, BLAS)
    assert where(alone) == {"sigmoid": None}
    assert evidence(alone, "sigmoid").endswith("of the user database, 3.0 µs")


def test_a_single_op_that_is_faster_compiled_is_a_region(own_database: Path) -> None:
    (trace,) = met(op_between).values()
    keep(own_database, trace, "aten", 3.0)
    found = run(op_between, BLAS)
    assert where(found) == {"sigmoid": "Fuseplan0"}
    assert "3.0 µs" in evidence(found, "sigmoid")


def op_that_the_region_before_may_take(x: Tensor, w: Tensor) -> Tensor:
    y = x * 2 + 1
    return (x @ w) + torch.sigmoid(y) @ w


def op_that_the_region_after_may_take(x: Tensor, w: Tensor) -> Tensor:
    z = torch.sigmoid(x)
    y = x @ w
    return (y * 2 + 1) * z


@pytest.mark.parametrize(("both_us", "region"), [(6.0, "Fuseplan0"), (7.9, None), (9.0, None)])
@pytest.mark.parametrize("f", [op_that_the_region_before_may_take, op_that_the_region_after_may_take])
def test_a_neighbour_takes_an_op_where_that_is_faster(
    f: Callable[..., Tensor], both_us: float, region: str | None, own_database: Path
) -> None:
    """Faster than both apart, beyond the noise; else it stays where it is best by itself."""
    asked = met(f)
    lone, beside = asked["neg,exp,add,reciprocal"], asked["mul,add" if "before" in f.__name__ else "mul,add,mul"]
    (both,) = [trace for calls, trace in asked.items() if "neg" in calls and trace not in (lone, beside)]
    keep(own_database, lone, "eager", 3.0)
    assert where(run(f, BLAS))["sigmoid"] is None  # what the others take is not known yet
    keep(own_database, beside, "aten", 5.0)
    keep(own_database, both, "aten", both_us)
    found = run(f, BLAS)
    assert where(found)["sigmoid"] == region
    told = evidence(found, "sigmoid")
    assert f"{both_us} µs together and 8.0 µs apart" in told
    assert told in fuseplan.thunder.explain(found, graphs=False)


def test_a_single_op_that_is_best_by_itself_stays_there(own_database: Path) -> None:
    """Thunder moves an op that nobody has measured to the region that reads it, since that saves memory traffic."""
    lone = met(op_that_the_region_after_may_take)["neg,exp,add,reciprocal"]
    assert where(run(op_that_the_region_after_may_take, BLAS))["sigmoid"] == "Fuseplan1"
    keep(own_database, lone, "aten", 3.0)
    found = run(op_that_the_region_after_may_take, BLAS)
    regions = where(found)
    assert regions["sigmoid"] not in (None, regions["mul"])


def test_what_stands_between_must_not_change_what_an_op_is_given(own_database: Path) -> None:
    """An op that reads, or is read by, what stands between it and a region is offered to nobody."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        y = (x * 2 + 1) @ w
        return torch.sigmoid(y) @ w + (y * 3)

    assert sorted(calls for calls in met(f) if "neg" in calls) == ["neg,exp,add,reciprocal"]


def test_gradients_are_right_where_ops_stand_alone(own_database: Path) -> None:
    ours, expected = X.clone().requires_grad_(), X.clone().requires_grad_()
    found = thunder.jit(op_between, executors=[BLAS, fuseplan.thunder.executor()])
    found(ours, W).sum().backward()
    op_between(expected, W).sum().backward()
    torch.testing.assert_close(ours.grad, expected.grad)


def test_measurements_of_single_ops_are_asked_for_with_the_rest(own_database: Path) -> None:
    """With tune="later" all that a decision rests on waits to be tuned: the op, the region beside it, and both."""
    run(op_that_the_region_before_may_take, BLAS, tune="later")
    store = Store(Places(own_database))
    names = {trace.name.removeprefix("op_that_the_region_before_may_take_") for trace in waiting(store)}
    store.close()
    assert {"lone_sigmoid", "region_of_2", "region_of_3"} <= names
