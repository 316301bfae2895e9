"""What a run of tuning says while it works. A person sees bars, a log gets lines, a program may listen; else it is silent."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

from fuseplan.durations import spelled
from fuseplan.graph.words import counted

SILENT_S = 30.0
"""After so long without a word, a program that nobody watches says where it is, …"""
LOOK_S = 5.0
"""… or so much later."""
MOST_NAMES = 2
"""Of what a stage waits for, so many names have room on a line."""


class Progress:
    """Hears of each stage of each program: what is done, how far, and what is known so far. Several threads may tell it.

    It says nothing of what it hears: whoever does is a class of its own, with those methods that have something to say.
    """

    def begin(self, total: int) -> None:
        """So many programs are to be tuned; one counts twice that is tuned for two launches."""

    def left(self, seconds: float) -> None:
        """About so many seconds are left of all of it."""

    def on(self, device: str) -> Progress:
        """Who hears of what is done on one device, where several work at once."""
        return self

    def end(self, text: str) -> None:
        """One of them is done; `text` says what became of it."""

    def stage(self, program: str, text: str, total: int) -> None:
        """A stage of `total` steps begins."""

    def advance(self, text: str = "") -> None:
        """One step of the stage is done; `text` says on what."""

    def waits(self, names: Sequence[str]) -> None:
        """The candidates that the stage still waits for, where they have names of their own."""

    def best(self, text: str) -> None:
        """What is known by now of the program: its best plan so far against the default, and how long it may still take."""

    def note(self, text: str) -> None:
        """One line worth keeping."""


class Silent(Progress):
    """Hears, and says nothing."""


class Lines(Progress):
    """Plain lines for a log: where each program stands when that changes, what became of it, and what went wrong.

    >>> lines = Lines(print)
    >>> lines.begin(2)
    2 programs to tune
    >>> for text in ("timing regions", "timing regions", "racing whole plans"):
    ...     lines.on("cpu").stage("gelu", text, 4)
    gelu: timing regions
    gelu: racing whole plans
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def begin(self, total: int) -> None:
        """How many there are."""
        self.note(f"{counted(total, 'program')} to tune")

    def left(self, seconds: float) -> None:
        """How long it will take."""
        if seconds >= 1:
            self.note(f"about {spelled(seconds)} left")

    def end(self, text: str) -> None:
        """What became of a program."""
        self.note(text)

    def stage(self, program: str, text: str, total: int) -> None:
        """A stage is a line when a program first comes to it."""
        with self._lock:
            new = (program, text) not in self._said
            self._said.add((program, text))
        if new:
            self.note(f"{program}: {text}")

    def note(self, text: str) -> None:
        """One line."""
        self._say(_plain(text))


class Brief(Progress):
    """Lines on stderr for a program that is tuned where nobody watches: as it begins, where it is now and then, and what became of it.

    It takes minutes in which a process would say nothing else.
    """

    def __init__(self, effort: str, about: str) -> None:
        """`about`: how long it takes, about, in words."""
        self._about = f"effort {effort}: {about}"
        self._began: float | None = None
        self._said = 0.0
        self._at = ""
        self._lock = threading.Lock()

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Speak up meanwhile though nothing is heard: the compilation of one plan may take minutes."""
        over = threading.Event()

        def look() -> None:
            while not over.wait(LOOK_S):
                self.advance()

        threading.Thread(target=look, name="fuseplan progress", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def stage(self, program: str, text: str, total: int) -> None:
        """The first one is the beginning; of the others one is told of where nothing was for long."""
        self._at = f"{program}: {text}"
        if self._began is None:
            self._began = self._said = monotonic()
            self._say(f"tuning {program}, {self._about}")
        else:
            self.advance("")

    def advance(self, text: str = "") -> None:
        """One more job is done; nobody who waits wants to know what of."""
        with self._lock:
            now = monotonic()
            if self._began is not None and now - self._said >= SILENT_S:
                self._said = now
                self._say(f"{self._at}, after {spelled(now - self._began)}")

    def end(self, text: str) -> None:
        """What became of it."""
        self._began = None
        self._say(text)

    def _say(self, text: str) -> None:
        if sys.stderr is None:  # as in a service
            return
        with suppress(OSError, ValueError):  # nobody reads it, or the disk is full: no reason not to go on
            sys.stderr.write(f"fuseplan: {_plain(text)}\n")
            sys.stderr.flush()


class Bar(Progress):
    """Bars of rich's on stderr: one for all programs, and a line for each device with the program that is at work there."""

    def __init__(self, bars: Any) -> None:
        self.bars = bars
        self._all: Any = None
        self._lines: dict[str, BarLine] = {}
        self._lock = threading.RLock()

    def begin(self, total: int) -> None:
        """Show how many programs there are."""
        self._all = self.bars.add_task("programs tuned", total=total, what="")

    def left(self, seconds: float) -> None:
        """Show it beside the bar of all programs."""
        if self._all is not None:
            self.bars.update(self._all, what=f"about {spelled(seconds)} left" if seconds >= 1 else "")

    def on(self, device: str) -> Progress:
        """A line of its own for each device."""
        with self._lock:
            return self._lines.setdefault(device, BarLine(self, device))

    def end(self, text: str) -> None:
        """Print what became of a program, and count it."""
        with self._lock:
            only = self._lines.get("")
        if only is not None:
            only.clear()
        self.note(text)
        if self._all is not None:
            self.bars.update(self._all, advance=1)

    def stage(self, program: str, text: str, total: int) -> None:
        """Whoever has but one device need not name it."""
        self.on("").stage(program, text, total)

    def advance(self, text: str = "") -> None:
        """One step on the only device."""
        self.on("").advance(text)

    def waits(self, names: Sequence[str]) -> None:
        """Of the stage on the only device."""
        self.on("").waits(names)

    def best(self, text: str) -> None:
        """Of the program on the only device."""
        self.on("").best(text)

    def note(self, text: str) -> None:
        """Print a line above the bars."""
        self.bars.console.print(_plain(text), markup=False, highlight=False)


class BarLine(Progress):
    """The line of one device."""

    def __init__(self, bar: Bar, device: str) -> None:
        self._bar, self._device = bar, device
        self._stage: Any = None
        self._described = self._best = ""

    def end(self, text: str) -> None:
        """The program is done: its line goes, and what became of it stays."""
        self.clear()
        self._bar.end(text)

    def clear(self) -> None:
        """Nothing is at work here."""
        self._forget()
        self._best = ""

    def stage(self, program: str, text: str, total: int) -> None:
        """Put the new stage in place of the last."""
        from rich.markup import escape

        self._forget()
        where = f"{self._device} " if self._device else ""
        self._described = escape(_plain(f"  {where}{program}: {text}"))
        self._stage = self._bar.bars.add_task(self._described, total=total, what=self._best)

    def advance(self, text: str = "") -> None:
        """Move the bar, and name what went wrong."""
        if self._stage is not None:
            self._bar.bars.update(self._stage, advance=1, what=_plain(text)[:60] or self._best)

    def waits(self, names: Sequence[str]) -> None:
        """Name those that take long, once the others are done."""
        from rich.markup import escape

        if self._stage is not None:
            left = f": {escape(_plain(', '.join(names)))}" if 0 < len(names) <= MOST_NAMES else ""
            self._bar.bars.update(self._stage, description=self._described + left)

    def best(self, text: str) -> None:
        """Show it at the end of the line."""
        self._best = _plain(text)
        if self._stage is not None:
            self._bar.bars.update(self._stage, what=self._best)

    def note(self, text: str) -> None:
        """Print a line above the bars."""
        self._bar.note(text)

    def _forget(self) -> None:
        if self._stage is not None:
            self._bar.bars.remove_task(self._stage)
            self._stage = None


@contextmanager
def bar() -> Iterator[Bar]:
    """Bars for as long as the context lasts; in a notebook they are drawn as such, and where nobody watches they are not."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Rich

    columns = (
        TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[what]}", markup=False),
    )  # fmt: skip
    with Rich(*columns, console=Console(stderr=True)) as shown:
        yield Bar(shown)


@contextmanager
def shown(progress: Progress | None, unwatched: Progress | None = None) -> Iterator[Progress]:
    """The caller's progress; without one, bars where a person is watching, else `unwatched`, or nothing."""
    if progress is not None:
        yield progress
    elif not watched():
        yield unwatched or Silent()
    else:
        with bar() as bars:
            yield bars


def watched() -> bool:
    """Whether stderr is a terminal, or this is a notebook."""
    from rich.console import Console

    console = Console(stderr=True)
    return console.is_terminal or console.is_jupyter


def _plain(text: str) -> str:
    """Text without what could steer a terminal: names and messages may come from others."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
