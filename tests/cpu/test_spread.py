"""How far values are off is the same however they are held against what is exact: kept, in parts, or with what is no number."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fuseplan.judge import exact as exactly
from fuseplan.judge.compare import Leaf, judge_floats
from fuseplan.judge.exact import Exact
from fuseplan.judge.spread import NaturalSpread

DTYPES = (torch.float32, torch.bfloat16, torch.complex64, torch.float64)


def values(dtype: torch.dtype, seed: int, planted: bool = False) -> Tensor:
    wide = torch.complex128 if dtype.is_complex else torch.float64
    made = torch.randn(40, 25, dtype=wide, generator=torch.Generator().manual_seed(seed))
    made *= torch.logspace(-12, 3, 25, dtype=torch.float64)
    if planted:
        made[3, 4], made[7, 8], made[9] = math.nan, math.inf, 0
    return made


def off(right: Tensor, dtype: torch.dtype, seed: int, by: float = 1.0) -> Tensor:
    return (right * (1 + by * torch.finfo(dtype).eps * values(dtype, seed).abs().clamp(max=2))).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("planted", [False, True])
def test_in_parts_or_at_once(dtype: torch.dtype, planted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    right = values(dtype, 0, planted)
    found = []
    for kept, chunk in ((1 << 16, 1 << 24), (0, 1 << 24), (0, 7)):
        monkeypatch.setattr(exactly, "_KEPT", kept)
        monkeypatch.setattr(exactly, "CHUNK", chunk)
        spread, exact = NaturalSpread.of(off(right, dtype, 1)), Exact(right)
        for seed in (1, 2):
            spread.learn(off(right, dtype, seed), exact)
        found.append(spread.measure(off(right, dtype, 3, by=4.0), exact))
    for one in found[1:]:
        for mine, first in zip(one, found[0], strict=True):
            assert mine.measure == first.measure
            for what in ("error", "allowed", "natural"):
                assert math.isclose(getattr(mine, what), getattr(first, what), rel_tol=1e-9), what


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_no_number_is_left_out_of_the_spread(dtype: torch.dtype) -> None:
    right = values(dtype, 0, planted=True)
    clean, numbers = right.clone(), torch.isfinite(right)
    clean[~numbers] = 0
    told = []
    for one in (right, clean):
        spread = NaturalSpread.of(off(clean, dtype, 1))
        spread.learn(off(one, dtype, 1), Exact(one))
        told.append(spread.measure(off(one, dtype, 2, by=3.0), Exact(one)))
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("got", "eager", "exact", "wrong"),
    [
        (1.0, 1.0, 1.0, False),
        (math.inf, math.inf, math.inf, False),
        (math.nan, 1.0, 1.0, True),
        (1.0, math.nan, math.nan, True),
        (math.inf, -math.inf, -math.inf, True),
        (6e4, math.inf, 6e4, False),  # eager has overflowed on its way
        (math.inf, math.inf, 6e4, False),
        (math.inf, math.inf, 1e5, False),  # what fp16 cannot hold
        (math.nan, math.inf, 6e4, True),
    ],
)
def test_where_something_is_no_number(got: float, eager: float, exact: float, wrong: bool) -> None:
    beside = torch.ones(3, dtype=torch.float16)
    leaf_eager, leaf_exact = torch.cat([beside, beside[:1] * eager]), torch.tensor([1.0, 1.0, 1.0, exact])
    leaf = Leaf(leaf_eager, leaf_exact, NaturalSpread.of(leaf_eager))
    mine = torch.cat([beside, beside[:1] * got])
    for any_infinite in (False, True):
        problem = judge_floats("y", mine, leaf, any_infinite=any_infinite).problem
        alike = any_infinite and not math.isfinite(got) and not math.isfinite(eager)
        assert (problem is not None and "NaN or infinite" in problem) is (wrong and not alike), problem
