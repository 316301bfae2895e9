"""What a run of tuning says while it works. A person sees a bar; a program may listen; by default nobody does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Progress(Protocol):
    """Hears of each stage of each program: what is done, how far, and what is known so far."""

    def begin(self, total: int) -> None:
        """So many programs are to be tuned; one counts twice that is tuned for two launches."""
        ...

    def end(self, text: str) -> None:
        """One of them is done; `text` says what became of it."""
        ...

    def stage(self, program: str, text: str, total: int) -> None:
        """A stage of `total` steps begins."""
        ...

    def advance(self, text: str = "") -> None:
        """One step of the stage is done; `text` says on what."""
        ...

    def note(self, text: str) -> None:
        """One line worth keeping."""
        ...


class Silent:
    """Hears, and says nothing."""

    def begin(self, total: int) -> None:
        """Say nothing."""

    def end(self, text: str) -> None:
        """Say nothing."""

    def stage(self, program: str, text: str, total: int) -> None:
        """Say nothing."""

    def advance(self, text: str = "") -> None:
        """Say nothing."""

    def note(self, text: str) -> None:
        """Say nothing."""


class Bar:
    """Two bars of rich's on stderr: how many programs are done, and what is measured of the one at hand, how far, how long."""

    def __init__(self, bars: Any) -> None:
        self._bars = bars
        self._all: Any = None
        self._stage: Any = None

    def begin(self, total: int) -> None:
        """Show how many programs there are."""
        self._all = self._bars.add_task("programs tuned", total=total, what="")

    def end(self, text: str) -> None:
        """Print what became of a program, and count it."""
        self._forget()
        self.note(text)
        if self._all is not None:
            self._bars.update(self._all, advance=1)

    def stage(self, program: str, text: str, total: int) -> None:
        """Put the new stage in place of the last."""
        from rich.markup import escape

        self._forget()
        self._stage = self._bars.add_task(escape(_plain(f"{program}: {text}")), total=total, what="")

    def advance(self, text: str = "") -> None:
        """Move the bar, and name what it stands at."""
        self._bars.update(self._stage, advance=1, what=_plain(text)[:60])

    def note(self, text: str) -> None:
        """Print a line above the bars."""
        self._bars.console.print(_plain(text), markup=False, highlight=False)

    def _forget(self) -> None:
        if self._stage is not None:
            self._bars.remove_task(self._stage)
            self._stage = None


@contextmanager
def bar() -> Iterator[Bar]:
    """Bars for as long as the context lasts; in a notebook they are drawn as such, and where nobody watches they are not."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Rich

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[what]}", markup=False),
    )  # fmt: skip
    with Rich(*columns, console=Console(stderr=True)) as shown:
        yield Bar(shown)


def _plain(text: str) -> str:
    """Text without what could steer a terminal: names and messages may come from others."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
