"""Options: those that make no sense are one line, and those that are torch.compile's reach it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fuseplan
from fuseplan.errors import OptionError


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"tune": "slow"}, "option tune is off or later or instant or quick or full, not 'slow'"),
        ({"db": 3}, "option db is the path"),
        ({"db": ""}, "option db is the path"),
        ({"unverified": 1}, "option unverified is True or False, not 1"),
        ({"fuel": -1}, "option fuel is the number of fusions"),
        ({"fuel": True}, "option fuel is the number of fusions"),
        ({"launch": "rocket"}, "has no launch 'rocket'"),
        ({"counters": "yes"}, "option counters is True or False"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        fuseplan.compile(torch.nn.Identity(), **options)


@pytest.mark.parametrize("options", [{}, {"plan": "aten"}, {"mode": "max-autotune-no-cudagraphs", "plan": "eager"}])
def test_what_torch_takes_among_the_options_reaches_it(options: dict[str, Any], own_database: Path) -> None:
    """Guards that are left out let a program run on that another one would be compiled for."""

    def times(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n

    asked = list[int]()

    def of_tensors(guards: Any) -> list[bool]:
        asked.append(len(guards))
        return [guard.guard_type == "TENSOR_MATCH" for guard in guards]

    torch._dynamo.reset()
    compiled = fuseplan.compile(times, guard_filter_fn=of_tensors, dynamic=False, **options)
    x = torch.ones(3)
    assert [compiled(x, n).tolist() for n in (2, 5)] == [[2.0] * 3] * 2
    assert len(asked) == 1
    assert torch.equal(compiled(x.double(), 3), x.double() * 3)
    assert len(asked) == 2
