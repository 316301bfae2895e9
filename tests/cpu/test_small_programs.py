"""Under effort instant a program that is small beside one before it is not tuned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from cpu.test_lookup import TUNE, chain, keep, run, stored, two_sizes, without_inductor
from fuseplan.plan import Plan

__all__ = ["without_inductor"]


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The operators of each program that is tuned, which finds nothing."""
    found: list[int] = []

    def tune_online(gm: Any, *_: Any) -> None:
        found.append(sum(node.op.startswith("call_") for node in gm.graph.nodes))

    monkeypatch.setattr(TUNE, "tune_online", tune_online)
    return found


def long(x: torch.Tensor) -> torch.Tensor:
    for _ in range(20):
        x = (x * 2).relu() - 1
    return x


def attends(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(x, x, x)


def test_instant_leaves_what_is_small_beside_a_program_before_it(tuned: list[int], tmp_path: Path) -> None:
    options = {"db": tmp_path / "a.db", "tune": "instant"}
    for f in (chain, long, chain, two_sizes):
        found = run(*(torch.ones(4), torch.ones(4)) if f is two_sizes else (torch.randn(4, 8),), f=f, **options)
    assert tuned == [3, 60, 4]  # a small one that comes first is tuned, and all small ones together are not small
    assert "operators beside" not in found.why
    assert "operators beside" not in run(**{**options, "tune": "quick"}).why
    assert tuned == [3, 60, 4, 3]
    q = torch.randn(1, 2, 8, 16)
    run(q, f=attends, **options)
    assert tuned[-1] == 1  # what may be rewritten is tuned however small it is


def test_blocks_that_are_computed_anew_count_for_what_is_in_them(tuned: list[int], tmp_path: Path) -> None:
    def in_blocks(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = checkpoint(long, x, use_reentrant=False)
        return x

    options = {"db": tmp_path / "a.db", "tune": "instant"}
    run(f=long, **options)
    run(torch.randn(4, 8, requires_grad=True), f=in_blocks, **options)
    assert len(tuned) == 2


@pytest.mark.parametrize("options", [{"objective": "memory"}, {}])
def test_what_somebody_offers_or_another_objective_is_tuned(
    options: dict[str, Any], tuned: list[int], tmp_path: Path
) -> None:
    key = run().key
    options |= {"db": tmp_path / "a.db", "tune": "instant"}
    run(f=long, **options)
    if "objective" not in options:
        keep(tmp_path / "a.db", stored(key, status="unverified", wall_us=None))
    run(**options)
    assert tuned == [60, 3]


def test_instant_says_what_it_leaves(tuned: list[int], tmp_path: Path) -> None:
    """And what is found counts as what was tuned, so that the next process leaves it too."""
    key = run(f=long).key
    keep(tmp_path / "a.db", stored(key, Plan.named("eager")))
    options = {"db": tmp_path / "a.db", "tune": "instant"}
    assert run(f=long, **options).why.startswith("tuned plan")
    assert "too small for seconds of tuning, with 3 operators beside 60" in run(**options).why
    assert tuned == []
