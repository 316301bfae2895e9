"""From a small Python function to the Graph of a region, traced with fake tensors: no device is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fuseplan.capture.fx.from_fx import from_fx
from fuseplan.graph import Graph


def meta(*shape: int, dtype: torch.dtype = torch.float32, stride: Sequence[int] | None = None) -> torch.Tensor:
    """A tensor without data: what an input of a region looks like."""
    dense = torch.empty(shape, dtype=dtype, device="meta")
    return dense if stride is None else torch.empty_strided(shape, stride, dtype=dtype, device="meta")


def region_of(function: Callable[..., Any], *inputs: torch.Tensor, device: str = "cpu") -> Graph:
    """The Graph of `function` for inputs like these, at these very sizes."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        fakes = [_fake(value, device) for value in inputs]
        return _graph(make_fx(_as_list(function))(*fakes))


def dynamic_region_of(
    function: Callable[..., Any], sizes: Sequence[int], *shapes: Sequence[int | str], device: str = "cpu"
) -> Graph:
    """The Graph of a function of symbolic sizes and then float tensors.

    The sizes that were seen are `sizes`; in `shapes`, "0" is the first of them, and so on.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    longest = [torch.empty(size, device="meta") for size in sizes]
    numbers = [_dynamic(mode, tensor).shape[0] for tensor in longest]
    with mode:
        dims = [[numbers[int(d)] if isinstance(d, str) else d for d in shape] for shape in shapes]
        fakes = [torch.empty(shape, device=device) for shape in dims]
        return _graph(make_fx(_as_list(function))(*numbers, *fakes))


def _dynamic(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    dims = [DimDynamic.DYNAMIC] * tensor.dim()
    return mode.from_tensor(tensor, symbolic_context=StatelessSymbolicContext(dynamic_sizes=dims))


def _fake(value: torch.Tensor, device: str) -> torch.Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)


def _as_list(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    def listed(*args: Any) -> list[Any]:
        result = function(*args)
        return list(result) if isinstance(result, (list, tuple)) else [result]

    return listed


def _graph(gm: torch.fx.GraphModule) -> Graph:
    gm.graph.eliminate_dead_code()
    graph = from_fx(gm)
    graph.validate()
    return graph
