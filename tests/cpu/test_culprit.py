"""The ops that torch.compile gets wrong: the fewest that show it, and the script that does."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule

from cpu.test_judge import Small, loaded
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.load import load_trace
from fuseplan.judge.culprit import find_fault
from fuseplan.judge.expect import expect
from fuseplan.judge.output import WIDER


def ascending(x: Tensor, y: Tensor) -> Tensor:
    """With torch 2.13 on a CPU its gradient is wrong."""
    return (x * y).softmax(-1).cumsum(-1)


def test_the_ops_are_found_that_are_compiled_to_something_else(tmp_path: Path) -> None:
    """Whichever compiler it is: this one takes a gelu for a relu where a sine has gone before."""

    def compiles(module: nn.Module) -> Callable[..., Any]:
        assert isinstance(module, GraphModule)
        changed = GraphModule(module, copy.deepcopy(module.graph))
        for node in changed.graph.nodes:
            if node.target is F.gelu and any(one.target == "sin" for one in changed.graph.nodes):
                node.target = F.relu
        changed.recompile()
        return changed

    def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        hidden = (x @ w).tanh() + 1
        hidden = F.gelu(hidden.sin() * 2)
        return F.layer_norm(hidden.exp() @ w, (16,)), (x @ w).sum()

    fault = find_fault(loaded(program, torch.randn(8, 16), torch.randn(16, 16, requires_grad=True)), compiled=compiles)
    assert fault is not None
    assert (fault.op, fault.ops) == ("gelu", 3)
    assert "off by" in fault.problem
    assert load_trace(Trace.from_json(fault.trace)).run()
    script = tmp_path / "shows.py"
    script.write_text(fault.script)
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert [line.split(" is off")[0] for line in ran.stdout.splitlines()] == ["eager", "torch.compile"]


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    program = loaded(Small(), torch.randn(16, 32))
    assert find_fault(program, compiled=lambda module: module) is None
    assert find_fault(program, compiled=lambda module: lambda *args: (module(*args)[0] + 1,), seconds=0.0) is None


@pytest.mark.slow
def test_a_fault_of_torchs_own_is_found_and_shown(tmp_path: Path) -> None:
    program = loaded(ascending, *(torch.randn(8, 16, requires_grad=True) for _ in range(2)))
    problem = expect(program).judge(program.run(torch.compile(program.module)), 0, "any", wider=WIDER).problem
    fault = find_fault(program)
    assert (problem is None) == (fault is None)  # a torch that has mended it computes what it should
    if fault is None:
        return
    assert fault.op == "cumsum"
    assert fault.ops <= 5
    script = tmp_path / "shows.py"
    script.write_text(fault.script)
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    worst = [
        max(float(one) for one in line.split(" most ")[1].split(" (")[0].split(", "))
        for line in ran.stdout.splitlines()
    ]
    assert worst[0] < 1e-4 < 1e-2 < worst[1]
