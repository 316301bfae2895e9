"""The exact GELU, behind nearly every matmul of many models: another formula for its tail takes less arithmetic."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fuseplan.capture.fx.gelu import DTYPES
from fuseplan.rewrites.base import Draft, Kind, Site, digest_of
from fuseplan.rewrites.reading import argument, first, name_of
from fuseplan.rewrites.special import example

LEAST_ELEMENTS = 2**18
"""Of less, a kernel is over before its arithmetic matters."""
_MEANING = "1"
"""Another one, should the function ever do something else: torch counts it in."""


def gelu_otherwise(x: Tensor) -> Tensor:
    """The exact GELU, with its tail by another formula where Inductor computes it.

    >>> gelu_otherwise(torch.tensor([1.0, -1.0])).round(decimals=4).tolist()
    [0.8413000106811523, -0.15870000422000885]
    """
    found: Tensor = torch.ops.fuseplan.gelu(x)
    return found


@dataclass(frozen=True, eq=False)
class GeluSite(Site):
    """A call of the exact GELU."""

    call: Node = field(repr=False)

    @property
    def given(self) -> Any:
        """What it is of."""
        return example(first(self.call))


class Gelu(Kind[GeluSite]):
    """Exact GELUs."""

    noun = "GELU"
    has_own_gradients = True
    functions: Mapping[str, str] = {f"{gelu_otherwise.__module__}.gelu_otherwise": _MEANING}

    def find(self, gm: GraphModule) -> Sequence[GeluSite]:
        """Those that are called and not approximated."""
        found = list[GeluSite]()
        for place, node in enumerate(gm.graph.nodes):
            if _is_exact(node):
                found.append(GeluSite(len(found), digest_of("gelu", {place: node}), node))
        return found

    def nodes(self, site: GeluSite) -> Collection[Node]:
        """Its call."""
        return (site.call,)

    def ways(self, site: GeluSite) -> Sequence[str]:
        """By the formula for its tail."""
        return ("tail",)

    def refusal(self, site: GeluSite, way: str) -> str | None:
        """Where it computes in other numbers."""
        if way not in self.ways(site):
            return f"there is no GELU variant {way!r}"
        if site.given.dtype not in DTYPES or example(site.call).dtype != site.given.dtype:
            return "its formula is for half precision"
        return None

    def preferred(self, site: GeluSite) -> str | None:
        """None: a race tells."""
        return None

    def rivals(self, site: GeluSite) -> Mapping[str, str]:
        """On a GPU, of what is large enough to matter."""
        return super().rivals(site) if _matters(site) else {}

    def apply(self, draft: Draft, chosen: Mapping[GeluSite, str]) -> None:
        """Call the operator of ours."""
        for site in chosen:
            call = draft.copies[site.call]
            call.target, call.args, call.kwargs = gelu_otherwise, (first(call),), {}

    def about(self, site: GeluSite) -> str:
        """Of how much."""
        return f"of {' × '.join(map(str, site.given.shape))}"


def _is_exact(node: Node) -> bool:
    """Whether it is one that leaves what it is of as it is."""
    if node.op != "call_function" or name_of(node) != "gelu" or getattr(node.target, "__name__", "").endswith("_"):
        return False
    x = first(node)
    known = isinstance(x, Node) and isinstance(example(x), Tensor) and isinstance(example(node), Tensor)
    return known and argument(node, 1, "approximate", default="none") == "none"


def _matters(site: GeluSite) -> bool:
    given = site.given
    return given.device.type == "cuda" and statically_known_true(given.numel() >= LEAST_ELEMENTS)
