"""A large region is compiled by a process of its own first; one that takes it too long runs under ATen."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

import fuseplan
from fuseplan.executors.nvfuser import executor
from fuseplan.executors.nvfuser.trial import MIN_OPS, Trials

GREEDY = {"plan": "nvfuser-greedy"}


def chain(x: Tensor, step: Callable[[Tensor], Tensor] = torch.cos) -> Tensor:
    for _ in range(MIN_OPS):
        x = step(x * 0.9)
    return x


def test_a_large_region_is_tried_and_runs_under_nvfuser(monkeypatch: pytest.MonkeyPatch) -> None:
    trials, said = Trials(), []
    ask = trials.refusal

    def refusal(key: str, text: str) -> str | None:
        said.append(ask(key, text))
        return said[-1]

    monkeypatch.setattr(trials, "refusal", refusal)
    monkeypatch.setattr(executor, "_trials", lambda: trials)
    x = torch.randn(1000, device="cuda")
    program = torch.compile(chain, backend="fuseplan", options=GREEDY)
    torch.testing.assert_close(program(x), chain(x))
    assert said == [None]
    assert trials._process is not None, "the process did not start"
    assert trials._process.alive
    assert "not let compile" not in str(fuseplan.explain(program))
    trials._process.kill()


def test_a_large_region_that_takes_too_long_runs_under_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    impatient = Trials(seconds=1e-4)
    monkeypatch.setattr(executor, "_trials", lambda: impatient)
    x = torch.randn(1000, device="cuda")
    other = partial(chain, step=torch.sin)  # no region of it is compiled yet: what lives is not compiled again
    program = torch.compile(other, backend="fuseplan", options=GREEDY)
    with pytest.warns(UserWarning, match=r"runs under ATen: nvfuser is not let compile .* within 0\.0001 s"):
        assert torch.equal(program(x), other(x))
    assert "was not compiled within" in str(fuseplan.explain(program))
