"""Dropout: ruled by torch's generator, and drawn anew at each replay of a CUDA graph."""

from __future__ import annotations

from typing import Any

import torch

from conformance.build import meta, region_of
from fuseplan.executors import Compiled
from fuseplan.executors.nvfuser.executor import NvfuserExecutor


def dropped(x: Any) -> Any:
    return torch.ops.aten.native_dropout(x.exp(), 0.5, True)


def compiled_dropout() -> Compiled:
    return NvfuserExecutor().compile(region_of(dropped, meta(256, 256), device="cuda:0"))


def mask_after(seed: int, call: Compiled, x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(seed)
    mask: torch.Tensor = call([x])[1]
    return mask


def test_the_seed_rules_it() -> None:
    call, x = compiled_dropout(), torch.randn(256, 256, device="cuda")
    first = mask_after(1, call, x)
    assert torch.equal(first, mask_after(1, call, x))
    assert not torch.equal(first, mask_after(2, call, x))
    assert not torch.equal(call([x])[1], call([x])[1])


def test_the_mask_is_what_was_dropped() -> None:
    call, x = compiled_dropout(), torch.randn(256, 256, device="cuda")
    y, mask = call([x])
    torch.testing.assert_close(y, torch.where(mask, x.exp() * 2, 0.0))
    assert 0.48 < mask.float().mean().item() < 0.52


def test_it_advances_the_generator_so_that_later_numbers_are_others() -> None:
    call, x = compiled_dropout(), torch.randn(256, 256, device="cuda")
    torch.manual_seed(0)
    untouched = torch.rand(8, device="cuda")
    torch.manual_seed(0)
    call([x])
    assert not torch.equal(untouched, torch.rand(8, device="cuda"))


def test_each_replay_of_a_cuda_graph_draws_anew() -> None:
    call, x = compiled_dropout(), torch.randn(256, 256, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _, mask = call([x])
    seen = []
    for seed in (3, None, 3):
        if seed is not None:
            torch.manual_seed(seed)
        graph.replay()
        seen.append(mask.clone())
    assert not torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])
