"""A kind of rewrite from outside of fuseplan, as somebody else would write one: this file, and one line in `KINDS`."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import GraphModule, Node

from fuseplan.rewrites.base import Draft, Kind, Site, digest_of


@dataclass(frozen=True, eq=False)
class Product(Site):
    """One product of two values."""

    node: Node = field(repr=False)


class Products(Kind[Product]):
    """Products, which can be written as a quotient by the inverse."""

    noun = "product"

    def find(self, gm: GraphModule) -> Sequence[Product]:
        """All of them."""
        nodes = [(place, one) for place, one in enumerate(gm.graph.nodes) if one.target in (operator.mul, torch.mul)]
        return [Product(i, digest_of("product", {place: one}), one) for i, (place, one) in enumerate(nodes)]

    def nodes(self, site: Product) -> Collection[Node]:
        """The one operator."""
        return (site.node,)

    def ways(self, site: Product) -> Sequence[str]:
        """As a quotient."""
        return ("quotient",)

    def refusal(self, site: Product, way: str) -> str | None:
        """Only by a number."""
        return None if isinstance(site.node.args[1], float) else "it is by no number"

    def apply(self, draft: Draft, chosen: Mapping[Product, str]) -> None:
        """Divide instead."""
        for site in chosen:
            node, by = draft.copies[site.node], site.node.args[1]
            assert isinstance(by, float)
            node.target, node.args = operator.truediv, (node.args[0], 1 / by)

    def about(self, site: Product) -> str:
        """By what."""
        return f"by {site.node.args[1]}"
