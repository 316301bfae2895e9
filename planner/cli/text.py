"""How verbs print what others may have written."""

from __future__ import annotations


def printable(text: str) -> str:
    """Text without what could steer a terminal: names and messages may come from others.

    >>> print(printable("\\x1b[2Jgone"))
    \\x1b[2Jgone
    """
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
