"""What is asked of the learned model, and whether it is met."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuseplan.models.evaluation.contenders import LEARNED

LIMITS = {
    "rows": 6000, "families": 25, "island_mean": 0.05, "island_p90": 0.12, "island_top3_mean": 0.015,
    "plan_mean": 0.02, "plan_p95": 0.05, "mape_from_10_us": 0.20, "mape_below_10_us": 0.30, "flagged": 0.15,
    "tau": 0.6, "coverage_grouped": [0.87, 0.93], "coverage_left_out": 0.80,
}  # fmt: skip
"""What is asked of the learned model on rows of an H200."""


def limits_met(figures: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What is asked, what was found, and whether that is enough."""
    learned, model = figures["left_out"]["learned"], figures["left_out"]["models"][LEARNED]
    plans = figures["plans"].get(LEARNED, {}).get("all", {}).get("0.2", {})
    found = {
        "rows": figures["rows"]["with_times"],
        "families": figures["rows"]["families"],
        "island_mean": model["island_choice"].get("mean"),
        "island_p90": model["island_choice"].get("p90"),
        "island_top3_mean": model["island_top3"].get("mean"),
        "plan_mean": plans.get("mean"),
        "plan_p95": plans.get("p95"),
        "mape_from_10_us": learned["device_not_flagged"].get("from_10_us_mape"),
        "mape_below_10_us": learned["device_not_flagged"].get("below_10_us_mape"),
        "flagged": learned["flagged"],
        "tau": model["tau_in_regions"].get("tau"),
        "coverage_grouped": figures["grouped"]["learned"]["coverage_90"],
        "coverage_left_out": learned["coverage_90"],
    }
    at_least = {"rows", "families", "tau", "coverage_left_out"}
    return {
        name: {"asked": limit, "found": found[name], "met": _met(limit, found[name], name in at_least)}
        for name, limit in LIMITS.items()
    }


def _met(limit: Any, found: float | None, at_least: bool) -> bool:
    if found is None:
        return False
    if isinstance(limit, list):
        return bool(limit[0] <= found <= limit[1])
    return bool(found >= limit if at_least else found <= limit)
