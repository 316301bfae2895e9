"""What was made last, kept until a database changes: fifty who ask for one page at once wait for it to be made once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

_T = TypeVar("_T")


class KeptAnswers:
    """Answers by question.

    >>> kept = KeptAnswers()
    >>> kept.get("a", 1, lambda: "made"), kept.get("a", 1, lambda: "made again"), kept.get("a", 2, lambda: "anew")
    ('made', 'made', 'anew')
    """

    def __init__(self, most: int = 16) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._answers: OrderedDict[Hashable, tuple[object, Any]] = OrderedDict()
        self._making: dict[Hashable, threading.Lock] = {}

    def get(self, key: Hashable, token: object, make: Callable[[], _T]) -> _T:
        """What `make` returned for this question when the databases had this token."""
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:
            try:
                known = self._answers.get(key)
                if known is None or known[0] != token:
                    known = (token, make())
                    self._keep(key, known)
            finally:
                with self._lock:
                    self._making.pop(key, None)
            answer: _T = known[1]
            return answer

    def _keep(self, key: Hashable, known: tuple[object, Any]) -> None:
        with self._lock:
            self._answers[key] = known
            self._answers.move_to_end(key)
            while len(self._answers) > self._most:
                self._answers.popitem(last=False)
