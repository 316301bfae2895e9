"""Which attention kernels take which arguments, by the device's own rules, and which the program lets run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch._C import DispatchKey
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn.attention import sdpa_kernel

from fuseplan.rewrites.attention.kernels import BACKENDS
from fuseplan.segment.masks import UnprovenError

_ASKED = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_CHOOSE = torch.ops.aten._fused_sdp_choice.default
ENABLED: Mapping[str, Callable[[], bool]] = {
    "flash": torch.backends.cuda.flash_sdp_enabled,
    "cudnn": torch.backends.cuda.cudnn_sdp_enabled,
    "efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
    "math": torch.backends.cuda.math_sdp_enabled,
}

OWN: Mapping[str, str] = {"flex": "flex attention", "split": "a kernel that splits keys"}
"""Kernels that PyTorch does not choose from, and what people call them."""


def plain(value: Any) -> FakeTensor:
    """A tensor of which everything is known but the elements; UnprovenError where it is none, or one of a subclass."""
    if not isinstance(value, FakeTensor):
        raise UnprovenError("an argument is no plain tensor")
    return value


def no_kernel(kernel: str, arguments: Mapping[str, Any]) -> str | None:
    """Why a kernel cannot run with these arguments, fake tensors and plain values by parameter; None if it can."""
    try:
        query, mask = plain(arguments["query"]), arguments["attn_mask"]
        if kernel == "math" or takes(kernel, arguments):
            return _no_such_mask(kernel, query, mask)
        learned = isinstance(mask, FakeTensor) and mask.requires_grad
        if learned and takes(kernel, {**arguments, "attn_mask": mask.detach()}):
            return _NO_GRADIENT.format(kernel)
    except UnprovenError as unproven:
        return str(unproven)
    return f"{kernel} does not take these sizes and types on {query.device.type}"


_NO_GRADIENT = "{} gives no gradient to a mask"


def _no_such_mask(kernel: str, query: FakeTensor, mask: Any) -> str | None:
    """Why a kernel would fail with a mask, though by PyTorch's rules it takes it."""
    if not isinstance(mask, FakeTensor) or query.device.type != "cuda":
        return None
    if kernel == "cudnn" and mask.requires_grad:
        return _NO_GRADIENT.format(kernel)
    if kernel == "efficient" and mask.dtype not in (torch.bool, cast(query).dtype) and cast(mask) is mask:
        return f"efficient adds no mask of {mask.dtype} to queries of {query.dtype}"
    return None


def no_window(arguments: Mapping[str, Any]) -> str | None:
    """Why flash attention cannot skip what lies outside of a window, though it takes all else; None if it can."""
    query = plain(arguments["query"])
    if query.device.type != "cuda":
        return f"flash attention knows no windows on {query.device.type}"
    if arguments["dropout_p"] != 0:
        return "it has dropout, of which flash attention by itself draws other numbers"
    if torch.is_autocast_enabled(query.device.type):
        return "autocast does not reach flash attention by itself"
    if not statically_known_true(query.shape[-1] % 8 == 0):
        return "flash attention by itself takes no heads whose size is no multiple of 8"
    return None


def takes(kernel: str, arguments: Mapping[str, Any]) -> bool:
    """Whether PyTorch chooses a kernel where it need not. Where nothing is left to choose, it prints why."""
    order = torch._C._get_sdp_priority_order()
    last = order.index(BACKENDS["math"].value) < order.index(BACKENDS[kernel].value)
    return chosen_kernel(arguments, (kernel,) if last else (kernel, "math")) == kernel


def chosen_kernel(arguments: Mapping[str, Any], among: Collection[str]) -> str | None:
    """The kernel that PyTorch chooses among some for these arguments; None where none of them takes them.

    UnprovenError says why that cannot be told here.
    """
    query = plain(arguments["query"])
    device = query.device.type
    key = getattr(DispatchKey, device.upper(), None)
    if key is None or not _CHOOSE.has_kernel_for_dispatch_key(key):
        raise UnprovenError(f"{device} has no attention kernels to choose from here")
    if not isinstance(arguments["dropout_p"], float | int) or not isinstance(arguments["is_causal"], bool):
        raise UnprovenError("its dropout, or whether it is causal, is known at run time only")
    try:
        with query.fake_mode, sdpa_kernel([BACKENDS[one] for one in among]):
            number = choice_of_device(key, *(cast(arguments[name]) for name in (*_ASKED, "enable_gqa")))
    except RuntimeError:
        return None
    return next((name for name, backend in BACKENDS.items() if backend.value == number), None)


def choice_of_device(key: DispatchKey, *given: Any) -> int:
    """The kernel that a device's own rules choose, as PyTorch numbers them. The operator by itself asks those of no device."""
    return _CHOOSE._op_dk(key, *given[:-1], enable_gqa=given[-1])  # type: ignore[no-any-return]


def cast(value: Any) -> Any:
    """An argument as autocast hands it on."""
    if (
        not isinstance(value, FakeTensor)
        or not value.is_floating_point()
        or not torch.is_autocast_enabled(value.device.type)
    ):
        return value
    with value.fake_mode:
        return value.to(torch.get_autocast_dtype(value.device.type))


def switched_off() -> tuple[str, ...]:
    """The kernels that may not run in this process as it is set now.

    >>> with sdpa_kernel(BACKENDS["math"]):
    ...     switched_off()
    ('flash', 'cudnn', 'efficient')
    """
    return tuple(name for name, enabled in ENABLED.items() if not enabled())


def switched_on(result: Node) -> tuple[str, ...]:
    """The kernels that may run at a node: the program, or who calls it, may have switched some off."""
    off = switched_off()
    on = tuple(name for name in ENABLED if name not in off)
    for node in result.graph.nodes:
        if node is result:
            break
        if node.target is torch.nn.attention._sdpa_kernel:
            given = node.args[0]
            on = tuple(name for name, backend in BACKENDS.items() if backend.name in map(_named, given))
    return on


def _named(backend: Any) -> str:
    """Dynamo writes them as calls that look for them by their names."""
    return str(backend.args[0] if isinstance(backend, Node) else backend.name)
