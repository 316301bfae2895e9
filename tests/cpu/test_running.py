"""What holds the plan `inductor` to torch.compile: it lets torch.compile's own deviation pass, and no other."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from running import RATES, TorchCompileDeviates, Training, assert_accurate, calm_training, check_forward, is_calm
from zoo import TRANSFORMERS

EXACT = torch.linspace(1, 2, 100, dtype=torch.float64)
EAGER = EXACT.float()
OFF = EAGER + 0.1


def gives(*results: Tensor) -> Callable[[], Tensor]:
    turns = cycle(results)
    return lambda: next(turns)


def test_what_is_less_accurate_than_eager_fails() -> None:
    with pytest.raises(AssertionError, match="eager's own error allows"):
        assert_accurate(OFF, EAGER, EXACT)


def test_what_is_as_accurate_as_eager_needs_no_torch_compile() -> None:
    assert_accurate(EAGER, EAGER, EXACT, lambda: pytest.fail("torch.compile was run"))


def test_torch_compiles_own_deviation_passes_and_is_named() -> None:
    with pytest.warns(TorchCompileDeviates, match=r"error 0\.1 .*gives the same bits"):
        assert_accurate(OFF, EAGER, EXACT, gives(OFF.clone()))


@pytest.mark.parametrize("other", [EAGER, OFF + 1e-6], ids=["exact", "one bit away"])
def test_a_deviation_that_torch_compile_does_not_show_fails(other: Tensor) -> None:
    with pytest.raises(AssertionError, match="compile does not do that"):
        assert_accurate(OFF, EAGER, EXACT, gives(other))


def test_where_torch_compile_does_not_repeat_itself_its_accuracy_counts() -> None:
    with pytest.warns(TorchCompileDeviates, match="does not repeat itself"):
        assert_accurate(OFF, EAGER, EXACT, gives(OFF + 1e-6, OFF - 1e-6))
    with pytest.raises(AssertionError, match="compile does not do that"):
        assert_accurate(OFF + 1, EAGER, EXACT, gives(OFF + 1e-6, OFF - 1e-6))


def test_a_plan_that_computes_other_than_torch_compile_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """End to end: the backend's Inductor path is bent, plain torch.compile is not."""

    def bent(plan: object, graph: Callable[..., Any], *rest: object) -> Callable[..., Any]:
        return lambda *inputs: [result * 1.01 for result in graph(*inputs)]

    monkeypatch.setattr(import_module("fuseplan.runtime.replay"), "compile_under_inductor", bent)
    with pytest.raises(AssertionError, match="compile does not do that"):
        check_forward(TRANSFORMERS["bert"], "inductor")  # whose code test_models needs as well


def training(*losses: float) -> Training:
    return Training([torch.tensor(loss) for loss in losses], {}, {})


def test_a_training_is_calm_while_its_losses_stay_near() -> None:
    assert is_calm(training(2.0, 1.51, 1.02), training(2.0, 1.5, 1.0))
    assert is_calm(training(2.3, 1.8, 1.4), training(2.0, 1.5, 1.0)), "off from the start, and no further later"
    assert not is_calm(training(2.0, 1.5, 0.011), training(2.0, 1.5, 0.26))


def test_a_calm_rate_is_found_for_a_training_that_explodes() -> None:
    """A step of the first rate leaps over so many waves that float32 no longer knows where it lands."""

    class Wavy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor(1.0))

        def forward(self, x: Tensor) -> SimpleNamespace:
            return SimpleNamespace(loss=1000 * (self.weight * x).sin())

    rate, eager, reference = calm_training(Wavy(), {"x": torch.tensor(100.0)})
    assert rate < RATES[0]
    assert is_calm(eager, reference)
