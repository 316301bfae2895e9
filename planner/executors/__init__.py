"""Who runs a region: aten, inductor, nvfuser, all behind the one interface in base.py."""

from fuseplan.executors.base import Compiled, Executor

__all__ = ["Compiled", "Executor", "executors"]


def executors() -> dict[str, Executor]:
    """Return every executor by its name, whether or not it can run here: `available()` says.

    >>> list(executors())
    ['aten', 'inductor']
    """
    from fuseplan.executors.aten import AtenExecutor
    from fuseplan.executors.inductor import InductorExecutor

    every: tuple[Executor, ...] = (AtenExecutor(), InductorExecutor())
    return {executor.name: executor for executor in every}
