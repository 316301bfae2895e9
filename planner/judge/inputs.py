"""Random inputs for a region, as it was recorded: dtypes, sizes, strides (gaps and overlaps too), legal numbers.

Checking and timing both draw their inputs here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from fuseplan.capture.fx.to_fx import SizeSpace, likely_size
from fuseplan.errors import GraphError
from fuseplan.graph import Graph, ScalarType, TensorType
from fuseplan.judge.ranges import Bound, bounds_of

Spread = Literal["normal", "positive", "wide"]
"""How float inputs are distributed: around zero, away from zero, or over many magnitudes with some exact zeros."""

SMALL = Bound(-8, 8)
"""Integers that nothing constrains: products and sums of them fit every dtype."""


def default_sizes(graph: Graph) -> dict[str, int]:
    """Return for each symbol of `graph` the size that was seen, or one that is no edge case."""
    return {s.name: likely_size(s) for s in graph.symbols}


def make_inputs(
    region: Graph,
    seed: int,
    device: str | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    spread: Spread = "normal",
    specials: Sequence[float] = (),
    offset: int = 0,
) -> list[Any]:
    """Return random inputs for `region` by position, the same for the same seed on the same device.

    `sizes` gives symbols other sizes than were recorded, `specials` are planted among the floats, `offset` moves every
    tensor that many elements into its storage, where alignment ends.

    >>> from fuseplan.graph import Value
    >>> region = Graph((Value("x", TensorType("float32", (2, 3), (1, 2))),), (), ())
    >>> make_inputs(region, 0)[0].stride()
    (1, 2)
    """
    chosen = {**default_sizes(region), **(sizes or {})}
    bounds = bounds_of(region, chosen)
    space = SizeSpace(chosen)
    maker = _Maker(seed, device, spread, specials, offset)
    result: list[Any] = []
    for value in region.inputs:
        kind = value.type
        if isinstance(kind, TensorType):
            shape, stride = ([int(space(d)) for d in dims] for dims in (kind.shape, kind.stride))
            result.append(maker.tensor(kind, shape, stride, bounds.get(value.name)))
        elif isinstance(kind, ScalarType):
            result.append(maker.number(kind, space))
        else:
            raise GraphError(f"input {value.name} is no tensor and no number: {kind}")
    return result


class _Maker:
    """Draws one tensor after another from one seed."""

    def __init__(self, seed: int, device: str | None, spread: Spread, specials: Sequence[float], offset: int) -> None:
        self.seed, self.device, self.spread, self.specials, self.offset = seed, device, spread, specials, offset
        self.generators: dict[str, torch.Generator] = {}

    def tensor(self, kind: TensorType, shape: list[int], stride: list[int], bound: Bound | None) -> torch.Tensor:
        """A tensor over a storage that is random everywhere, so that reading a gap shows."""
        span = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        dtype = getattr(torch, kind.dtype)
        flat = self._flat(span + self.offset, dtype, self.device or kind.device, bound)
        return flat.as_strided(shape, stride, self.offset if span else 0)

    def number(self, kind: ScalarType, space: SizeSpace) -> int | float | bool:
        try:
            known = space(kind.expr)
        except (KeyError, GraphError, SyntaxError):
            known = None  # an input whose value no symbol says, such as what item() gave
        if known is not None:
            return _PYTHON[kind.kind](known)
        draw = torch.rand((), generator=self._generator("cpu")).item()
        return _PYTHON[kind.kind](
            8 * draw if kind.kind == "int" else 2 * draw - 1 if kind.kind == "float" else draw < 0.5
        )

    def _generator(self, device: str) -> torch.Generator:
        if device not in self.generators:
            self.generators[device] = torch.Generator(device).manual_seed(self.seed)
        return self.generators[device]

    def _flat(self, count: int, dtype: torch.dtype, device: str, bound: Bound | None) -> torch.Tensor:
        if dtype is torch.bool:
            return torch.randint(0, 2, (count,), generator=self._generator(device), device=device) > 0
        if dtype.is_complex:
            parts = [self._floats(count, torch.float64, device, None) for _ in range(2)]
            return torch.complex(*parts).to(dtype)
        if dtype.is_floating_point:
            return self._floats(count, dtype, device, bound)
        return self._integers(count, dtype, device, bound)

    def _integers(self, count: int, dtype: torch.dtype, device: str, bound: Bound | None) -> torch.Tensor:
        info = torch.iinfo(dtype)
        within = (bound or SMALL).meet(Bound(info.min, info.max))
        low, high = int(within.low), int(within.high)
        if within.distinct and count - self.offset <= high - low + 1:
            order = torch.randperm(high - low + 1, generator=self._generator(device), device=device) + low
            return torch.cat([order[: self.offset], order[: count - self.offset]]).to(dtype)
        return torch.randint(low, high + 1, (count,), generator=self._generator(device), device=device).to(dtype)

    def _floats(self, count: int, dtype: torch.dtype, device: str, bound: Bound | None) -> torch.Tensor:
        generator = self._generator(device)
        draw = torch.empty(count, device=device, dtype=torch.float64 if dtype is torch.float64 else torch.float32)
        if bound is not None:
            return draw.uniform_(bound.low, bound.high, generator=generator).to(dtype)
        if self.spread == "positive":
            draw.uniform_(0.1, 2.0, generator=generator)
        else:
            draw.normal_(generator=generator)
        if self.spread == "wide":
            scale = torch.randint(-6, 7, (count,), generator=generator, device=device)
            draw.mul_(torch.exp2(scale.to(draw.dtype)) * (torch.rand(count, generator=generator, device=device) > 0.02))
        if self.specials and count >= 8:
            places = torch.randint(0, count, (len(self.specials),), generator=generator, device=device)
            draw[places] = torch.tensor(self.specials, device=device, dtype=draw.dtype)
        return draw.to(dtype)


_PYTHON: dict[str, type[int] | type[float] | type[bool]] = {"int": int, "float": float, "bool": bool}
