"""The aten executor: a region as plain calls of PyTorch's own operators, one after another, without an interpreter."""

from __future__ import annotations

import torch

from fuseplan.capture.fx.targets import find_target
from fuseplan.capture.fx.to_fx import to_fx
from fuseplan.errors import ExecutorError, GraphError, UnsupportedError
from fuseplan.executors.aten.anchors import anchor_variants, compile_anchor
from fuseplan.executors.aten.traits import ATEN
from fuseplan.executors.base import Compiled, refuse_unsupported
from fuseplan.executors.flat import flatten
from fuseplan.graph import Graph, Op


class AtenExecutor:
    """Runs every op that this torch has. What all other executors are compared with."""

    name = ATEN.name
    traits = ATEN

    def version(self) -> str:
        """Torch's own version.

        >>> AtenExecutor().version() == torch.__version__
        True
        """
        return str(torch.__version__)

    def version_on(self, device: str) -> str | None:
        """None: it is torch itself."""
        return None

    def available(self) -> str | None:
        """Always."""
        return None

    def supports(self, op: Op, graph: Graph) -> str | None:
        """Refuse what cannot be written down, or is from another torch."""
        if op.opaque is not None:
            return op.opaque
        try:
            find_target(op.target)
        except GraphError as error:
            return str(error)
        return None

    def refuses(self, region: Graph) -> str | None:
        """Nothing but what it does not support."""
        return None

    def variants(self, region: Graph) -> tuple[str, ...]:
        """The plain operators; for a region that is one anchor, the other ways to run it too."""
        return ("default", *anchor_variants(region))

    def compile(self, region: Graph, variant: str = "default") -> Compiled:
        """The region as one flat Python function."""
        if variant not in self.variants(region):
            raise UnsupportedError(f"aten has no variant {variant!r} for this region")
        refuse_unsupported(self, region)
        try:
            gm = to_fx(region)
            return flatten(gm) if variant == "default" else compile_anchor(region, variant, gm)
        except GraphError as error:
            raise ExecutorError(f"aten cannot run this region: {error}") from error
