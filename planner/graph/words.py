"""How messages count, wherever they are made: this package is below all that has any."""

from __future__ import annotations


def counted(many: int, what: str) -> str:
    """So many of something; `what` is the word for one of it.

    >>> counted(1, "program"), counted(2000, "good row")
    ('1 program', '2,000 good rows')
    """
    return f"{many:,} {what}{'s' * (many != 1)}"
