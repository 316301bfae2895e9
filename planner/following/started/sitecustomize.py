"""What a process runs first that a script has started under `fuseplan record` or `fuseplan run`: it records, or replays, too.

A module of this name that the process would have had instead runs as well. Nothing that goes wrong here may end the process.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path


def _run_the_hidden_one() -> None:
    """The module of this name that stands behind this one, if there is one."""
    here = str(Path(__file__).parent)
    sys.path[:] = [place for place in sys.path if place != here]
    mine = sys.modules.pop("sitecustomize", None)
    try:
        import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if mine is not None:
            sys.modules.setdefault("sitecustomize", mine)


try:
    _run_the_hidden_one()
finally:
    with suppress(ImportError):  # another Python, which has no fuseplan
        from fuseplan.following.processes import follow

        follow()
