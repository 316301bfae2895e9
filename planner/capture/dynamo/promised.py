"""Sizes that a caller promised to vary, with mark_dynamic: Dynamo raises where a compiler narrows them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from fuseplan.capture.dynamo.symbols import Symbols

Span = tuple[float, float]
EVERY: Span = (-math.inf, math.inf)
"""Promised to vary, within no bounds that anybody spoke of."""


def promised_sizes(gm: GraphModule, example_inputs: Sequence[Any], symbols: Symbols) -> dict[str, Span]:
    """The dynamic sizes, by name, that were marked as such by hand, and the range that was promised."""
    found: dict[str, Span] = {}
    for node, given in zip(gm.graph.find_nodes(op="placeholder"), example_inputs, strict=False):
        value = node.meta.get("example_value")
        if not isinstance(given, torch.Tensor) or not isinstance(value, torch.Tensor):
            continue
        for marked in getattr(given, "_dynamo_dynamic_range", ()):
            name = symbols.name_of(value.shape[marked.dim])
            if name is not None:
                low, high = found.get(name, EVERY)
                found[name] = (
                    low if marked.min is None else max(low, marked.min),
                    high if marked.max is None else min(high, marked.max),
                )
    return found
