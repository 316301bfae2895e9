"""Steps of optimizers that are compiled: what a program holds is no part of it, and comes to it as other inputs do."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fuseplan
from fuseplan.backend import programs_of
from fuseplan.capture.trace.format import Trace
from fuseplan.explain import compiled_by
from replaying import captured

OPTIMIZERS: Mapping[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.01}),
    "momentum": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}),
    "adam": (torch.optim.Adam, {"lr": torch.tensor(0.01)}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}),
    "one by one": (torch.optim.AdamW, {"lr": 0.01, "foreach": False}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01}),
}


class Training:
    """A small model and its optimizer, whose step is compiled."""

    def __init__(self, name: str, backend: str, seed: int = 0, **options: Any) -> None:
        torch._dynamo.reset()
        torch.manual_seed(seed)
        kind, settings = OPTIMIZERS[name]
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
        self.optimizer = kind(self.model.parameters(), **settings)
        self.step: Callable[[], Any] = torch.compile(
            lambda: self.optimizer.step(), backend=backend, **({"options": options} if options else {})
        )

    def trained(self, steps: int = 3) -> list[Tensor]:
        """The weights after some steps."""
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.ones(2, 4)).pow(2).sum().backward()
            self.step()
        return [weight.detach().clone() for weight in self.model.parameters()]


def recorded(name: str, seed: int = 0) -> list[Trace]:
    with fuseplan.record() as recording:
        Training(name, "eager", seed).trained()
    return [Trace.from_json(one.to_json()) for one in recording.programs]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_recorded_without_weights_and_is_the_same_whatever_they_are(name: str) -> None:
    """And the program that is rebuilt from it is the same."""
    first, second = recorded(name), recorded(name, 1)
    assert [one.key for one in first] == [one.key for one in second]
    nodes = [node for one in first for node in one.fields["nodes"]]
    assert not [node for node in nodes if node["op"] == "constant" and len(node["values"]) > 1]
    kinds = {item["kind"] for one in first for item in one.fields["inputs"]}
    assert "parameter" in kinds
    assert [captured(one.to_json()).key for one in first] == [one.key for one in first]


def test_a_worker_rebuilds_a_step_as_the_program_that_it_was(tmp_path: Path) -> None:
    """Of one optimizer: the worker compiles it under Inductor as well, which takes ten seconds for others."""
    traces = recorded("momentum")
    found = fuseplan.tune(traces, effort="none", db=tmp_path / "plans.db")
    assert [(one.status, one.detail) for one in found] == [("unverified", "")] * len(traces)


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        pytest.param(name, plan, marks=[pytest.mark.exhaustive] * (plan == "inductor" and name != "adamw"))
        for name in OPTIMIZERS
        for plan in ("aten", "inductor")
    ],
)
def test_a_step_under_a_plan_trains_as_under_eager(name: str, plan: str) -> None:
    expected = Training(name, "eager").trained()
    for found, wanted in zip(Training(name, "fuseplan", plan=plan).trained(), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_what_is_loaded_is_what_the_next_step_works_on() -> None:
    """An optimizer that loads a checkpoint has other tensors from then on."""
    found = []
    for backend, options in (("eager", {}), ("fuseplan", {"plan": "aten"})):
        training = Training("adamw", backend, **options)
        training.trained()
        state = training.optimizer.state_dict()
        training.trained()
        training.optimizer.load_state_dict(state)
        found.append(training.trained())
    for one, wanted in zip(*found, strict=True):
        torch.testing.assert_close(one, wanted)


def left_behind(backend: str, **options: Any) -> int:
    """How many tensors of a training are there when it is over."""
    training = Training("adam", backend, **options)
    training.trained()
    states = [value for state in training.optimizer.state.values() for value in state.values()]
    tensors = [weakref.ref(one) for one in (*training.model.parameters(), *states)]
    assert len(tensors) == 16
    del training, states
    gc.collect()
    return sum(one() is not None for one in tensors)


def test_what_is_held_goes_with_its_optimizer() -> None:
    """As it does under torch's own backends, which keep a number or two: no plan keeps weights and states of the past."""
    assert left_behind("fuseplan", plan="aten") <= left_behind("eager") < 4


def test_steps_of_equal_shape_are_one_program_and_each_has_its_own_weights() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)

    def stepping(model: nn.Module) -> Callable[[], Any]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        return torch.compile(lambda: optimizer.step(), backend="fuseplan", options={"plan": "aten"})

    keys, before = [], [first.weight.detach().clone(), second.weight.detach().clone()]
    for model, factor in ((first, 1.0), (second, 3.0)):
        model(torch.ones(2, 4)).sum().mul(factor).backward()
        step = stepping(model)
        step()
        keys += [program.key for program in programs_of(compiled_by(step))]
    assert len(keys) == 2
    assert len(set(keys)) == 1
    torch.testing.assert_close(first.weight, before[0] - 0.5 * 2.0)
    torch.testing.assert_close(second.weight, before[1] - 0.5 * 6.0)


def test_a_process_that_has_compiled_nothing_yet_rebuilds_a_step(tmp_path: Path) -> None:
    """Dynamo writes operators into it that are Inductor's own."""
    (trace,) = recorded("one by one")
    (tmp_path / "step.json").write_text(trace.to_json())
    code = f"""
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.load import load_trace
load_trace(Trace.from_json(open({str(tmp_path / "step.json")!r}).read())).run()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_stays_and_varies_in_size_is_an_input_like_others(tmp_path: Path) -> None:
    """As a cache is whose address stays: what a module has does not vary."""
    cache = torch.zeros(2, 64)
    torch._dynamo.mark_static_address(cache)
    torch._dynamo.reset()
    with fuseplan.record() as recording:
        compiled = torch.compile(lambda x: cache[:, : x.shape[0]] @ x, backend="eager", dynamic=True)
        for size in (3, 5):
            compiled(torch.randn(size, 4))
    traces = [Trace.from_json(one.to_json()) for one in recording.programs]
    found = fuseplan.tune(traces, effort="none", db=tmp_path / "plans.db")
    assert {(one.status, one.detail) for one in found} == {("unverified", "")}
