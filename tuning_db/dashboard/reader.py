"""The databases that are shown: each opened for reading alone, under a name that says nothing of where it lies."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from fuseplan.tuning_db.dashboard.kept import KeptAnswers
from fuseplan.tuning_db.files import Absent, Busy, Damaged, Database, NotOurs, Unusable

_T = TypeVar("_T")
_WITHIN_S = 30.0


@dataclass(frozen=True)
class Reader:
    """One database, and the others beside it."""

    name: str
    """What a person sees, and what stands in the URL: the name of the file without its folder."""
    database: Database
    others: Mapping[str, Reader] = field(default_factory=dict)
    """All databases by name, this one too."""
    _kept: KeptAnswers = field(default_factory=lambda: KeptAnswers(8), repr=False)

    def read(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """What `work` reads, in one transaction; Unusable for what a file can be."""

        def shown(connection: sqlite3.Connection) -> _T:
            # Text that is no UTF-8 can be neither rendered nor sent.
            connection.text_factory = lambda data: data.decode("utf-8", "replace")
            connection.execute("PRAGMA query_only = ON")
            return work(connection)

        return self.database.read(shown, _WITHIN_S)

    def remembered(self, key: Hashable, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Read what several pages show: again only once the file has changed."""
        return self._kept.get(key, self.token(), lambda: self.read(work))

    @property
    def file(self) -> str:
        """The name of the file, for a command to paste: not where it lies."""
        return self.database.path.name if self.database.path is not None else ""

    def token(self) -> object:
        """Equal as long as nothing was written."""
        return self.database.token()


def readers(paths: Iterable[Path]) -> dict[str, Reader]:
    """A reader for each file, by name; each knows the others.

    >>> list(readers([Path("a/tuning.db"), Path("b/tuning.db")]))
    ['tuning.db', 'tuning.db 2']
    """
    found: dict[str, Reader] = {}
    for path in dict.fromkeys(paths):
        name, number = path.name, 2
        while name in found:
            name, number = f"{path.name} {number}", number + 1
        found[name] = Reader(name, Database(path, readonly=True), found)
    return found


def trouble(problem: Unusable) -> str:
    """What is wrong with a file, for the page: without its path.

    >>> trouble(Absent("there is no file /home/ada/tuning.db"))
    'There is no such file yet: it is made when something is tuned.'
    """
    for kind, text in _TROUBLES.items():
        if isinstance(problem, kind):
            return text
    return "It cannot be read just now. If that lasts, fuseplan db info puts it right, or says what is the matter."


_TROUBLES: dict[type[Unusable], str] = {
    Absent: "There is no such file yet: it is made when something is tuned.",
    Busy: "It is being written by another process, and has been for a while. Reload this page in a moment.",
    Damaged: "The file is damaged. fuseplan db check lists what is; the next write sets it aside and keeps its good rows.",
    NotOurs: "It is no tuning database, or one of another version of fuseplan.",
}
