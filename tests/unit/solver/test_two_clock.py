"""The time of a device that runs behind its host, and spans of calls that say as much as the calls themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseplan.solver.two_clock import REPLAY_US, Span, two_clock

calls = st.lists(st.tuples(*[st.integers(0, 50).map(float)] * 2), max_size=8)


def simulated(found: list[tuple[float, float]]) -> float:
    sent = free = 0.0
    for host, device in found:
        sent += host
        start = max(sent, free)
        free = start + device
    return max(sent, free)


def test_a_device_that_is_faster_waits_for_each_call() -> None:
    assert two_clock([(10.0, 1.0)] * 5) == 51.0


def test_a_device_that_is_slower_waits_for_the_first_alone() -> None:
    assert two_clock([(1.0, 10.0)] * 5) == 51.0


def test_where_the_host_is_behind_depends_on_the_order() -> None:
    assert two_clock([(1.0, 20.0), (20.0, 1.0)]) == 22.0
    assert two_clock([(20.0, 1.0), (1.0, 20.0)]) == 41.0


def test_a_graph_of_calls_costs_one() -> None:
    assert two_clock([(10.0, 1.0)] * 5, "cudagraph") == pytest.approx(5.0 + REPLAY_US)


@given(calls, calls)
def test_spans_one_after_another_are_the_span_of_all_calls(first: list[tuple[float, float]], then: list[tuple[float, float]]) -> None:  # fmt: skip
    together = Span.of(first).then(Span.of(then))
    assert together == Span.of(first + then)
    assert together.total() == two_clock(first + then) == simulated(first + then)
