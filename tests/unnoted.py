"""Torch without the notes that it takes: what compiles in tests compiles many small programs, and nobody reads them."""

from __future__ import annotations

import logging

import torch._dynamo.guards
import torch._logging._internal
from torch import cuda, mtia, xpu


def leave_unnoted() -> None:
    """Have torch do what it does, and leave out what it would write down of it."""
    _leave_guards_untimed()
    _leave_steps_unwritten()
    _leave_absent_devices_unseeded()


def _leave_guards_untimed() -> None:
    """Have Dynamo not time each new guard: it flushes the processor's caches first, and all for a line in a log. That takes a sixth
    of what a small program takes to compile.
    """
    if hasattr(torch._dynamo.guards, "profile_guard_manager"):
        torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0


def _leave_steps_unwritten() -> None:
    """Have each graph, guard and cache entry of a compilation not be printed: torch does so for whoever reads its trace, and pytest reads
    every log that it can find.
    """
    logging.root.manager.loggerDict.pop(torch._logging._internal.trace_log.name, None)


def _leave_absent_devices_unseeded() -> None:
    """Have a seed not be kept for devices that there are none of, with the stack of whoever set it: that takes milliseconds for each kind."""
    for kind in (cuda, mtia, xpu):
        if not kind.is_available():
            setattr(kind, "manual_seed_all", lambda _: None)  # noqa: B010 -- it is not ours
