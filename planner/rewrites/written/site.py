"""A site of attention that is written out, and the finder of all in a graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import map_arg

from fuseplan.rewrites.attention.mask_source import MaskSource
from fuseplan.rewrites.attention.sinks import no_kernel_beside_sinks, no_sinks
from fuseplan.rewrites.attention.site import AttentionSite
from fuseplan.rewrites.attention.ways import AttentionWay
from fuseplan.rewrites.base import Draft, digest_of
from fuseplan.rewrites.special import transformed
from fuseplan.rewrites.writes import may_write
from fuseplan.rewrites.written.biases import biases_of
from fuseplan.rewrites.written.hidden import hiding
from fuseplan.rewrites.written.match import is_written_later, match_of
from fuseplan.rewrites.written.missed import MissedError, MissedSite, noted
from fuseplan.rewrites.written.softmax import has_softmaxes, softmax_at, softmaxes
from fuseplan.rewrites.written.versions import Versions, fake_of
from fuseplan.rewrites.written.writer import Writer
from fuseplan.rewrites.written.writing import arguments, put_back
from fuseplan.rewrites.written.written import Written, check_gradients, dtype_of, home_of, writer_of
from fuseplan.segment.masks import MaskProof, UnprovenError

_BIASED = MaskProof(None, "it adds a bias to the scores")


@dataclass(frozen=True, eq=False)
class WrittenAttention(AttentionSite):
    """Attention that is written out: all between the matmul of queries and keys and the one with the values."""

    written: Written = field(repr=False)
    known: Mapping[str, Any] = field(repr=False)
    as_they_stand: Mapping[str, Node] = field(repr=False)
    is_written_later: bool = False
    """Something that it keeps for its backward is written to behind it."""

    @property
    def fakes(self) -> Mapping[str, Any]:
        """What a call of attention would be given here."""
        return self.known

    @property
    def given(self) -> Mapping[str, Node]:
        """Those of them that are nodes of the original as they stand."""
        return self.as_they_stand

    @property
    def matched(self) -> Collection[Node]:
        """All that is written out."""
        return self.written.match.nodes

    @property
    def kernel_as_written(self) -> str | None:
        """Two matmuls and a softmax."""
        return "math"

    def write(self, draft: Draft) -> dict[str, Any]:
        """The arguments of a call, put in before the result; what its readers need of it is put in behind."""
        writer = writer_of(self.written, draft)
        given = arguments(self.written, writer)
        put_back(self.written, writer, given)
        for node in reversed(self.written.match.nodes):
            copied = draft.copies[node]
            if may_write(node) and not copied.users:  # written for its effect alone, which was on the scores
                draft.graph.erase_node(copied)
        return given

    def refusal(self, way: str) -> str | None:
        """Why a way is not legal here; None if it is."""
        if self.written.loses_rows and not way.startswith("math"):
            return "a row that its bias may hide as a whole would have other gradients under a fused kernel"
        if self.written.match.sinks is not None and (reason := no_sinks(AttentionWay.parse(way))):
            return reason
        if self.is_written_later and not way.startswith("math"):
            return "something that it reads is written to later, and a fused kernel keeps it for the backward"
        return super().refusal(way)


def find_written(gm: GraphModule) -> tuple[list[WrittenAttention], list[MissedSite]]:
    """All attention that is written out in a graph, and why each other softmax is none."""
    found: list[WrittenAttention] = []
    missed: list[MissedSite] = []
    if not has_softmaxes(gm.graph):
        return found, missed
    versions, scratch = Versions(gm.graph), Draft(gm)
    for softmax in softmaxes(versions):
        reasons: list[MissedError] = []
        with noted(reasons):
            site = _site(versions, softmax, scratch, len(found))
            if any(set(site.matched) & set(other.matched) for other in found):
                raise MissedError("it shares a matmul with other attention")
            found.append(site)
        missed += [MissedSite(softmax, str(reason)) for reason in reasons]
    return found, missed


def _site(versions: Versions, softmax: Node, scratch: Draft, number: int) -> WrittenAttention:
    match = match_of(versions, softmax_at(versions, softmax))
    trains = fake_of(match.result).requires_grad
    written = Written(match, biases_of(versions, match), home_of(match), dtype_of(match), trains=trains)
    check_gradients(written)
    written, proof = _proven(written, writer_of(written, scratch), scratch.copies[match.result])
    if match.sinks is not None:
        written = _beside_sinks(written, softmax)
    if written.loses_rows and any(bias.low_number is not None for bias in written.biases):
        raise MissedError(
            "a row may be hidden by what is filled in and what is added, which take gradients of their own"
        )
    given = arguments(written, writer_of(written, scratch))
    known = {name: map_arg(value, lambda node: node.meta["example_value"]) for name, value in given.items()}
    digest = digest_of("written-attention", {versions.place[node]: node for node in match.nodes})
    originals = {copied: node for node, copied in scratch.copies.items()}
    as_they_stand = {name: originals[node] for name, node in given.items() if node in originals}
    later = trains and is_written_later(versions, match)
    site = WrittenAttention(number, digest, proof, match.result, written, known, as_they_stand, later)
    if match.sinks is not None and (reason := no_kernel_beside_sinks(site) or site.refusal(site.usual)):
        raise MissedError(reason)
    return site


def _beside_sinks(written: Written, softmax: Node) -> Written:
    """The same where something stands beside the scores, and takes the whole of a row that is hidden: it becomes zeros by itself."""
    if softmax in transformed(softmax.graph):
        raise MissedError("something stands beside its scores, within a transformation such as vmap")
    if written.match.dropout:
        raise MissedError("something stands beside its scores, and its weights are dropped")
    return replace(written, guarded=written.guarded and written.may_be_infinite)


def _proven(written: Written, writer: Writer, result: Node) -> tuple[Written, MaskProof]:
    """What is proven of all that hides scores, and the match without what that makes needless."""
    hidden = hiding(written, writer)
    if hidden is None:
        nothing = _BIASED if written.small else MaskProof("all", "no mask is given")
        return replace(written, hides=False, guarded=False), nothing
    try:
        proof = MaskSource(hidden, until=result).proof()
    except UnprovenError as unproven:
        proof = MaskProof(None, str(unproven))
    sizes = zip(fake_of(hidden).shape[-2:], (written.match.row.size, written.match.column.size), strict=True)
    if proof.verdict == "causal" and not all(statically_known_true(ours == theirs) for ours, theirs in sizes):
        proof = MaskProof(None, "its rows and columns are not the queries and keys")
    if proof.verdict is None:  # a window that is no more than that: what else is added would go with it
        return written, _BIASED if written.small and proof.window else proof
    if proof.verdict == "all":
        written = replace(written, hides=False)
    written = replace(written, guarded=False)
    return written, _BIASED if written.small else proof
