"""torch's table of the backends that are known by a name."""

from __future__ import annotations

from typing import Any

from torch._dynamo.backends import registry

NAME = "fuseplan"


class BackendTable(dict[str, Any]):
    """The table with which ours may be registered again.

    Of several threads that ask for a backend before it was ever used, each waits until it is imported and then registers it, and
    torch takes all but the first for a mistake: `duplicate name`. Here ours is looked up anew each time, which takes microseconds.
    """

    def __contains__(self, name: object) -> bool:
        """Whether a backend is registered for good."""
        return name != NAME and super().__contains__(name)


def bear_threads() -> None:
    """Let several threads be the first to use the backend. To be called while it is imported, before anybody registers it."""
    table = getattr(registry, "_COMPILER_FNS", None)
    if type(table) is dict:
        registry._COMPILER_FNS = BackendTable(table)
