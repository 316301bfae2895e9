"""Fuseplan's own executors; imports torch. `known.py` lists what they say of themselves, in the same order."""

from __future__ import annotations

from collections.abc import Callable

from fuseplan.executors.aten.executor import AtenExecutor
from fuseplan.executors.base import Executor
from fuseplan.executors.inductor.executor import InductorExecutor
from fuseplan.executors.nvfuser.executor import NvfuserExecutor

OWN: tuple[Callable[[], Executor], ...] = (AtenExecutor, InductorExecutor, NvfuserExecutor)
"""In the order in which they are asked. A new executor is one more here, and its Traits one more in `EXECUTORS`."""
