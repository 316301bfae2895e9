"""Attention as a kind of rewrite: its kernel may be chosen, its mask dropped or laid out, and what it is given left unrepeated."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torch.fx import GraphModule, Node

from fuseplan.plan import ATTENTION_WAYS
from fuseplan.rewrites.attention.calls import AttentionCall, attention_calls
from fuseplan.rewrites.attention.kernels import FUNCTIONS
from fuseplan.rewrites.attention.layouts import LAYOUTS, without_repeats
from fuseplan.rewrites.attention.mask_source import MaskSource
from fuseplan.rewrites.attention.rewrite import rewrite_sites
from fuseplan.rewrites.base import Draft, Kind, likeness

_MEANING = "1"
"""Another one, should these functions ever do something else: torch counts it in."""
_RIVALS = ("cudnn", "flash", "efficient")
"""Kernels that are worth a race against the one that PyTorch chooses."""


class Attention(Kind[AttentionCall]):
    """Calls of scaled_dot_product_attention."""

    noun = "attention call"
    functions: Mapping[str, str] = {
        f"{one.__module__}.{one.__name__}": _MEANING
        for one in (*FUNCTIONS.values(), *LAYOUTS.values(), without_repeats)
    }

    def find(self, gm: GraphModule) -> Sequence[AttentionCall]:
        """Its calls in a graph, in order."""
        return attention_calls(gm)

    def nodes(self, site: AttentionCall) -> Collection[Node]:
        """The call."""
        return site.matched

    def ways(self, site: AttentionCall) -> Sequence[str]:
        """A kernel for each, with the mask as it is, without it, or laid out, and with other keys and values."""
        return ATTENTION_WAYS

    def refusal(self, site: AttentionCall, way: str) -> str | None:
        """Why a way is not legal here; None if it is."""
        return site.refusal(way)

    def preferred(self, site: AttentionCall) -> str | None:
        """Without its mask where that is proven to change nothing."""
        return site.preferred

    def rivals(self, site: AttentionCall) -> Mapping[str, str]:
        """The same under each kernel."""
        _, plus, ending = site.preferred.partition("+")
        return {kernel: f"{kernel}{plus}{ending}" for kernel in _RIVALS}

    def group(self, site: AttentionCall) -> str:
        """What it is given, and what is proven of its mask."""
        return f"{likeness(self.nodes(site))} {site.proof.verdict}"

    def changes(self, site: AttentionCall, way: str) -> Collection[Node]:
        """The call, and where its mask goes, what has built it."""
        dropped = site.masked_by if "+" in way else ()
        return {*self.nodes(site), *(node for mask in dropped for node in MaskSource(mask).nodes)}

    def apply(self, draft: Draft, chosen: Mapping[AttentionCall, str]) -> None:
        """Call the chosen kernels, and leave out what built the masks that go."""
        rewrite_sites(draft, chosen)

    def about(self, site: AttentionCall) -> str:
        """What is proven of its mask."""
        verdict = {"causal": "mask proven causal", "all": "mask proven to hide nothing"}.get(site.proof.verdict or "")
        if site.arguments["attn_mask"] is None:
            return site.proof.reason
        return f"{verdict} {site.proof.reason}" if verdict else f"nothing proven of its mask, since {site.proof.reason}"
