"""The SQLite database of measurements and plans: never lost, never wrong, and it says why it misses."""

from fuseplan.tuning_db.environment import Difference, Environment, needs_of
from fuseplan.tuning_db.evidence import Evidence, Raced, RegionEvidence, Start
from fuseplan.tuning_db.layers import Places, places
from fuseplan.tuning_db.records import (
    DefaultTiming,
    Drift,
    Hit,
    Measurement,
    Miss,
    Query,
    Repeats,
    Run,
    Stale,
    StoredPlan,
)
from fuseplan.tuning_db.sizes import Box
from fuseplan.tuning_db.store import Store

__all__ = [
    "Box",
    "DefaultTiming",
    "Difference",
    "Drift",
    "Environment",
    "Evidence",
    "Hit",
    "Measurement",
    "Miss",
    "Places",
    "Query",
    "Raced",
    "RegionEvidence",
    "Repeats",
    "Run",
    "Stale",
    "Start",
    "Store",
    "StoredPlan",
    "needs_of",
    "places",
]
