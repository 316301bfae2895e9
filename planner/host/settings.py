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


BUNDLES: Mapping[str, Bundle] = {
    "default": Bundle(),
    "reduce-overhead": Bundle("reduce-overhead", captures=True),
    "max-autotune": Bundle("max-autotune", captures=True),
    "max-autotune-no-cudagraphs": Bundle("max-autotune-no-cudagraphs"),
}
"""By the names that plans have for them; a new bundle is one line."""
