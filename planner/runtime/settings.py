"""What is set in this process and decides what becomes of a graph, beside the graph itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._functorch import config as functorch
from torch._inductor import config

from fuseplan.capture.dynamo.numerics import Numerics
from fuseplan.rewrites.attention.device import switched_off


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


def set_otherwise(has_attention: bool) -> list[str]:
    """What is set otherwise than torch has it, so that the graphs of a program may be others, in words; of kernels of attention only
    where there is some.

    >>> set_otherwise(has_attention=True)
    []
    >>> with functorch.patch(activation_memory_budget=0.5), torch.backends.mkldnn.flags(enabled=False):
    ...     set_otherwise(has_attention=True)
    ['torch.backends.mkldnn is switched off', 'torch._functorch.config.activation_memory_budget is set']
    """
    kernels = [kernel for kernel in switched_off() if kernel in ("flash", "efficient") and has_attention]
    attention = [f"attention by {' and '.join(kernels)} is switched off"] if kernels else []
    asked = ["cudnn", "mkldnn", *(["opt_einsum"] if torch.backends.opt_einsum.is_available() else [])]
    off = [name for name in asked if not getattr(torch.backends, name).enabled]
    usual: Mapping[str, Any] = {name: entry.default for name, entry in getattr(functorch, "_config", {}).items()}
    saving = [name for name in _OF_SAVING if name in usual and getattr(functorch, name) != usual[name]]
    backends = [f"torch.backends.{name} is switched off" for name in off]
    backends += ["torch._inductor.config.fallback_random is set"] if config.fallback_random else []
    return [*attention, *backends, *(f"torch._functorch.config.{name} is set" for name in saving)]


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
_OF_SAVING = (
    "activation_memory_budget", "activation_memory_budget_runtime_estimator", "activation_memory_budget_solver",
    "aggressive_recomputation", "ban_recompute_materialized_backward", "ban_recompute_not_in_allowlist", "ban_recompute_reductions",
    "ban_recompute_used_far_apart", "ban_recompute_long_fusible_chains", "recompute_views", "treat_parameters_as_free_to_save",
    "max_dist_from_bw", "cse", "view_replay_for_aliased_outputs",
)  # fmt: skip
"""Settings of AOTAutograd's by which other things are kept for the backward."""
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
