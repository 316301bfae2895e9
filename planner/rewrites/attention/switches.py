"""What the caller of a program, or the program itself, wants of its attention, and a way must not take away."""

from __future__ import annotations

import torch

from fuseplan.rewrites.attention.device import ENABLED, OWN, switched_on
from fuseplan.rewrites.attention.site import AttentionSite
from fuseplan.rewrites.attention.ways import AttentionWay
from fuseplan.segment.masks import UnprovenError


def forbidden(site: AttentionSite, way: AttentionWay) -> str | None:
    """Why a way is not to be taken at a site; None if it may."""
    on = switched_on(site.result)
    if way.kernel in OWN:
        off = [name for name in ENABLED if name not in on]
        return f"{', '.join(off)} switched off, and {OWN[way.kernel]} is none of what is left" if off else None
    if way.kernel != "auto":
        return _not_deterministic(way.kernel) if way.kernel in on else f"{way.kernel} is switched off"
    if set(on) != {name for name, enabled in ENABLED.items() if enabled()}:
        return "the program chooses among kernels there by itself"
    return not_deterministic(site, way)


def not_deterministic(site: AttentionSite, way: AttentionWay) -> str | None:
    """Why a way gives a site a kernel that is not deterministic, where the caller asks for that; None if it does not, or if the
    program as it is written has that kernel too.

    PyTorch keeps to what is deterministic only under `use_deterministic_algorithms` that does not just warn.
    """
    if not (torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic):
        return None
    try:
        kernel = site.kernel_in(way)
        return None if kernel == site.kernel_as_written else _not_deterministic(kernel)
    except UnprovenError:  # there are no kernels to choose from, or it is not legal for that reason
        return None


def _not_deterministic(kernel: str | None) -> str | None:
    deterministic = torch.are_deterministic_algorithms_enabled()
    if kernel == "cudnn" and (deterministic or torch.backends.cudnn.deterministic):
        return "cudnn is not deterministic, which the caller asks for"
    if kernel == "efficient" and deterministic and torch.is_deterministic_algorithms_warn_only_enabled():
        return "efficient is not deterministic where that only warns, and the caller asks for it"
    return None
