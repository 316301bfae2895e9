"""What is set in this process and decides what becomes of a graph, beside the graph itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import config

from fuseplan.capture.dynamo.numerics import Numerics


def settings() -> str:
    """A digest of it: what was traced or compiled under other settings may be something else.

    >>> before = settings()
    >>> with config.patch(emulate_precision_casts=not config.emulate_precision_casts):
    ...     settings() == before
    False
    >>> settings() == before
    True
    >>> with config.patch(compile_threads=config.compile_threads + 1):
    ...     settings() == before
    True
    >>> with config.patch({"cuda.cutlass_dir": "/elsewhere"}):
    ...     settings() == before
    True
    """
    inductors = sorted((name, value) for name, value in config.get_config_copy().items() if _decides(name))
    return _digest([switches(), repr(inductors)])


def switches() -> str:
    """A digest of all of it but Inductor's settings, which torch's own key holds.

    >>> before = switches()
    >>> with config.patch(emulate_precision_casts=not config.emulate_precision_casts):
    ...     switches() == before
    True
    >>> with torch.backends.mkldnn.flags(enabled=False):
    ...     switches() == before
    False
    """
    return _digest([repr(Numerics.here()), *(repr(ask()) for ask in _ASKED)])


def _decides(name: str) -> bool:
    """Whether one of Inductor's settings has a say in what becomes of a graph."""
    return name not in _OF_COMPILING and not name.endswith(_FOLDER)


def _digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


_OF_COMPILING = frozenset({"compile_threads", "worker_start_method"})
"""Inductor's settings that say how it compiles, and not what: processes beside each other have fewer threads each."""
_FOLDER = ".cutlass_dir"
"""Settings that say where CUTLASS lies, which torch's own key leaves out, too: where nobody has set one, it is the folder in which a process
has imported Inductor, and what was compiled in another folder would never be found.
"""
_ASKED: tuple[Callable[[], Any], ...] = (
    torch.get_num_threads,
    torch.get_default_dtype,
    torch.are_deterministic_algorithms_enabled,
    # what attention asks while it is traced, and convolutions, and einsum: torch's own key does not hold these
    torch.backends.cuda.flash_sdp_enabled,
    torch.backends.cuda.mem_efficient_sdp_enabled,
    torch.backends.cuda.math_sdp_enabled,
    torch.backends.cuda.cudnn_sdp_enabled,
    torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed,
    torch._C._get_sdp_priority_order,
    lambda: torch.backends.cudnn.enabled,
    lambda: torch.backends.mkldnn.enabled,
    lambda: (torch.backends.opt_einsum.is_available(), torch.backends.opt_einsum.enabled),
    lambda: torch.backends.opt_einsum.strategy,
    torch.backends.mha.get_fastpath_enabled,
)
