"""What Inductor says of itself."""

from __future__ import annotations

from fuseplan.executors.traits import Traits

INDUCTOR = Traits(
    "inductor",
    title="Inductor",
    joins_anchors=True,
    with_torch=True,
    measuring_s=2.5,
    color=("#0a5fc2", "#6cb2ff"),
    pads_matmuls=True,
    turns_images=True,
    kin_spread=0.06,
)
