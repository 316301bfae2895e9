"""What regions cost: that an executor which keeps failing on an op is not asked about it for ever."""

from __future__ import annotations

import math

import pytest

from fuseplan.graph import Graph
from fuseplan.models import Cost, Machine, Roofline
from fuseplan.segment import Region
from fuseplan.solver.costs import FAILURES, MOST_OPS, RegionCosts, Runner, Timings
from fuseplan.solver.words import cost_all
from small_graphs import graph, op, tensor

KIND = tensor(1024)
NVFUSER, INDUCTOR = ("nvfuser", "default"), ("inductor", "default")
LENGTH = 8


def chain() -> Graph:
    """One softmax among ops that are all of one kind."""
    ops = [
        op("softmax.int" if i == LENGTH // 2 else "relu.default", (f"%v{i}",), (f"v{i + 1}", KIND))
        for i in range(LENGTH)
    ]
    return graph({"v0": KIND}, *ops, out=f"v{LENGTH}")


def long_chain(length: int) -> Graph:
    """Ops of one kind alone."""
    return graph(
        {"v0": KIND}, *(op("relu.default", (f"%v{i}",), (f"v{i + 1}", KIND)) for i in range(length)), out=f"v{length}"
    )


def costs_of(timings: Timings) -> RegionCosts:
    takes = (True,) * LENGTH
    runners = [
        Runner(name, takes, lambda region: None, lambda region: ("default",))
        for name in ("aten", "inductor", "nvfuser")
    ]
    return RegionCosts(chain(), runners, Roofline(Machine.guess("NVIDIA H200")), timings)


def asked(costs: RegionCosts, *ops: int) -> set[str]:
    return {executor for executor, _ in costs(ops, ())}


def fail(costs: RegionCosts, *ops: int, status: str = "compile-error") -> None:
    costs.timings.add(costs.case(ops).region, NVFUSER, Cost(status=status))


WITH_SOFTMAX = ((4,), (3, 4), (4, 5), (3, 4, 5))


def test_an_op_on_which_an_executor_fails_again_and_again_is_not_given_to_it() -> None:
    costs = costs_of(Timings())
    for ops in WITH_SOFTMAX[: FAILURES - 1]:
        fail(costs, *ops)
    assert "nvfuser" in asked(costs, 2, 3, 4), "so few failures may be of the regions"
    costs.timings.add(costs.case((0, 1)).region, NVFUSER, Cost(1.0, 1.0))
    fail(costs, *WITH_SOFTMAX[FAILURES - 1])
    assert asked(costs, 2, 3, 4) == {"inductor"}
    assert asked(costs, 1, 2) == {"inductor", "nvfuser"}, "the op beside it has run elsewhere"
    assert NVFUSER not in costs.by_choice(costs.case((2, 3, 4)))
    assert costs.of(Region((2, 3, 4), *NVFUSER)).device_us == math.inf
    assert "nvfuser" not in asked(costs, 4), "one that failed is out anyway"


def test_once_it_runs_somewhere_it_is_tried_again() -> None:
    costs = costs_of(Timings())
    for ops in WITH_SOFTMAX[:FAILURES]:
        fail(costs, *ops)
    assert "nvfuser" not in asked(costs, 2, 3, 4)
    costs.timings.add(costs.case((2, 3, 4, 5)).region, NVFUSER, Cost(1.0, 1.0))
    assert "nvfuser" in asked(costs, 2, 3, 4)


def test_what_only_stood_beside_it_is_not_blamed() -> None:
    """Three regions fail that have both kinds of ops; one of either kind alone may run."""
    costs = costs_of(Timings())
    for ops in ((3, 4), (4, 5), (3, 4, 5)):
        fail(costs, *ops)
    assert "nvfuser" not in asked(costs, 2, 3, 4)
    assert "nvfuser" in asked(costs, 1, 2)
    assert "nvfuser" in asked(costs, 4)


def test_a_large_region_may_fail_for_its_size() -> None:
    costs = costs_of(Timings())
    for first in range(MOST_OPS, MOST_OPS + FAILURES):
        costs.timings.add(long_chain(first + 1), NVFUSER, Cost(status="compile-error"))
    assert "nvfuser" in asked(costs, 0, 1)
    for first in range(FAILURES):
        costs.timings.add(long_chain(first + 1), NVFUSER, Cost(status="compile-error"))
    assert "nvfuser" not in asked(costs, 0, 1)


def test_what_is_given_up_is_not_among_what_could_be_measured() -> None:
    costs = costs_of(Timings())
    for ops in WITH_SOFTMAX[:FAILURES]:
        fail(costs, *ops)
    _, left = costs.unmeasured(Region((2, 3, 4), *NVFUSER))
    assert left == (INDUCTOR,)


@pytest.mark.parametrize("status", ["wrong", "out-of-memory", "timeout"])
def test_rounding_and_want_of_memory_or_time_tell_nothing_of_an_op(status: str) -> None:
    costs = costs_of(Timings())
    for ops in WITH_SOFTMAX:
        fail(costs, *ops, status=status)
    assert "nvfuser" in asked(costs, 2, 3, 4)


def test_the_same_region_failing_under_another_variant_is_no_second_failure() -> None:
    costs = costs_of(Timings())
    for variant in "abcd":
        costs.timings.add(costs.case((4,)).region, ("nvfuser", variant), Cost(status="crashed"))
    assert "nvfuser" in asked(costs, 3, 4)


def test_aten_runs_whatever_failed() -> None:
    costs = costs_of(Timings())
    for ops in WITH_SOFTMAX:
        costs.timings.add(costs.case(ops).region, ("aten", "padded"), Cost(status="compile-error"))
    assert "aten" in asked(costs, 4)


def test_attention_alone_is_atens() -> None:
    """Any other executor would call the same kernel."""
    attention = op("_scaled_dot_product_flash_attention.default", ("%v0",), ("v1", KIND))
    lone = graph({"v0": KIND}, attention, op("relu.default", ("%v1",), ("v2", KIND)), out="v2")
    runners = [
        Runner(name, (True, True), lambda region: None, lambda region: ("default",)) for name in ("aten", "inductor")
    ]
    costs = RegionCosts(lone, runners, Roofline(Machine.guess("NVIDIA H200")), Timings())
    assert asked(costs, 0) == {"aten"}
    assert asked(costs, 0, 1) == {"inductor"}


def test_many_regions_asked_for_at_once_cost_what_each_costs_alone() -> None:
    timings = Timings()
    costs = costs_of(timings)
    timings.add(costs.case((0, 1)).region, NVFUSER, Cost(3.0, 1.0))
    timings.add(costs.case((2,)).region, INDUCTOR, Cost(status="compile-error"))
    regions = [(ops, ()) for ops in ((0,), (0, 1), (2,), (3, 4, 5), (0, 1, 2))]
    assert [costs(*region) for region in regions] == costs.all(regions) == cost_all(costs, regions)
    assert cost_all(lambda ops, again: costs(ops, again), regions) == costs.all(regions)
    assert costs.all(regions)[1][NVFUSER].device_us == 3.0
