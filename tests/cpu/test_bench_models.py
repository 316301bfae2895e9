"""The benchmark of whole models: a side that fails, or ends its process, is a row and takes no other side with it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import models


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """One small model; timing is a single call of each side."""

    def side_by_side(steps: Mapping[str, Callable[[], object]], **_: int) -> dict[str, Any]:
        return {side: {"device_us": 1.0} for side, step in steps.items() if step() is not None}

    model, inputs = torch.nn.Identity(), {"input": torch.ones(2)}
    monkeypatch.setattr(models, "CASES", {"small": SimpleNamespace(load=lambda: (model, inputs), train=False)})
    monkeypatch.setattr(models, "side_by_side", side_by_side)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


def backend(fails_at: int) -> Callable[..., Any]:
    """A compiler whose code fails at its n-th call."""

    def compile_graph(gm: torch.fx.GraphModule, inputs: object) -> Callable[..., Any]:
        calls = iter(range(1, 1000))

        def run(*args: Any) -> Any:
            if next(calls) == fails_at:
                raise RuntimeError(f"call {fails_at}\nand more")
            return gm(*args)

        return run

    return compile_graph


@pytest.mark.parametrize("fails_at", [1, 5], ids=["while it warms up", "while it is measured"])
def test_a_side_that_fails_is_a_row(fails_at: int, no_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    sides = {"eager": None, "bad": {"backend": backend(fails_at)}, "good": {"backend": backend(0)}}
    monkeypatch.setattr(models, "SIDES", sides)
    monkeypatch.setattr(models, "_fresh", lambda model: lambda **inputs: inputs["input"] * 2)
    rows = models._measure_one("small", list(sides))
    assert rows == {
        "eager": {"device_us": 1.0},
        "good": {"device_us": 1.0},
        "bad": {"failed": f"RuntimeError: call {fails_at}"},
    }


def test_a_side_that_ends_its_process_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[list[str]] = []

    def run(command: list[str], **_: Any) -> Any:
        sides = [side for side in ("eager", "torch.compile", "reduce-overhead") if repr(side) in command[-1]]
        runs.append(sides)
        rows = ", ".join(f'"{side}": {{"device_us": 1.0}}' for side in sides)
        return SimpleNamespace(returncode=-6 if "reduce-overhead" in sides else 0, stdout=f"noise\n{{{rows}}}\n")

    monkeypatch.setattr(subprocess, "run", run)
    rows = models._in_own_process("bert 1x128", ["eager", "reduce-overhead", "torch.compile"])
    assert rows["reduce-overhead"] == {"failed": "the process ended with -6"}
    assert rows["eager"] == rows["torch.compile"] == {"device_us": 1.0}
    assert runs[-1] == ["eager", "torch.compile"], "the others are measured side by side"


def test_a_table_of_failures_alone_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.timing import print_table

    print_table("small", {"bad": {"failed": "it ended"}})
    assert "it ended" in capsys.readouterr().err
