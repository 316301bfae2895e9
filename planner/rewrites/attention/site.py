"""A site of attention, however it is spelled: what it is given, what is proven of its mask, and the ways that are legal.

A way is a kernel (`auto`, `flash`, `cudnn`, `efficient`, `math`), alone or with `+causal` (no mask, is_causal=True) or
`+unmasked` (no mask). Dropping a mask is legal only where a proof says that it changes nothing, for all sizes in range.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node

from fuseplan.plan import ATTENTION_WAYS
from fuseplan.rewrites.attention.device import no_kernel
from fuseplan.rewrites.base import Draft, Site
from fuseplan.segment.masks import MaskProof, UnprovenError

PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
"""Of scaled_dot_product_attention, in order."""


@dataclass(frozen=True, eq=False)
class AttentionSite(Site, ABC):
    """A place in a Dynamo graph that computes attention: one call of it, or the ops that it is written out in."""

    proof: MaskProof
    """What is proven of its mask."""
    result: Node = field(repr=False)
    """The node of the original graph that gives what attention gives; a call takes its place."""

    @property
    @abstractmethod
    def fakes(self) -> Mapping[str, Any]:
        """What attention is given here, by parameter: fake tensors and plain values."""

    @abstractmethod
    def write(self, draft: Draft) -> dict[str, Any]:
        """The same arguments as nodes of a draft, or plain values. What is not there yet is put in before the result."""

    @property
    def matched(self) -> Collection[Node]:
        """The nodes of the original that the site consists of, and that nobody else reads: they go, if they draw random
        numbers, too.
        """
        return (self.result,)

    @property
    def masked_by(self) -> Collection[Node]:
        """The nodes of the original that the mask is made of; where it is dropped, all that only built them goes."""
        return ()

    @cached_property
    def variants(self) -> tuple[str, ...]:
        """The ways that are legal here, on this machine."""
        return tuple(way for way in ATTENTION_WAYS if self.refusal(way) is None)

    @property
    def preferred(self) -> str:
        """The way that drops the mask where that is proven to be the same, and else keeps attention whole."""
        endings = {"causal": "auto+causal", "all": "auto+unmasked", None: "auto"}
        return endings[self.proof.verdict]

    def refusal(self, way: str) -> str | None:
        """Why a way is not legal here; None if it is."""
        kernel, _, ending = way.partition("+")
        if way not in ATTENTION_WAYS:
            return f"there is no attention variant {way!r}"
        wanted = {"causal": "causal", "unmasked": "all"}.get(ending)
        if wanted is not None and self.proof.verdict != wanted:
            found = f"its mask is proven {self.proof.verdict}" if self.proof.verdict else self.proof.reason
            return f"its mask is not proven {wanted}: {found}"
        if kernel == "auto":
            return None
        return no_kernel(kernel, arguments_under(self.fakes, ending))


def arguments_under(arguments: Mapping[str, Any], ending: str) -> dict[str, Any]:
    """The arguments of a way: the mask dropped where the ending says so."""
    if not ending:
        return dict(arguments)
    return {**arguments, "attn_mask": None, "is_causal": ending == "causal"}


def plain(value: Any) -> FakeTensor:
    """A tensor of which everything is known but the elements; UnprovenError where it is none, or one of a subclass."""
    if not isinstance(value, FakeTensor):
        raise UnprovenError("an argument is no plain tensor")
    return value
