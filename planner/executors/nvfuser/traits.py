"""What nvFuser says of itself."""

from __future__ import annotations

from fuseplan.executors.traits import Traits

NVFUSER = Traits(
    "nvfuser",
    title="nvFuser",
    devices=("cuda",),
    greedy_rank=0,
    greedy_default=True,
    measuring_s=1.5,
    color=("#3f7300", "#8fce3c"),
    call_units=1.3,
    kernel_units=0.0,
)
