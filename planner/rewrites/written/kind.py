"""Attention that is written out, as a kind of rewrite: it becomes one call, with all ways of called attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch.fx import GraphModule

from fuseplan.rewrites.attention.kind import AttentionKind
from fuseplan.rewrites.written.site import WrittenAttention, find_written


class WrittenOut(AttentionKind[WrittenAttention]):
    """Softmaxes between two matmuls."""

    noun = "written-out attention"

    def find(self, gm: GraphModule) -> Sequence[WrittenAttention]:
        """All of it in a graph, in order."""
        return find_written(gm)[0]

    def missed(self, gm: GraphModule) -> Mapping[str, str]:
        """Softmaxes that are not between two matmuls, or not in a way that one call has."""
        return {one.softmax.name: one.reason for one in find_written(gm)[1]}

    def about(self, site: WrittenAttention) -> str:
        """Where it is, how much is added to its scores or masks them, and what is proven of that."""
        match = site.written.match
        return f"around {match.softmax.name}, with {len(match.terms)} biases and masks; {super().about(site)}"
