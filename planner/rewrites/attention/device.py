"""Which attention kernels take which arguments, by the device's own rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._C import DispatchKey
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.attention import sdpa_kernel

from fuseplan.rewrites.attention.kernels import BACKENDS

_ASKED = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def no_kernel(kernel: str, arguments: Mapping[str, Any]) -> str | None:
    """Why a kernel cannot run with these arguments, fake tensors and plain values by parameter; None if it can."""
    query = arguments["query"]
    if not isinstance(query, FakeTensor):
        return "an argument is no plain tensor"
    device = query.device.type
    choose = torch.ops.aten._fused_sdp_choice.default
    key = getattr(DispatchKey, device.upper(), None)
    if key is None or not choose.has_kernel_for_dispatch_key(key):
        return None if kernel == "math" else f"{device} has no attention kernels to choose from here"
    if not isinstance(arguments["dropout_p"], float | int) or not isinstance(arguments["is_causal"], bool):
        return "its dropout, or whether it is causal, is known at run time only"
    values = [_cast(arguments[name]) for name in _ASKED]
    try:
        with query.fake_mode, sdpa_kernel(BACKENDS[kernel]):
            chosen = choose._op_dk(key, *values, enable_gqa=arguments["enable_gqa"])
    except RuntimeError as error:
        return str(error).strip().splitlines()[0]
    return None if chosen == BACKENDS[kernel].value else f"{kernel} does not take these sizes and types on {device}"


def _cast(value: Any) -> Any:
    """An argument as autocast hands it on."""
    if (
        not isinstance(value, FakeTensor)
        or not value.is_floating_point()
        or not torch.is_autocast_enabled(value.device.type)
    ):
        return value
    with value.fake_mode:
        return value.to(torch.get_autocast_dtype(value.device.type))
