"""Attention as a kind of rewrite: its kernel may be chosen, its mask dropped or laid out, and what it is given left unrepeated."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from torch.fx import GraphModule, Node

from fuseplan.rewrites.attention.beside_sinks import attention_beside_sinks
from fuseplan.rewrites.attention.by_name import kernel_calls
from fuseplan.rewrites.attention.calls import attention_calls
from fuseplan.rewrites.attention.kernels import (
    FUNCTIONS,
    attention_flex,
    attention_in_window,
    attention_packed,
    attention_split,
)
from fuseplan.rewrites.attention.layouts import LAYOUTS, mask_once, without_repeats
from fuseplan.rewrites.attention.rewrite import rewrite_sites
from fuseplan.rewrites.attention.site import AttentionSite
from fuseplan.rewrites.attention.switches import forbidden, not_deterministic
from fuseplan.rewrites.attention.ways import AttentionWay
from fuseplan.rewrites.base import Draft, Kind, likeness
from fuseplan.rewrites.order import in_order

_MEANING = "1"
"""Another one, should these functions ever do something else: torch counts it in."""
_OURS = (
    *FUNCTIONS.values(),
    attention_in_window,
    attention_flex,
    attention_packed,
    attention_split,
    attention_beside_sinks,
    *LAYOUTS.values(),
    mask_once,
    without_repeats,
    in_order,
)
S = TypeVar("S", bound=AttentionSite)


class AttentionKind(Kind[S]):
    """Sites of attention in one spelling: what is said here holds for each."""

    functions: Mapping[str, str] = {f"{one.__module__}.{one.__name__}": _MEANING for one in _OURS}

    @abstractmethod
    def find(self, gm: GraphModule) -> Sequence[S]:
        """All of it in a graph, in order."""

    def nodes(self, site: S) -> Collection[Node]:
        """What computes it."""
        return site.matched

    def ways(self, site: S) -> Sequence[str]:
        """A kernel for each, with the mask as it is, without it, or laid out, and with other keys and values."""
        return site.offered

    def refusal(self, site: S, way: str) -> str | None:
        """Why a way is not legal here; None if it is."""
        return site.refusal(way)

    def preferred(self, site: S) -> str | None:
        """With keys that are split, unless the caller has switched off what that is; without its mask where that is proven to change
        nothing, else with one that a fused kernel takes; by the name of a kernel where PyTorch would choose one that is not
        deterministic, and the caller asks for that.
        """
        if site.preferred != site.usual and self.forbidden(site, site.preferred) is None:
            return site.preferred
        first = site.usual
        if not_deterministic(site, AttentionWay.parse(first)) is None:
            return first
        return next((way for way in site.by_name if self.forbidden(site, way) is None), None)

    def rivals(self, site: S) -> Mapping[str, str]:
        """The same under each kernel, and what else may stand beside the kernel that PyTorch chooses."""
        return site.rivals

    def forbidden(self, site: S, way: str) -> str | None:
        """Where the caller, or the program, has switched its kernel off, or asks for what it cannot do."""
        return forbidden(site, AttentionWay.parse(way))

    def group(self, site: S) -> str:
        """What it is given, and what is proven of its mask."""
        return f"{likeness(self.nodes(site))} {site.proof.verdict} {site.proof.window}"

    def changes(self, site: S, way: str) -> Collection[Node]:
        """What computes it, and what has built that which goes."""
        return {*self.nodes(site), *site.bypassed(way)}

    def apply(self, draft: Draft, chosen: Mapping[S, str]) -> None:
        """Call the chosen kernels, and leave out what nobody reads any more."""
        rewrite_sites(draft, chosen)

    def about(self, site: S) -> str:
        """What is proven of its mask."""
        verdict = {"causal": "mask proven causal", "all": "mask proven to hide nothing"}.get(site.proof.verdict or "")
        if site.fakes["attn_mask"] is None:
            return site.proof.reason
        return f"{verdict} {site.proof.reason}" if verdict else f"nothing proven of its mask, since {site.proof.reason}"


class Attention(AttentionKind[AttentionSite]):
    """Calls of scaled_dot_product_attention; those of a kernel by its own name are told of, and left alone."""

    noun = "attention call"

    def find(self, gm: GraphModule) -> Sequence[AttentionSite]:
        """Its calls in a graph, in order, and then those of kernels."""
        calls = attention_calls(gm)
        return [*calls, *kernel_calls(gm, len(calls))]
