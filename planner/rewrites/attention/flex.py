"""What flex_attention takes, told beforehand: it compiles at the first call, where an error would come too late."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor

from fuseplan.capture.fx.flex import DTYPES, Sight
from fuseplan.rewrites.attention.device import cast, plain

_DEVICES = ("cpu", "cuda")
_SMALLEST_HEAD = 16
"""Of a GPU's matrix units."""


def no_flex(arguments: Mapping[str, Any], sight: Callable[[], Sight]) -> str | None:
    """Why flex_attention cannot compute this by skipping what its mask hides; None if it can.

    UnprovenError where an argument is no plain tensor.
    """
    query, key, value = (cast(plain(arguments[name])) for name in ("query", "key", "value"))
    return (
        _no_such_shapes(query, key, value, shared=arguments["enable_gqa"] is not False)
        or _no_such_numbers(arguments, (query, key, value))
        or _no_compiler(query.device.type)
        or (None if sight().hides_blocks() else "its mask hides no block of 128 queries and keys as a whole")
    )


def _no_such_shapes(query: FakeTensor, key: FakeTensor, value: FakeTensor, *, shared: bool) -> str | None:
    tensors = (query, key, value)
    if not all(one.dim() == 4 for one in tensors):
        return "flex attention takes tensors of four dimensions"
    if not all(type(size) is int for one in tensors for size in (*one.shape, *one.stride())):
        return "flex attention is compiled for sizes that are known beforehand"
    if not query.shape[0] == key.shape[0] == value.shape[0] or key.shape[1:3] != value.shape[1:3]:
        return "its queries, keys and values are not as many"
    heads, groups = query.shape[1], key.shape[1]
    if heads != groups and not (shared and groups and heads % groups == 0):
        return "its queries, keys and values are not as many"
    if query.shape[-1] != key.shape[-1] or 0 in (*query.shape, *value.shape):
        return "flex attention does not take these sizes"
    if query.device.type == "cuda" and min(query.shape[-1], value.shape[-1]) < _SMALLEST_HEAD:
        return f"flex attention takes no heads of less than {_SMALLEST_HEAD} features on cuda"
    return None


def _no_such_numbers(arguments: Mapping[str, Any], tensors: tuple[FakeTensor, ...]) -> str | None:
    query = tensors[0]
    device = query.device.type
    if device not in _DEVICES or any(one.device != query.device for one in tensors):
        return f"flex attention knows no {device}" if device not in _DEVICES else "its tensors are on several devices"
    if query.dtype not in DTYPES or any(one.dtype != query.dtype for one in tensors):
        found = ", ".join(dict.fromkeys(str(one.dtype).removeprefix("torch.") for one in tensors))
        return f"flex attention does not compute in {found}"
    if arguments["dropout_p"] != 0:
        return "it has dropout, which flex attention has not"
    if not isinstance(arguments["scale"], float | int | None):
        return "its scale is known at run time only"
    if device == "cpu" and any(one.requires_grad for one in tensors):
        return "flex attention has no backward on cpu"
    return None


def _no_compiler(device: str) -> str | None:
    from fuseplan.executors.inductor import toolchain  # torch._inductor takes its time to import

    return toolchain.missing(device) or (toolchain.missing_for_flex() if device == "cpu" else None)
