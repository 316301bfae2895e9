"""torch's table of the backends that are known by a name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from torch._dynamo.backends import registry

NAME = "fuseplan"
NESTED = 4
"""So many calls may lie between a call of torch.compile and the table."""


class BackendTable(dict[str, Any]):
    """The table with which ours may be registered again.

    Of several threads that ask for a backend before it was ever used, each waits until it is imported and then registers it, and
    torch takes all but the first for a mistake: `duplicate name`. Here ours is looked up anew each time, which takes microseconds.
    `asked` hears of the options with which torch.compile does so, long before the first program comes.
    """

    def __init__(
        self, known: Mapping[str, Any], ours: Callable[[], Any], asked: Callable[[Mapping[str, Any]], None]
    ) -> None:
        super().__init__(known)
        self._ours, self._asked = ours, asked

    def __contains__(self, name: object) -> bool:
        """Whether a backend is registered for good."""
        if name == NAME and (options := _options_around()) is not None:
            self._asked(options)
        return name != NAME and super().__contains__(name)

    def __missing__(self, name: str) -> Any:
        """Ours, for a thread that comes after another has announced it, and before that has put it here."""
        if name != NAME:
            raise KeyError(name)
        return self._ours()


def _options_around() -> Mapping[str, Any] | None:
    """The options of the call of torch.compile that is looking a backend up; None where it is none."""
    frame = sys._getframe(2)
    for _ in range(NESTED):
        if frame.f_code.co_name == "__init__" and "options" in frame.f_locals:
            options = frame.f_locals["options"]
            if options is None or isinstance(options, Mapping):
                return options or {}
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None


def bear_threads(ours: Callable[[], Any], asked: Callable[[Mapping[str, Any]], None]) -> None:
    """Let several threads be the first to use the backend; `asked` hears of the options of each torch.compile with it.
    To be called while its module is imported, before anybody registers it.
    """
    table = getattr(registry, "_COMPILER_FNS", None)
    if type(table) is dict:
        registry._COMPILER_FNS = BackendTable(table, ours, asked)
