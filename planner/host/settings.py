"""Settings of a host: a closed set of named bundles of Inductor's options, so that a plan never holds free ones. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Bundle:
    """A mode of torch.compile, and options of Inductor beside it."""

    mode: str = "default"
    options: Mapping[str, object] = field(default_factory=dict)
    captures: bool = False
    """Whether it brings CUDA graphs of torch's own, which go with no launch of ours."""
    touches: tuple[str, ...] = ()
    """Parts of the names of ops that a backward compiles otherwise; none where tuning does not propose it for time."""
    memory_budget: float = 1.0
    """The share of what the forward would keep for the backward that it may keep; torch computes the rest again."""
    by_block: bool = False
    """Whether the backward computes the forward again block by block, and keeps what stands between them."""


_SUMS = ("_norm_backward", "aten.sum.", "aten.mean.")
"""What sums along rows and along columns, such as the gradients of norms: Inductor does both in one kernel."""

BUNDLES: Mapping[str, Bundle] = {
    "default": Bundle(),
    "reduce-overhead": Bundle("reduce-overhead", captures=True),
    "max-autotune": Bundle("max-autotune", captures=True),
    "max-autotune-no-cudagraphs": Bundle("max-autotune-no-cudagraphs"),
    "mix-order-off": Bundle(options={"triton.mix_order_reduction": False}, touches=_SUMS),
    "split-64": Bundle(options={"triton.mix_order_reduction_split_size": 64}, touches=_SUMS),
    "split-128": Bundle(options={"triton.mix_order_reduction_split_size": 128}, touches=_SUMS),
    "budget-50": Bundle(memory_budget=0.5),
    "budget-25": Bundle(memory_budget=0.25),
    "budget-10": Bundle(memory_budget=0.1),
    "blocks": Bundle(by_block=True),
}
"""By the names that plans have for them; a new bundle is one line."""
SPARING = tuple(name for name, bundle in BUNDLES.items() if bundle.memory_budget < 1.0 or bundle.by_block)
"""Those that take less memory in training, and more time; what promises to take the least last."""
