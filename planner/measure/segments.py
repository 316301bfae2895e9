"""What CUDA's allocator holds of a GPU: its segments, of all pools or of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

import torch

_NO_HISTORY = {"include_traces": False} if "include_traces" in signature(torch.cuda.memory_snapshot).parameters else {}
"""Who records all that is allocated would wait for that to be copied; torch 2.10 does not ask."""


def segments(pool: tuple[int, int] | None = None) -> Sequence[Mapping[str, Any]]:
    """The segments as the allocator tells of them: those of a pool, if one is named."""
    found: Sequence[Mapping[str, Any]] = torch.cuda.memory_snapshot(pool, **_NO_HISTORY)
    return found
