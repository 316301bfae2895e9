"""The draws of inputs that a region is judged on: around zero, away from zero, over many magnitudes, with NaN among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fuseplan.capture.fx.targets import find_target
from fuseplan.errors import GraphError
from fuseplan.graph import Graph, Op
from fuseplan.judge.inputs import Spread, default_sizes, make_inputs

NAN = (float("nan"),) * 2
INFINITE = (float("nan"), float("inf"), float("-inf"))


@dataclass(frozen=True)
class Trial:
    """One draw of inputs."""

    seed: int
    sizes: Mapping[str, int]
    spread: Spread = "normal"
    specials: tuple[float, ...] = ()
    offset: int = 0
    must_run: bool = True  # it may not allow sizes that nobody recorded, nor NaN of which it makes an index

    def __str__(self) -> str:
        sizes = "".join(f", {name}={size}" for name, size in self.sizes.items())
        return f"seed {self.seed}{sizes}"

    def inputs(self, region: Graph, device: str | None) -> list[Any]:
        """The inputs of this trial."""
        return make_inputs(
            region,
            self.seed,
            device,
            sizes=self.sizes,
            spread=self.spread,
            specials=self.specials,
            offset=self.offset,
        )


def trials(region: Graph, seeds: Sequence[int], sizes: Sequence[Mapping[str, int]] | None = None) -> Iterator[Trial]:
    """The draws that `check` makes."""
    recorded = default_sizes(region)
    every = [{**recorded, **chosen} for chosen in sizes] if sizes else [recorded]
    spreads: tuple[Spread, ...] = ("normal", "positive", "wide", "normal")
    planted = INFINITE if all(_elementwise(op) for op in region.ops) else NAN
    aligned = any("cudnn_attention" in op.target for op in region.ops)  # eager itself dies of inputs that are not
    for seed in seeds:
        kind = seed % len(spreads)
        offset = int(kind == 1 and not aligned)
        yield Trial(seed, every[0], spreads[kind], planted if kind == 3 else (), offset, must_run=kind != 3)
    for i, chosen in enumerate(every[1:]):
        yield Trial(seeds[0] + i, chosen)
    if sizes is None and recorded:
        for i, scale in enumerate((1, 2)):
            yield Trial(seeds[0] + i, _other_sizes(region, scale), must_run=False)


def _elementwise(op: Op) -> bool:
    """Whether an infinity stays what it is; sums and means of it may come out infinite or NaN, as they go about it."""
    try:
        return op.is_view or torch.Tag.pointwise in getattr(find_target(op.target), "tags", ())
    except GraphError:
        return False


def _other_sizes(region: Graph, scale: int) -> dict[str, int]:
    """Every size a little larger, or doubled; each within its range."""
    result = {}
    for i, (symbol, size) in enumerate(zip(region.symbols, default_sizes(region).values(), strict=True)):
        wanted = 2 * size if scale == 2 else size + 3 + i
        result[symbol.name] = wanted if symbol.high is None else min(wanted, symbol.high)
    return result
