"""Random inputs are what was recorded: sizes, strides, dtypes, and numbers that the ops of the region accept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from conformance.build import dynamic_region_of, meta, region_of
from fuseplan.graph import Graph
from fuseplan.judge.evaluate import evaluate
from fuseplan.judge.inputs import make_inputs

aten = torch.ops.aten
LONG = torch.int64


def test_sizes_strides_and_dtypes_are_as_recorded() -> None:
    given = (
        meta(4, 6, stride=(1, 4)),
        meta(4, 6, stride=(0, 1), dtype=torch.bfloat16),
        meta(4, 6, stride=(40, 3), dtype=torch.int32),
        meta(dtype=torch.bool),
        meta(0, 3),
        meta(3, dtype=torch.complex64),
    )
    region = region_of(lambda *args: list(args), *given)
    for tensor, like in zip(make_inputs(region, 0), given, strict=True):
        assert (tensor.shape, tensor.dtype, tensor.device.type) == (like.shape, like.dtype, "cpu")
        assert tensor.stride() == like.stride() or tensor.numel() == 0


def test_a_seed_says_it_all() -> None:
    region = region_of(lambda x, y: x + y, meta(8), meta(8))
    first, again, other = (make_inputs(region, seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], first[1])


def test_symbols_take_their_hints_or_what_is_asked() -> None:
    region = dynamic_region_of(lambda n, x: x.view(n * 4) + n, [6], ["0", 4])
    assert [v if isinstance(v, int) else tuple(v.shape) for v in make_inputs(region, 0)] == [6, (6, 4)]
    sized = make_inputs(region, 0, sizes={"s0": 9})
    assert [v if isinstance(v, int) else tuple(v.shape) for v in sized] == [9, (9, 4)]


def test_an_offset_moves_into_the_storage() -> None:
    region = region_of(lambda x: x + 1, meta(8))
    assert make_inputs(region, 0, offset=1)[0].storage_offset() == 1


def test_spreads_differ() -> None:
    region = region_of(lambda x: x + 1, meta(4096))
    normal, positive, wide = (make_inputs(region, 0, spread=s)[0] for s in ("normal", "positive", "wide"))
    assert (normal < 0).any()
    assert 0 < positive.min() < positive.max() <= 2
    assert wide.abs().max() / wide[wide != 0].abs().min() > 1e4
    assert (wide == 0).any()


def take(x: Any, index: Any) -> Any:
    return x[index], x[:, index]


def counted_back(x: Any, index: Any) -> Any:
    return x[torch.where(index < 0, index + 5, index)]


def inverse(index: Any) -> Any:
    order = aten.index_put(torch.empty_like(index), [index], torch.arange(16, device=index.device))
    return order[order]


def positions(table: Any, mask: Any) -> Any:
    return F.embedding(mask.cumsum(1) + 2, table)


INDEXED: tuple[tuple[Callable[..., Any], tuple[torch.Tensor, ...]], ...] = (
    (lambda table, index: F.embedding(index, table), (meta(5, 3), meta(64, dtype=LONG))),
    (lambda table, index: F.embedding(index.view(8, 8).t() + 2, table), (meta(5, 3), meta(64, dtype=LONG))),
    (lambda table, index: F.embedding(index.to(LONG), table), (meta(5, 3), meta(64, dtype=torch.int32))),
    (lambda x, index: x.gather(1, index), (meta(4, 3), meta(4, 9, dtype=LONG))),
    (lambda x, index: x.index_select(0, index), (meta(4, 3), meta(64, dtype=LONG))),
    (lambda x, index, y: x.scatter_add(1, index, y), (meta(4, 3), meta(4, 9, dtype=LONG), meta(4, 9))),
    (take, (meta(3, 3), meta(64, dtype=LONG))),
    (counted_back, (meta(5, 3), meta(64, dtype=LONG))),
    (inverse, (meta(16, dtype=LONG),)),
    (positions, (meta(40, 3), meta(2, 11, dtype=LONG))),
    (lambda x, target: aten.nll_loss_forward(x, target, None, 1, -100), (meta(64, 3), meta(64, dtype=LONG))),
    (lambda x, y: x // y, (meta(64, dtype=LONG), meta(64, dtype=LONG))),
    (lambda x, y: x << y, (meta(64, dtype=torch.int32), meta(64, dtype=torch.int32))),
    (lambda grad, index: aten.embedding_dense_backward(grad, index, 7, -1, False), (meta(64, 3), meta(64, dtype=LONG))),
)


@pytest.mark.parametrize("case", INDEXED, ids=range(len(INDEXED)))
@pytest.mark.parametrize("seed", range(4))
def test_indices_are_in_range(case: tuple[Callable[..., Any], tuple[torch.Tensor, ...]], seed: int) -> None:
    region = region_of(case[0], *case[1])
    evaluate(region, make_inputs(region, seed))


def test_indices_reach_every_row_and_count_from_the_end_where_they_may() -> None:
    index = make_inputs(region_of(take, meta(3, 3), meta(256, dtype=LONG)), 0)[1]
    assert sorted(index.unique().tolist()) == [-3, -2, -1, 0, 1, 2]
    rows = make_inputs(region_of(lambda t, i: F.embedding(i, t), meta(5, 3), meta(256, dtype=LONG)), 0)[1]
    assert sorted(rows.unique().tolist()) == [0, 1, 2, 3, 4]


def test_a_variance_is_positive() -> None:
    def norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any) -> Any:
        return aten._native_batch_norm_legit_no_training(x, weight, bias, mean, var, 0.1, 1e-5)[0]

    region = region_of(norm, meta(2, 4, 3), meta(4), meta(4), meta(4), meta(4))
    for seed in range(4):
        inputs = make_inputs(region, seed, spread="wide")
        assert (inputs[4] > 0).all()
        assert not evaluate(region, inputs)[0].isnan().any()


def test_what_nothing_constrains_is_small() -> None:
    region: Graph = region_of(lambda x: x * x, meta(256, dtype=LONG))
    (x,) = make_inputs(region, 0)
    assert -8 <= x.min() < 0 < x.max() <= 8
