"""Calls of a program whose sizes vary are counted by size, for who tunes what waits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fuseplan
from fuseplan import by_size
from fuseplan.tuning.queue import boxes
from fuseplan.tuning.queue import waiting as waiting_module
from fuseplan.tuning.queue.waiting import keep_counts, waiting
from fuseplan.tuning_db import Places, Store
from sizes_met import arguments, programs, put, right, scaled, without_inductor

__all__ = ["without_inductor"]


def trained(x: Tensor, y: Tensor) -> Tensor:
    return (x * y[0]).cos().sum()


def step(compiled: Callable[..., Any], size: int) -> None:
    x, y = arguments(size)
    compiled(x, y.requires_grad_()).backward()
    assert y.grad is not None


@pytest.mark.parametrize("trains", [False, True], ids=["run by size", "trained"])
def test_calls_are_counted_by_size_and_wait_box_by_box(own_database: Path, trains: bool) -> None:
    """Of what is trained, which runs under one plan for all sizes of a box, too."""
    compiled = fuseplan.compile(trained if trains else scaled, tune="later")
    for size, calls in ((40, 6), (50, 3), (9, 25), (300, 2)):
        for _ in range(calls):
            step(compiled, size) if trains else right(compiled, size)
    keep_counts()
    store = Store(Places(own_database))
    found = {
        trace.fields["symbols"][0]["hint"]: {one.sizes["s0"]: one.calls for one in trace.calls}
        for trace in waiting(store)
    }
    assert found == {40: {40: 6, 50: 3}, 9: {9: 25}, 300: {300: 2}}
    (program,) = programs(compiled)
    put(own_database, str(program.key), 33, 64)
    assert {trace.fields["symbols"][0]["hint"] for trace in waiting(store)} == {9, 300}
    store.close()


def test_counts_that_could_not_be_written_down_are_written_the_next_time(
    own_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = fuseplan.compile(scaled, tune="later")
    right(compiled, *[40] * 7)
    with monkeypatch.context() as held_by_another:
        held_by_another.setattr(Store, "add_program", lambda *_, **__: False)
        keep_counts()
    keep_counts()
    store = Store(Places(own_database))
    assert [trace.times for trace in waiting(store)] == [7]
    store.close()


@pytest.mark.parametrize("trains", [False, True], ids=["run by size", "trained"])
def test_of_many_sizes_the_calls_are_counted_by_box(
    own_database: Path, monkeypatch: pytest.MonkeyPatch, trains: bool
) -> None:
    for module in (by_size, waiting_module):
        monkeypatch.setattr(module, "MOST_SIZES", 8)
    compiled = fuseplan.compile(trained if trains else scaled, tune="later")
    for size in range(33, 65):
        step(compiled, size) if trains else right(compiled, size)
    keep_counts()
    store = Store(Places(own_database))
    (trace,) = waiting(store)
    assert trace.times == 32
    assert len(trace.calls) <= 9
    store.close()


def test_a_box_that_is_met_within_a_graph_of_the_caller_s_is_written_down_later(
    own_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look at the numbers of an input, such as an index, is to wait for the device."""
    looked = list[torch.Size]()
    observe = boxes.observe
    monkeypatch.setattr(boxes, "observe", lambda value: (looked.append(value.shape), observe(value))[1])

    def picked(x: Tensor, index: Tensor) -> Tensor:
        return (x * 3)[index].cos().sum(0)

    def call(size: int) -> None:
        x, index = arguments(size)[0], torch.zeros(3, dtype=torch.long)
        torch.testing.assert_close(compiled(x, index), picked(x, index))

    compiled = fuseplan.compile(picked, tune="later")
    call(9)
    call(40)
    assert torch.Size([40, 8]) in looked
    with monkeypatch.context() as capturing:
        capturing.setattr(by_size.BySize, "_is_captured", lambda _: True)
        call(100)
    assert torch.Size([100, 8]) not in looked
    call(100)
    assert torch.Size([100, 8]) in looked
    keep_counts()
    store = Store(Places(own_database))
    assert {one.sizes["s0"]: one.calls for trace in waiting(store) for one in trace.calls}[100] == 2
    store.close()
