"""How messages count, wherever they are made: this package is below all that has any."""

from __future__ import annotations

from collections.abc import Sequence

_RUNS = 3
"""So many runs of numbers are spelled out."""


def counted(many: int, what: str) -> str:
    """So many of something; `what` is the word for one of it.

    >>> counted(1, "program"), counted(2000, "good row"), counted(2, "process")
    ('1 program', '2,000 good rows', '2 processes')
    """
    ending = "" if many == 1 else "es" if what.endswith("s") else "s"
    return f"{many:,} {what}{ending}"


def printable(text: str) -> str:
    """Text without what could steer a terminal: names and messages may come from others.

    >>> print(printable("\\x1b[2Jgone"))
    \\x1b[2Jgone
    """
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def runs_of(numbers: Sequence[int]) -> str:
    """Numbers in few words.

    >>> runs_of([0, 1, 2, 3, 7]), runs_of([0, 2, 4, 6, 8])
    ('0-3+7', '0 and 4 more')
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    if len(runs) > _RUNS:
        return f"{numbers[0]} and {len(numbers) - 1} more"
    return "+".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
