"""Which ways of attention have room for sinks beside its scores (beside_sinks.py), and what they are given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch.fx.experimental.symbolic_shapes import statically_known_true

from fuseplan.rewrites.attention.device import plain
from fuseplan.rewrites.attention.layouts import ALIGNMENT
from fuseplan.rewrites.attention.ways import AttentionWay
from fuseplan.segment.masks import UnprovenError

if TYPE_CHECKING:
    from fuseplan.rewrites.attention.site import AttentionSite

_GIVEN = ("query", "key", "value", "attn_mask", "is_causal", "scale", "sinks")
_KERNELS = ("auto", "flash", "cudnn", "efficient")


def no_sinks(way: AttentionWay) -> str | None:
    """Why a way has no room for what stands beside the scores; None if it has."""
    if way.kernel not in _KERNELS or way.mask == "documents":
        return f"{way.kernel} tells no logarithms of sums, by which something may stand beside the scores"
    if way.grouped or way.packed:
        return "something stands beside its scores, and kernels that tell their sums are given all heads"
    return None


def no_kernel_beside_sinks(site: AttentionSite) -> str | None:
    """Why the usual way has no kernel that tells the logarithms of its sums; None if it has one."""
    mask = site.fakes["attn_mask"]
    if mask is not None and mask.requires_grad:
        return "something stands beside its scores, to which a bias that takes a gradient is added"
    try:
        kernel, query = site.kernel_in(AttentionWay.parse(site.usual)), plain(site.fakes["query"])
    except UnprovenError as unproven:
        return str(unproven)
    if kernel not in _KERNELS:
        return "something stands beside its scores, and no fused kernel takes them"
    if query.device.type == "cuda" and not statically_known_true(query.shape[-1] % ALIGNMENT == 0):
        return f"something stands beside its scores, and its heads are of no multiple of {ALIGNMENT} numbers"
    return None


def arguments_beside_sinks(site: AttentionSite, way: AttentionWay, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What `attention_beside_sinks` is given in a way."""
    found = {"kernel": site.kernel_in(way), **{name: arguments[name] for name in _GIVEN}}
    if way.mask != "window":
        return found
    sight = site.sight(way)
    return found | {name: -1 if end is None else end for name, end in (("left", sight.left), ("right", sight.right))}
