"""What a program whose sizes vary makes of them beside tensors: comparisons that it checks as it runs, and floats."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fuseplan
from fuseplan.backend import programs_of
from fuseplan.capture.dynamo.program import ProgramKey, program_key
from fuseplan.capture.dynamo.settled import settled
from fuseplan.capture.trace.write import write_trace
from fuseplan.explain import compiled_by
from fuseplan.measure.environment import environment
from fuseplan.plan import Plan
from fuseplan.tuning_db import Box, Places, Store, StoredPlan


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def checked(x: Tensor, y: Tensor) -> Tensor:
    """Compares two sizes as it runs: Dynamo takes them for two."""
    torch._check(x.shape[0] == y.shape[0])
    return x * 2 + y


def rooted(x: Tensor, y: Tensor) -> Tensor:
    return (x + y) * x.shape[0] ** -0.5


def halved(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    half = x.shape[0] / 2
    return (x - half) / half, y.sum(0) / x.shape[0]


def given_out(x: Tensor, y: Tensor) -> tuple[Tensor, float]:
    return x + y, x.shape[0] ** 0.5


def both(x: Tensor, y: Tensor) -> Tensor:
    torch._check(x.shape[0] <= 1000)
    scale = float(x.shape[0]) * 0.25 + 1
    return torch.where(y > 0, x * scale, y / scale).cos()


PROGRAMS = [checked, rooted, halved, given_out, both]


def arguments(rows: int) -> tuple[Tensor, Tensor]:
    found = torch.randn(rows, 8), torch.randn(rows, 8)
    for one in found:
        torch._dynamo.maybe_mark_dynamic(one, 0)
    return found


def identity_of(call: Callable[..., Any]) -> tuple[str, list[str]]:
    """The key of a program, and the names of its sizes."""
    found = list[ProgramKey]()

    def backend(gm: Any, example_inputs: Any) -> Any:
        program = settled(gm, example_inputs)
        found.append(program_key(program.gm, program.example_inputs))
        return gm.forward

    torch.compile(call, backend=backend)(*arguments(9))
    torch._dynamo.reset()
    (one,) = found
    assert one.key is not None
    return one.key, [size.name for size in one.symbols.seen()]


@pytest.mark.parametrize("plan", [Plan("aten"), Plan("inductor", settings="split-64")], ids=["aten", "inductor"])
@pytest.mark.parametrize("call", PROGRAMS)
def test_it_is_compiled_once_and_has_plans_in_its_boxes(
    own_database: Path, call: Callable[..., Any], plan: Plan
) -> None:
    key, names = identity_of(call)
    store = Store(Places(own_database))
    for high in (16, 64):
        box = Box.of(dict.fromkeys(names, (high // 2 + 1, high)))
        assert store.add_plan(StoredPlan(key, environment("cpu"), plan, wall_us=10.0, sizes=box))
    store.close()
    compiled = fuseplan.compile(call)

    def right(*sizes: int) -> list[str]:
        for rows in sizes:
            args = arguments(rows)
            torch.testing.assert_close(compiled(*args), call(*args))
        return [f"{one.plan.host} {one.plan.settings}" for one in programs_of(compiled_by(compiled))]

    default, tuned = "inductor default", f"{plan.host} {plan.settings}"
    assert right(9, 7, 300) == [default, tuned]
    assert right(40, 20, 12, 33, 500, 17, 64) == [default, tuned, tuned]
    with torch.compiler.set_stance("fail_on_recompile"):
        assert right(*range(2, 99, 5)) == [default, tuned, tuned]


def read(x: Tensor, y: Tensor) -> Tensor:
    return x * y[0, 0].item() + x.shape[0] ** 0.5


def test_a_float_that_it_reads_from_a_tensor_is_none_of_its_sizes(own_database: Path) -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True), torch.no_grad():
        test_it_is_compiled_once_and_has_plans_in_its_boxes(own_database, read, Plan("aten"))


def test_of_what_dynamo_throws_away_nobody_is_told_that_it_was_not_tuned(
    own_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all sizes dynamic it takes a layer norm's epsilon for an input, until Inductor shows that it is none."""
    tried = list[int]()

    def tune(gm: Any, example_inputs: Any, *_: Any) -> None:
        tried.append(len(example_inputs))
        write_trace(gm, example_inputs)

    monkeypatch.setattr(import_module("fuseplan.tune"), "tune_online", tune)
    model, before = nn.LayerNorm(8).eval(), fuseplan.stats()
    compiled = torch.compile(model, dynamic=True, backend="fuseplan", options={"tune": "instant"})
    x = torch.randn(3, 8)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        torch.testing.assert_close(compiled(x), model(x))
    assert len(tried) == 2
    assert tried[0] > tried[1]
    assert fuseplan.stats()["compilations"] - before.get("compilations", 0) == 1
