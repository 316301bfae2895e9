"""Work that a thread of this process does in the background, while workers are busy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Background(Generic[_T]):
    """Work that a thread does from now on.

    >>> Background(lambda: 6 * 7, "counting").result()
    42
    """

    def __init__(self, work: Callable[[], _T], name: str) -> None:
        self._work = work
        self._found: list[_T] = []
        self._error: BaseException | None = None
        # A daemon: whoever interrupts the run does not wait for it.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def result(self) -> _T:
        """What the work gave, or raised, as soon as it is done."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._found[0]

    def _run(self) -> None:
        try:
            self._found.append(self._work())
        except BaseException as error:  # noqa: BLE001 -- raised again for who asks for the result
            self._error = error
