"""Real tensors that are not what tracing said: found at the edge of a region, and made what its code was compiled for.

A convolution chooses its layout by what cuDNN prefers for the very tensors that it meets, and a norm the dtype of its
statistics by its kernel; the fake tensors of tracing cannot always tell. ATen takes what comes; compiled code does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fuseplan.executors import Compiled, statistics
from fuseplan.graph import Graph, Op, TensorType

_CHOOSY = ("aten.convolution", "aten.cudnn_convolution", "aten.miopen_convolution", "aten.mkldnn_convolution")


@dataclass(frozen=True)
class Risks:
    """The values of a graph that may turn out to be other than declared."""

    strides: frozenset[str]
    dtypes: frozenset[str]


def at_risk(graph: Graph, role: str) -> Risks:
    """Whose strides may differ: what convolutions give, and all that comes of it. Whose dtype: the statistics of norms in
    low precision, and what takes its dtype from them. In a backward graph that includes what the forward saved.
    """
    strides = {v.name for v in graph.inputs if role == "backward" and _may_be_image(v.type)}
    dtypes: set[str] = set()
    saved: set[str] = set()
    for op in graph.ops:
        tensors = [value.name for value in op.outputs if isinstance(value.type, TensorType)]
        if op.target.startswith(_CHOOSY) or not strides.isdisjoint(op.reads):
            strides.update(tensors)
        if not dtypes.isdisjoint(op.reads) and not _says_its_dtype(op):
            dtypes.update(tensors)
        dtypes.update(value.name for value in statistics.given(op, graph))
        if role == "backward":
            saved.update(statistics.saved(op, graph))
    return Risks(frozenset(strides), frozenset(dtypes | saved))


def _may_be_image(kind: object) -> bool:
    return isinstance(kind, TensorType) and len(kind.shape) >= 4


def _says_its_dtype(op: Op) -> bool:
    return bool(op.mutates) or any(name == "dtype" and value is not None for name, value in op.kwargs)


def as_declared(call: Compiled, region: Graph, risks: Risks) -> Compiled:
    """Return `call` with the inputs that are at risk checked at each call. None of the others costs anything."""
    tensors = [(i, v.name, v.type) for i, v in enumerate(region.inputs) if isinstance(v.type, TensorType)]
    strides = [(i, tuple(kind.stride)) for i, name, kind in tensors if name in risks.strides and _static(kind)]
    dtypes = [(i, getattr(torch, kind.dtype)) for i, name, kind in tensors if name in risks.dtypes]
    if not strides and not dtypes:
        return call

    def checked(args: list[object]) -> Sequence[object]:
        for i, dtype in dtypes:
            value = args[i]
            if isinstance(value, torch.Tensor) and value.dtype is not dtype:
                args[i] = value.to(dtype)
        for i, stride in strides:
            value = args[i]
            if isinstance(value, torch.Tensor) and value.stride() != stride:
                args[i] = _laid_out(value, stride)
        return call(args)

    return checked


def _static(kind: TensorType) -> bool:
    return all(isinstance(dim, int) for dim in (*kind.shape, *kind.stride))


def _laid_out(value: torch.Tensor, stride: Sequence[int | str]) -> torch.Tensor:
    wanted = [int(step) for step in stride]
    differ = any(s != w for s, w, size in zip(value.stride(), wanted, value.shape, strict=True) if size > 1)
    if not differ:
        return value
    return torch.empty_strided(value.shape, wanted, dtype=value.dtype, device=value.device).copy_(value)
