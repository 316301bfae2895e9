"""Dynamo without its stopwatch: what compiles in tests compiles many small programs."""

from __future__ import annotations

import torch._dynamo.guards


def leave_guards_untimed() -> None:
    """Have Dynamo not time each new guard: it flushes the processor's caches first, and all for a line in a log. That takes a sixth
    of what a small program takes to compile.
    """
    if hasattr(torch._dynamo.guards, "profile_guard_manager"):
        torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0
