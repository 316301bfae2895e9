"""What the outputs of a region should be: the region under ATen, in higher precision, and shaken by rounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fuseplan.errors import FuseplanError
from fuseplan.graph import Graph, Ref
from fuseplan.judge.evaluate import evaluate
from fuseplan.judge.memory import is_float, like, storage, twin
from fuseplan.judge.reference import WIDENINGS, natures, pin, widen
from fuseplan.judge.rounding import Rounding

SHAKES = 3
"""Runs of the reference with random rounding after every op: they tell how much rounding matters to each element."""
RUN_ERRORS = (
    RuntimeError, AssertionError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, FuseplanError,
)  # fmt: skip
"""What running a region raises when it goes wrong."""


@dataclass(frozen=True)
class Truth:
    """What the outputs of one trial should be, and what rounding does to them."""

    values: list[Any]
    shakes: list[Any]
    blind: bool  # the truth is eager itself: nothing more precise runs


class Reference:
    """What a region should give: under ATen, and in higher precision where ATen has it."""

    def __init__(self, region: Graph) -> None:
        written = {name for op in region.ops for name in op.mutates}
        self.written = tuple(i for i, value in enumerate(region.inputs) if value.name in written)
        # what the region writes to an input is judged like an output
        region = replace(region, outputs=(*region.outputs, *(Ref(region.inputs[i].name) for i in self.written)))
        self.region = region
        self.pinned = pin(region)
        self.judged = self.pinned[0] if self.pinned else region
        self.natures = natures(self.judged)
        self.random = any(nature.random for nature in natures(region).values())
        self.wider = [(names, graph) for names in WIDENINGS if (graph := widen(self.judged, names)) is not None]

    def eager(self, inputs: list[Any]) -> list[Any]:
        """What ATen gives."""
        return evaluate(self.region, inputs)

    def pinned_eager(self, inputs: list[Any], outputs: Sequence[Any]) -> list[Any] | None:
        """What ATen gives for the random numbers that the executor drew, where the region shows them."""
        if self.pinned is None:
            return None
        return evaluate(self.judged, [twin(value) for value in self._given(inputs, outputs)])

    def truth(self, inputs: list[Any], outputs: Sequence[Any], seed: int) -> Truth:
        """The outputs in higher precision, given the inputs and, for pinned values, what the executor itself drew."""
        given = self._given(inputs, outputs)
        found = (self._try_wider(names, graph, given, seed) for names, graph in self.wider)
        return next((truth for truth in found if truth is not None), None) or self._shaken(
            self.judged, given, seed, True
        )

    def _try_wider(self, names: dict[str, str], graph: Graph, given: list[Any], seed: int) -> Truth | None:
        try:
            return self._shaken(graph, [_widened(value, names) for value in given], seed, blind=False)
        except RUN_ERRORS:
            return None  # no kernel, or no memory, for this precision

    def _given(self, inputs: list[Any], outputs: Sequence[Any]) -> list[Any]:
        return [*inputs, *(outputs[i] for i in self.pinned[1])] if self.pinned else inputs

    def _shaken(self, graph: Graph, given: list[Any], seed: int, blind: bool) -> Truth:
        values = evaluate(graph, [twin(value) for value in given])
        shakes = [torch.zeros_like(v, dtype=v.dtype.to_real()) if is_float(v) else None for v in values]
        for i in range(SHAKES):
            rounding = Rounding(self.judged, 1000 * seed + i)
            moved = evaluate(graph, [twin(value) for value in given], rounding)
            for total, value, other in zip(shakes, values, moved, strict=True):
                if total is not None:
                    torch.maximum(total, torch.nan_to_num((other - value).abs(), 0.0, 0.0), out=total)
        return Truth(values, shakes, blind)


def _widened(value: Any, wider: Mapping[str, str]) -> Any:
    name = str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else ""
    return like(value, storage(value).to(getattr(torch, wider[name]))) if name in wider else value
