"""What attention of a few queries over many keys, as in a step of decoding, must be for ways of its own: keys that are split between
programs, and the heads of a group as rows of one query.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fuseplan.capture.fx.own_kernels import DTYPES, no_kernels
from fuseplan.capture.fx.split_keys import HEADS, MOST_ROWS, pack_mask, pack_query
from fuseplan.rewrites.attention.device import cast, plain
from fuseplan.rewrites.attention.inputs import is_narrower
from fuseplan.segment.masks import UnprovenError

MOST_QUERIES = 16
"""Of more, there are programs enough without keys that are split."""
KEYS_EACH = 4
"""So many keys for each query are worth a race: with fewer, there is little to split."""


def no_split(arguments: Mapping[str, Any]) -> str | None:
    """Why kernels that split keys cannot run with these arguments, fake tensors and plain values by parameter; None if they can.

    UnprovenError where an argument is no plain tensor.
    """
    query, key, value = (cast(plain(arguments[name])) for name in ("query", "key", "value"))
    mask = None if arguments["attn_mask"] is None else plain(arguments["attn_mask"])
    return (
        _no_such_shapes(query, key, value, shared=arguments["enable_gqa"] is not False)
        or _no_such_numbers(arguments, [one for one in (query, key, value, mask) if one is not None])
        or (None if mask is None else _no_such_mask(mask, query, key))
        or (_no_kernel(query, value) if query.device.type == "cuda" else None)
    )


def has_many_keys(query: FakeTensor, key: FakeTensor) -> bool:
    """Whether keys that are split are worth a race: there are many for each query, or as many as come."""
    keys = key.shape[2]
    return type(keys) is not int or bool(keys >= KEYS_EACH * query.shape[2])


def _no_such_shapes(query: FakeTensor, key: FakeTensor, value: FakeTensor, *, shared: bool) -> str | None:
    if not query.dim() == key.dim() == value.dim() == 4:
        return "its tensors have not four dimensions"
    queries, heads, groups = query.shape[2], query.shape[1], key.shape[1]
    if not all(type(size) is int for size in (queries, heads, groups, query.shape[3], value.shape[3])):
        return "how many queries and heads it has is known at run time only"
    if not 1 <= queries <= MOST_QUERIES:
        return f"it has {queries} queries, of which {MOST_QUERIES} are few enough to split keys"
    pairs = zip(
        (*key.shape[:2], key.shape[3], query.shape[0]), (*value.shape[:2], query.shape[3], key.shape[0]), strict=True
    )
    if not all(statically_known_true(one == other) for one, other in pairs):
        return "its queries, keys and values are not as many"
    if heads != groups and not (shared and groups and heads % groups == 0):
        return "its queries, keys and values are not as many"
    rows = heads // groups * queries if groups else 0
    return None if 1 <= rows <= MOST_ROWS else f"{rows} queries share keys, of which {MOST_ROWS} can be together"


def _no_such_numbers(arguments: Mapping[str, Any], tensors: list[FakeTensor]) -> str | None:
    query, *others = tensors
    if any(one.device != query.device for one in others):
        return "its tensors are on several devices"
    if any(one.dtype != query.dtype for one in tensors[:3]) or not query.is_floating_point():
        return "its queries, keys and values have other dtypes"
    if any(one.requires_grad for one in tensors):
        return "it takes a gradient, which kernels that split keys do not give"
    if arguments["is_causal"] is not False:
        return "it is causal, where kernels that split keys take a mask"
    if arguments["dropout_p"] != 0:
        return "it has dropout, which kernels that split keys have not"
    return None if isinstance(arguments["scale"], float | int | None) else "its scale is known at run time only"


def _no_such_mask(mask: FakeTensor, query: FakeTensor, key: FakeTensor) -> str | None:
    if mask.dtype != torch.bool and not mask.is_floating_point():
        return "its mask is neither booleans nor floats"
    keys, shown = key.shape[-2], mask.shape[-1]
    other = type(keys) is type(shown) is int and shown not in (
        1,
        keys,
    )  # else it is as many, or the operator fails as attention does
    fits = mask.dim() >= 2 and not other and is_narrower(mask.shape[:-1], query.shape[:-1])
    return None if fits else "its mask may be larger than the scores"


def _no_kernel(query: FakeTensor, value: FakeTensor) -> str | None:
    if query.dtype not in DTYPES:
        return f"kernels that split keys do not compute in {str(query.dtype).removeprefix('torch.')}"
    if query.shape[-1] not in HEADS or value.shape[-1] not in HEADS:
        return f"kernels that split keys take heads of {HEADS.start} to {HEADS.stop - 1} features"
    return no_kernels(query.device)


def packed_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What attention is given where the heads of a group are rows of one query; UnprovenError where they cannot be."""
    query, key, mask = plain(arguments["query"]), plain(arguments["key"]), arguments["attn_mask"]
    if query.dim() != 4 or key.dim() != 4 or not statically_known_true(query.shape[2] == 1):
        raise UnprovenError("it has not one query of each head")
    heads, groups = query.shape[1], key.shape[1]
    if type(heads) is not int or type(groups) is not int:
        raise UnprovenError("how many heads it has is known at run time only")
    if not 0 < groups < heads or heads % groups:
        raise UnprovenError("its heads share no keys and values")
    if arguments["is_causal"] is not False or arguments["dropout_p"] != 0:
        raise UnprovenError("it is causal, or has dropout: with other rows it would hide other keys, or drop others")
    if isinstance(mask, FakeTensor) and not is_narrower(mask.shape[:-1], query.shape[:-1]):
        raise UnprovenError("its mask may be larger than the scores")
    with query.fake_mode:
        packed = None if mask is None else pack_mask(plain(mask), groups, heads, 1)
        return {**arguments, "query": pack_query(query, groups), "attn_mask": packed}
