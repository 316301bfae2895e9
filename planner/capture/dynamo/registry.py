"""torch's table of the backends that are known by a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch._dynamo.backends import registry

NAME = "fuseplan"


class BackendTable(dict[str, Any]):
    """The table with which ours may be registered again.

    Of several threads that ask for a backend before it was ever used, each waits until it is imported and then registers it, and
    torch takes all but the first for a mistake: `duplicate name`. Here ours is looked up anew each time, which takes microseconds.
    """

    def __init__(self, known: Mapping[str, Any], ours: Callable[[], Any]) -> None:
        super().__init__(known)
        self._ours = ours

    def __contains__(self, name: object) -> bool:
        """Whether a backend is registered for good."""
        return name != NAME and super().__contains__(name)

    def __missing__(self, name: str) -> Any:
        """Ours, for a thread that comes after another has announced it, and before that has put it here."""
        if name != NAME:
            raise KeyError(name)
        return self._ours()


def bear_threads(ours: Callable[[], Any]) -> None:
    """Let several threads be the first to use the backend. To be called while its module is imported, before anybody registers it."""
    table = getattr(registry, "_COMPILER_FNS", None)
    if type(table) is dict:
        registry._COMPILER_FNS = BackendTable(table, ours)
