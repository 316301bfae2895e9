"""An executor from outside of fuseplan, as somebody else would write one: this file, and `register(TOY)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuseplan.executors import Compiled, Traits
from fuseplan.executors.base import refuse_unsupported
from fuseplan.graph import Graph, Op

TOY = Traits(
    "toy",
    executor=f"{__name__}:ToyExecutor",
    title="Toy",
    measuring_s=0.5,
    color=("#005b96", "#7fc8ff"),
)
_OPS = {"aten.sin.default": "sin", "aten.cos.default": "cos", "aten.relu.default": "relu", "aten.neg.default": "neg"}
calls: list[int] = []
"""How many ops each call of a region ran."""


class ToyExecutor:
    """Runs regions of ops that read one tensor and give one, as methods of tensors."""

    name = TOY.name
    traits = TOY

    def version(self) -> str:
        return "1"

    def version_on(self, device: str) -> str | None:
        return "1"

    def available(self) -> str | None:
        return None

    def supports(self, op: Op, graph: Graph) -> str | None:
        return None if op.target in _OPS else "no toy for it"

    def refuses(self, region: Graph) -> str | None:
        return None

    def variants(self, region: Graph) -> tuple[str, ...]:
        return ("default",)

    def compile(self, region: Graph, variant: str = "default") -> Compiled:
        refuse_unsupported(self, region)

        def call(args: list[Any]) -> Sequence[Any]:
            values = dict(zip((value.name for value in region.inputs), args, strict=True))
            for op in region.ops:
                values[op.outputs[0].name] = getattr(values[op.reads[0]], _OPS[op.target])()
            calls.append(len(region.ops))
            return [values[arg.name] for arg in region.outputs]  # type: ignore[union-attr]

        return call
