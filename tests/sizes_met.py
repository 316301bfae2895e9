"""A small program whose sizes vary, for tests of what runs it by size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fuseplan
from fuseplan import reload
from fuseplan.backend import programs_of
from fuseplan.explain import compiled_by
from fuseplan.measure.environment import environment
from fuseplan.plan import Plan
from fuseplan.runtime import Program
from fuseplan.tuning_db import Box, Places, Store, StoredPlan

ATEN = Plan.named("aten")


def scaled(x: Tensor, y: Tensor) -> Tensor:
    return (x * 3).cos().sum(0).sum() + y


def arguments(size: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(size, 8)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    return x, torch.randn(3)


def programs(compiled: Callable[..., Any]) -> list[Program]:
    return programs_of(compiled_by(compiled))


def hosts(compiled: Callable[..., Any]) -> list[str]:
    return [program.plan.host for program in programs(compiled)]


def key_of(call: Callable[..., Any], args: tuple[Any, ...]) -> str:
    compiled = fuseplan.compile(call)
    compiled(*args)
    (program,) = programs(compiled)
    torch._dynamo.reset()
    assert program.key is not None
    return program.key


def put(path: Path, key: str, low: int, high: int, plan: Plan = ATEN, **fields: Any) -> StoredPlan:
    box = Box.of({"s0": (low, high)})
    stored = StoredPlan(key, environment("cpu"), plan, **{"wall_us": 10.0, "sizes": box, **fields})
    store = Store(Places(path))
    assert store.add_plan(stored)
    store.close()
    return stored


def right(compiled: Callable[..., Any], *sizes: int) -> None:
    """The program gives what eager gives at these sizes."""
    for size in sizes:
        given = arguments(size)
        torch.testing.assert_close(compiled(*given), scaled(*given))


@pytest.fixture(autouse=True)
def without_inductor(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The default is eager: which plan is chosen does not depend on it, and compiling takes seconds."""
    monkeypatch.setattr("fuseplan.lookup.missing_compiler", lambda *_: "no compiler in this test")
    reload._found_out.clear()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
