"""What ATen says of itself."""

from __future__ import annotations

from fuseplan.executors.traits import Traits

ATEN = Traits(
    "aten",
    title="ATen",
    fuses=False,
    with_torch=True,
    measuring_s=0.3,
    color=("#57606a", "#9aa4af"),
    kin_spread=0.045,
)
