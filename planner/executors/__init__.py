"""Who runs a region: aten, inductor, nvfuser, all behind the one interface in base.py."""

from fuseplan.executors.base import GAPS, Compiled, Executor, Recalling

__all__ = ["GAPS", "Compiled", "Executor", "Recalling", "executors"]


def executors() -> dict[str, Executor]:
    """Return every executor by its name, whether or not it can run here: `available()` says.

    >>> list(executors())
    ['aten', 'inductor', 'nvfuser']
    """
    from fuseplan.executors.aten import AtenExecutor
    from fuseplan.executors.inductor import InductorExecutor
    from fuseplan.executors.nvfuser import NvfuserExecutor

    every: tuple[Executor, ...] = (AtenExecutor(), InductorExecutor(), NvfuserExecutor())
    return {executor.name: executor for executor in every}
