"""Who runs a region: each executor in a folder of its own, all behind the one interface in base.py.

`traits.py` says what an executor tells of itself, `known.py` lists them; both are read without torch.
"""

from fuseplan.executors.base import GAPS, Compiled, Executor, Recalling
from fuseplan.executors.known import known_executors, load, register
from fuseplan.executors.traits import Traits

__all__ = ["GAPS", "Compiled", "Executor", "Recalling", "Traits", "executors", "register"]


def executors() -> dict[str, Executor]:
    """Return every executor by its name, whether or not it can run here: `available()` says.

    >>> list(executors())
    ['aten', 'inductor', 'nvfuser']
    """
    return {traits.name: load(traits.executor)() for traits in known_executors()}
