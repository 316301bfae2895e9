"""What plans, cuts and moves mean, in words of no format, so that those of two formats can be compared."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from fuseplan.plan import Plan
from fuseplan.segment import Region, Segmentation
from fuseplan.segment.moves import Move
from fuseplan.segment.moves.kind import ops_text


def meaning(plan: Plan) -> dict[str, Any]:
    """What a plan says, whatever it is written in: who runs what is no region, how it is launched, and each region."""
    attention = [f"{one.site} {one.way}" for one in plan.rewrites if one.kind == "attention"]
    found: dict[str, Any] = {"host": plan.host, "launch": plan.launch, "attention": attention}
    others = [f"{one.kind} {one.site} {one.way}" for one in plan.rewrites if one.kind != "attention"]
    if others:
        found["rewrites"] = others
    if plan.host != "aten":
        return {**found, "settings": plan.settings}
    parts = {f"{one.role} {one.graph[:12]}": cut(one.segmentation) for one in plan.carve_outs}
    return {**found, "saving": plan.saving, "greedy": plan.greedy, "parts": parts}


def cut(segmentation: Segmentation) -> list[str]:
    """The regions of one graph, a line each."""
    return [region_line(region) for region in segmentation.regions]


def region_line(region: Region) -> str:
    """One region as text.

    >>> region_line(Region((0, 1), "inductor", "default", (5,)))
    'inductor default: 0 1; again 5'
    """
    again = f"; again {' '.join(map(str, region.recompute))}" if region.recompute else ""
    return f"{region.executor} {region.variant}: {' '.join(map(str, region.ops))}{again}"


def digest(value: object) -> str:
    """A short name for what something means."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:10]


def entry_name(name: str, plan: Plan | None) -> str:
    """What an entry of a race is called whatever the format of its plan: those that are cut go by what they mean."""
    return f"cut {digest(meaning(plan))}" if name.startswith("cut ") and plan is not None else name


def move_line(move: Move) -> str:
    """A move as 4a9fd47 told of it: of more than two ops it named the first."""
    more = f"op {move.ops[0]} ({move.target}) and {len(move.ops) - 1} more" if len(move.ops) > 2 else ""
    return move.line.replace(ops_text(move.ops, move.target), more) if more else move.line


def rounded(number: float | None) -> float | None:
    """To six digits: an order of summation is no difference."""
    return None if number is None else float(f"{number:.6g}")
