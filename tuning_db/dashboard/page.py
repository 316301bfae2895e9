"""What a page is: a name, what may be asked of it, how it is loaded, and the template that shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from fuseplan.tuning_db.dashboard.ask import Ask, Param
from fuseplan.tuning_db.dashboard.reader import Reader


def _once(reader: Reader, ask: Ask) -> Iterable[Mapping[str, str]]:
    return [{}]


@dataclass(frozen=True)
class Page:
    """One kind of page. It is served at /NAME, the overview at / as well."""

    name: str
    title: str
    template: str
    load: Callable[[Reader, Ask], object]
    """Everything that the template shows, as a frozen dataclass."""
    params: tuple[Param, ...] = ()
    nav: str = ""
    """What it is called in the navigation; nothing for a page that is only reached from another."""
    exports: Callable[[Reader, Ask], Iterable[Mapping[str, str]]] = _once
    """The parameters of each copy of the page in an exported file."""
    live: bool = False
    """Whether it tells of now: it is made anew for everyone who asks, though the database be as it was."""
    filtered: bool = True
    """Whether the filters of the bar mean anything to it."""

    @property
    def own(self) -> frozenset[str]:
        """What may be asked of it alone: the filters leave that as it is, but for the number of a page."""
        return frozenset(param.name for param in self.params) - {"page"}

    @property
    def path(self) -> str:
        """Where it is served."""
        return "/" if self.name == "overview" else f"/{self.name}"
