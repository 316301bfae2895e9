"""The plans that tests run programs under, and how a test asks for one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest
import torch

from fuseplan.plan import Plan

Fn = TypeVar("Fn", bound=Callable[..., Any])

SEGMENTED = "aten"
"""The segmented plan in which PyTorch's own kernels run every region: every step of fuseplan's, no other arithmetic."""
DEFAULTS = ("eager", "inductor")
"""The whole-program plans that run without a GPU."""
PLANS = (SEGMENTED, *DEFAULTS)
EVERY_PLAN = (SEGMENTED, "eager", pytest.param("inductor", marks=pytest.mark.exhaustive))
"""For tests of many small programs: Inductor compiles each for seconds, so `pytest -m exhaustive` runs those."""


def on_both_hosts(cases: Iterable[Any], usual: Iterable[Any]) -> list[Any]:
    """Each case, a value or several, under the hosts aten and inductor: `pytest -m exhaustive` has Inductor compile those that are not
    usual.
    """
    rare = {case: [pytest.mark.exhaustive] * (case not in usual) for case in cases}
    each = {case: case if isinstance(case, tuple) else (case,) for case in rare}
    return [
        pytest.param(
            *each[case],
            host,
            id="-".join(getattr(one, "__name__", str(one)) for one in (*each[case], host)),
            marks=rare[case] if host == "inductor" else (),
        )
        for case in rare
        for host in (SEGMENTED, "inductor")
    ]


def compile_under(
    plan: str | Plan, program: Fn, *, launch: str = "plain", attention: str = "as-is", **compile_options: Any
) -> Fn:
    """`program` as `torch.compile` makes it with fuseplan as the backend and that plan, given as such or by name."""
    options = {"plan": plan, "launch": launch, "attention": attention}
    compiled: Fn = torch.compile(program, backend="fuseplan", options=options, **compile_options)
    return compiled
