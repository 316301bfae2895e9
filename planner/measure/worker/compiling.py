"""A program as an entry of a race runs it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule

from fuseplan.backend import backend_by_size, fuseplan_backend
from fuseplan.capture.trace.load import Loaded
from fuseplan.measure.entry import RaceEntry
from fuseplan.options import FIXED


def compile_entry(entry: RaceEntry, loaded: Loaded, by_size: bool = False) -> Callable[..., Any]:
    """The program as an entry runs it, be it with sizes of its own. Each has a module of its own over the same parameters, since torch.compile keeps
    what it compiles by the code of `forward`, and gives up after eight.
    """
    assert isinstance(loaded.module, GraphModule)
    module = GraphModule(loaded.module, copy.deepcopy(loaded.module.graph))
    if entry.plan is not None:
        return _under_fuseplan(module, backend_by_size if by_size else fuseplan_backend, plan=entry.plan)
    if entry.mode is not None:
        return torch.compile(module, mode=None if entry.mode == "default" else entry.mode)
    return module


def _under_fuseplan(
    module: Callable[..., Any], backend: Callable[..., Any] = fuseplan_backend, **options: Any
) -> Callable[..., Any]:
    # whose plan has siblings has promised what they rest on
    compiled: Any = torch.compile(module, backend=backend, options={"weights": FIXED, **options})
    return compiled  # type: ignore[no-any-return]
