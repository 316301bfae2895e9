"""Attention as a kind of rewrite: the mask of a call may go where it is proven to change nothing, and its kernel may be chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch.fx import GraphModule

from fuseplan.plan import ATTENTION_WAYS, Plan, Rewrite
from fuseplan.rewrites.attention.calls import AttentionCall, attention_calls
from fuseplan.rewrites.attention.kernels import FUNCTIONS
from fuseplan.rewrites.attention.rewrite import rewrite_sites
from fuseplan.rewrites.base import Draft

_MEANING = "1"
"""Another one, should these functions ever do something else: torch counts it in."""


class Attention:
    """Calls of scaled_dot_product_attention."""

    noun = "attention call"
    functions: Mapping[str, str] = {f"{one.__module__}.{one.__name__}": _MEANING for one in FUNCTIONS.values()}

    def find(self, gm: GraphModule) -> Sequence[AttentionCall]:
        """Its calls in a graph, in order."""
        return attention_calls(gm)

    def ways(self, site: AttentionCall) -> Sequence[str]:
        """A kernel for each, with and without the mask."""
        return ATTENTION_WAYS

    def refusal(self, site: AttentionCall, way: str) -> str | None:
        """Why a way is not legal here; None if it is."""
        return site.refusal(way)

    def apply(self, draft: Draft, chosen: Mapping[AttentionCall, str]) -> None:
        """Call the chosen kernels, and leave out what built the masks that go."""
        rewrite_sites(draft, chosen)

    def describe(self, site: AttentionCall, way: str | None) -> str:
        """What is proven of its mask, and which variant it runs as."""
        verdict = {"causal": "mask proven causal", "all": "mask proven to hide nothing"}.get(site.proof.verdict or "")
        found = (
            f"{verdict} {site.proof.reason}" if verdict else f"nothing proven of its mask, since {site.proof.reason}"
        )
        if site.arguments["attn_mask"] is None:
            found = site.proof.reason
        return f"attention call {site.number}: {found}; " + (f"variant {way}" if way else "left as it is")


def with_proven_attention(plan: Plan, gm: GraphModule) -> Plan:
    """Return the plan with the proven variant of each attention call; choices that it makes itself stand."""
    taken = {one.site for one in plan.rewrites if one.kind == "attention"}
    calls = [call for call in attention_calls(gm) if call.number not in taken]
    found = [Rewrite("attention", call.number, call.preferred, call.digest) for call in calls]
    return replace(plan, rewrites=tuple(sorted((*plan.rewrites, *found), key=lambda one: (one.kind, one.site))))
