"""Who runs a region: each executor in a folder of its own, all behind the one interface in base.py.

`traits.py` says what an executor tells of itself, `known.py` lists them; both are read without torch. `own.py` lists the executors
themselves.
"""

from fuseplan.executors.base import GAPS, Compiled, Executor, Recalling
from fuseplan.executors.known import load, register, registered
from fuseplan.executors.traits import Traits

__all__ = ["GAPS", "Compiled", "Executor", "Recalling", "Traits", "executors", "register"]


def executors() -> dict[str, Executor]:
    """Return every executor by its name, whether or not it can run here: `available()` says.

    >>> list(executors())
    ['aten', 'inductor', 'nvfuser']
    """
    from fuseplan.executors.own import OWN  # here, since it imports torch, which whoever reads traits can do without

    found: list[Executor] = [one() for one in OWN]
    found += [load(traits.executor)() for traits in registered()]
    return {one.name: one for one in found}
