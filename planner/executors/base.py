"""What every executor is: it answers for one op, and compiles a region into a callable by position."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from fuseplan.errors import UnsupportedError
from fuseplan.executors.traits import Traits
from fuseplan.graph import Graph, Op

Compiled = Callable[[list[Any]], Sequence[Any]]
"""A compiled region: takes its inputs by position in a list, which it may clear, and returns its outputs by position."""

GAPS = "gaps"
"""The variant of a region whose result may have gaps between its rows, as a padded matmul leaves them. Only a program's
own output may: whoever else reads it was compiled for what the graph declares."""


class Executor(Protocol):
    """Runs regions. A value of this type holds no state that a caller could notice."""

    name: str
    traits: Traits
    """What it says of itself to those who plan; under the same name."""

    def version(self) -> str:
        """What a measurement of this executor is true for."""
        ...

    def version_on(self, device: str) -> str | None:
        """Its version, where it is installed for such a type of device: seen at a glance, without a trial. None where it is
        not, and for what has no version but torch's."""
        ...

    def available(self) -> str | None:
        """None where it can run here, else one line that says why it cannot."""
        ...

    def supports(self, op: Op, graph: Graph) -> str | None:
        """None if `op` of `graph` may stand in a region, else the reason why it may not."""
        ...

    def refuses(self, region: Graph) -> str | None:
        """None if the region as a whole may be compiled, else the reason why not, though each of its ops may stand in one."""
        ...

    def variants(self, region: Graph) -> tuple[str, ...]:
        """The ways to compile the region; the first is the default."""
        ...

    def compile(self, region: Graph, variant: str = "default") -> Compiled:
        """The region as a callable. Raises UnsupportedError for what it refuses, ExecutorError where compiling fails."""
        ...


@runtime_checkable
class Recalling(Protocol):
    """An executor whose code is kept on disk, and is found again without the work that finding it by the region takes."""

    def kept(self, call: Compiled) -> str | None:
        """The name under which what `compile` gave is kept; None where it is not."""
        ...

    def recall(self, region: Graph, variant: str, kept: str) -> Compiled | None:
        """What `compile` gave for the same region, variant and settings; None if it is kept no more."""
        ...


def refuse_unsupported(executor: Executor, region: Graph) -> None:
    """Raise UnsupportedError for the first op of the region that the executor says no to, or for the region as a whole."""
    for op in region.ops:
        reason = executor.supports(op, region)
        if reason is not None:
            raise UnsupportedError(f"{executor.name} does not run {op.target}: {reason}")
    reason = executor.refuses(region)
    if reason is not None:
        raise UnsupportedError(f"{executor.name} does not run this region: {reason}")
