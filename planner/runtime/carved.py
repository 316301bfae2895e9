"""Regions as operators that nobody looks into: `fuseplan::carved`, which Inductor calls where a plan has carved one out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from fuseplan.capture.fx.composites import LIBRARY
from fuseplan.capture.fx.to_fx import to_fx
from fuseplan.errors import ExecutorError, GraphError, UnsupportedError
from fuseplan.executors import Compiled, executors
from fuseplan.graph import Graph, TensorType
from fuseplan.host.carving import given_by
from fuseplan.runtime.declared import is_static, laid_out
from fuseplan.runtime.regions import failed_at_run_time

_SCHEMA = "(Tensor[] inputs, SymInt[] sizes, str executor, str variant, str graph, str settings) -> Tensor[]"
_AS_TRACED = (torch.Tag.needs_exact_strides, torch.Tag.pt2_compliant_tag)
LIBRARY.define(f"carved{_SCHEMA}", tags=_AS_TRACED)
LIBRARY.define(f"carved_cheap{_SCHEMA}", tags=_AS_TRACED)
"""The second where torch would compute each op of the region again in the backward rather than keep what it gives."""


@lru_cache(maxsize=4096)
def _graph(text: str) -> Graph:
    return Graph.from_json(text)


@lru_cache(maxsize=4096)
def compiled_region(executor: str, variant: str, text: str, _: str) -> Compiled:
    """What runs a region, compiled at its first call in this process, once for each settings of torch: what torch's caches keep of
    a program is the operator and its arguments.
    """
    with torch.no_grad(), torch._C._DisableAutocast():
        return executors()[executor].compile(_graph(text), variant)


@lru_cache(maxsize=4096)
def played(text: str) -> GraphModule:
    """The ops of a region, one by one."""
    return to_fx(_graph(text))


def _arguments(graph: Graph, inputs: Sequence[Tensor], sizes: Sequence[Any]) -> list[Any]:
    tensors, numbers = iter(inputs), iter(sizes)
    return [next(tensors) if isinstance(value.type, TensorType) else next(numbers) for value in graph.inputs]


def _carved(
    inputs: Sequence[Tensor], sizes: Sequence[int], executor: str, variant: str, text: str, under: str
) -> list[Tensor]:
    graph = _graph(text)
    args = [_as_declared(one, kind) for one, kind in zip(_arguments(graph, inputs, sizes), _kinds(graph), strict=True)]
    # a backward may be called under autocast, or without what its forward was called under
    with torch.no_grad(), torch._C._DisableAutocast():
        found = _run(executor, variant, text, under, args)
        return [_as_declared(one, graph.types[ref.name]) for one, ref in zip(found, given_by(graph), strict=True)]


def _kinds(graph: Graph) -> list[Any]:
    return [value.type for value in graph.inputs]


def _as_declared(value: Any, kind: Any) -> Any:
    """A real tensor that is not what tracing said, such as statistics of norms, made what code was compiled for."""
    if not isinstance(kind, TensorType):
        return value
    value = value.to(getattr(torch, kind.dtype))
    return laid_out(value, kind.stride) if is_static(kind) else value


_failed: set[tuple[str, str, str]] = set()
"""Regions that have failed at run time, and run under ATen from then on."""


def _run(executor: str, variant: str, text: str, under: str, args: list[Any]) -> Sequence[Any]:
    if (executor, variant, text) not in _failed:
        try:
            return compiled_region(executor, variant, text, under)(list(args))
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, UnsupportedError, ExecutorError, GraphError) as error:
            if executor == "aten":
                raise
            _failed.add((executor, variant, text))
            failed_at_run_time(_graph(text), executor, error)
    return compiled_region("aten", "default", text, under)(list(args))


def _carved_fake(
    inputs: Sequence[Tensor], sizes: Sequence[Any], executor: str, variant: str, text: str, under: str
) -> list[Tensor]:
    """What `_carved` gives, whichever strides an input has: where an op is taken apart, its parts may give others than it."""
    graph = _graph(text)
    found = played(text)(*_arguments(graph, inputs, sizes))
    kinds = [graph.types[ref.name] for ref in given_by(graph)]
    return [
        one.new_empty_strided(kind.shape, kind.stride) if is_static(kind) else one
        for one, kind in zip(found, kinds, strict=True)
    ]


for _name in ("carved", "carved_cheap"):
    LIBRARY.impl(_name, _carved, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fuseplan::{_name}", _carved_fake, lib=LIBRARY)
