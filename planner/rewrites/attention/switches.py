"""What the caller of a program, or the program itself, wants of its attention, and a way must not take away."""

from __future__ import annotations

import torch
from torch.fx import Node

from fuseplan.rewrites.attention.device import ENABLED, switched_on


def forbidden(kernel: str, result: Node) -> str | None:
    """Why a kernel is not to run at a node; None if it may."""
    on = switched_on(result)
    if kernel == "auto":
        chosen = set(on) != {name for name, enabled in ENABLED.items() if enabled()}
        return "the program chooses among kernels there by itself" if chosen else None
    if kernel not in on:
        return f"{kernel} is switched off"
    deterministic = torch.are_deterministic_algorithms_enabled()
    if kernel == "cudnn" and (deterministic or torch.backends.cudnn.deterministic):
        return "cudnn is not deterministic, which the caller asks for"
    if kernel == "efficient" and deterministic and torch.is_deterministic_algorithms_warn_only_enabled():
        return "efficient is not deterministic where that only warns, and the caller asks for it"
    return None
