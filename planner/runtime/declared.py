"""Real tensors that are not what tracing said: found at the edge of a region, and made what its code was compiled for.

A convolution chooses its layout by what cuDNN prefers for the very tensors that it meets. Statistics of norms in low
precision have the dtype that a kernel makes them in, and the running ones that of the buffers. The fake tensors of tracing
cannot always tell, or do not. ATen takes what comes; compiled code does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import torch

from fuseplan.executors import Compiled
from fuseplan.graph import Graph, TensorType

_CHOOSY = ("aten.convolution", "aten.cudnn_convolution", "aten.miopen_convolution", "aten.mkldnn_convolution")


def at_risk(graph: Graph, role: str) -> frozenset[str]:
    """The values whose strides may turn out other than declared: what convolutions give, and all that comes of it.

    In a backward graph that includes what the forward saved.
    """
    found = {v.name for v in graph.inputs if role == "backward" and _may_be_image(v.type)}
    for op in graph.ops:
        if op.target.startswith(_CHOOSY) or not found.isdisjoint(op.reads):
            found.update(value.name for value in op.outputs if isinstance(value.type, TensorType))
    return frozenset(found)


def _may_be_image(kind: object) -> bool:
    return isinstance(kind, TensorType) and len(kind.shape) >= 4


def with_declared_strides(call: Compiled, region: Graph, risky: frozenset[str]) -> Compiled:
    """Return `call` with the inputs that are at risk checked at each call. None of the others costs anything."""
    checks = [
        (i, tuple(value.type.stride))
        for i, value in enumerate(region.inputs)
        if value.name in risky and is_static(value.type)
    ]
    if not checks:
        return call

    def checked(args: list[Any]) -> Sequence[Any]:
        given = args
        for i, stride in checks:
            value = args[i]
            if isinstance(value, torch.Tensor) and value.stride() != stride:
                given = [*args] if given is args else given  # those of the caller may yet be needed as they are
                given[i] = laid_out(value, stride)
        return call(given)

    return checked


def with_declared_dtypes(call: Compiled, region: Graph, args: Sequence[Any]) -> Compiled:
    """Return `call` for inputs of the dtypes that `args` have: those of one call are those of all."""
    wrong = [
        (i, getattr(torch, value.type.dtype))
        for i, value in enumerate(region.inputs)
        if isinstance(value.type, TensorType)
        and isinstance(args[i], torch.Tensor)
        and str(args[i].dtype) != f"torch.{value.type.dtype}"
    ]
    if not wrong:
        return call

    def converted(args: list[Any]) -> Sequence[Any]:
        given = [*args]
        for i, dtype in wrong:
            given[i] = given[i].to(dtype)
        return call(given)

    return converted


def is_static(kind: object) -> TypeGuard[TensorType]:
    """Whether it is the type of a tensor whose sizes and strides are numbers."""
    return isinstance(kind, TensorType) and all(isinstance(dim, int) for dim in (*kind.shape, *kind.stride))


def laid_out(value: torch.Tensor, stride: Sequence[int | str]) -> torch.Tensor:
    """The same in memory of these strides; itself where it lies so."""
    wanted = [int(step) for step in stride]
    differ = any(s != w for s, w, size in zip(value.stride(), wanted, value.shape, strict=True) if size > 1)
    if not differ:
        return value
    return torch.empty_strided(value.shape, wanted, dtype=value.dtype, device=value.device).copy_(value)
