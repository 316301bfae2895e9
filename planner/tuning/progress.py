"""What a run of tuning says while it works. A person sees a bar; a program may listen; by default nobody does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Progress(Protocol):
    """Hears of each stage of each program: what is done, how far, and what is known so far."""

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

    def stage(self, program: str, text: str, total: int) -> None:
        """Say nothing."""

    def advance(self, text: str = "") -> None:
        """Say nothing."""

    def note(self, text: str) -> None:
        """Say nothing."""


class Bar:
    """A bar of rich's on stderr: the stage, how far it is, and how long it has taken."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._task: Any = None

    def stage(self, program: str, text: str, total: int) -> None:
        """Begin a new line for the stage."""
        self._finish()
        self._task = self._bar.add_task(f"{program}: {text}", total=total, what="")

    def advance(self, text: str = "") -> None:
        """Move the bar, and name what it stands at."""
        self._bar.update(self._task, advance=1, what=text[:60])

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self._bar.console.print(text, markup=False, highlight=False)

    def _finish(self) -> None:
        if self._task is not None:
            self._bar.update(self._task, total=self._bar.tasks[self._task].completed, what="")


@contextmanager
def bar() -> Iterator[Bar]:
    """A bar for as long as the context lasts; in a notebook it is drawn as one, and where nobody watches it is not."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Rich

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[what]}"),
    )  # fmt: skip
    with Rich(*columns, console=Console(stderr=True)) as shown:
        yield Bar(shown)
