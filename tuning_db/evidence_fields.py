"""Fields of evidence: what each may hold, and texts as evidence keeps them."""

from __future__ import annotations

from typing import Annotated

from fuseplan.wire.codec import Only

_LONGEST = 400
_LONGEST_SCRIPT = 20_000


def at_most(most: int) -> Only:
    """Of a list: so many of them."""
    return Only(lambda values: None if len(values) <= most else f"a list of at most {most}")


def one_of(words: tuple[str, ...]) -> Only:
    """Of a word."""
    return Only(lambda word: None if word in words else f"one of {', '.join(words)}")


def is_text(value: str) -> bool:
    """Whether evidence takes it: a short line that prints."""
    return len(value) <= _LONGEST and value.isprintable()


def _is_script(value: str) -> bool:
    return len(value) <= _LONGEST_SCRIPT and all(line.isprintable() for line in value.split("\n"))


Text = Annotated[str, Only(lambda value: None if is_text(value) else "a short line of text")]
Script = Annotated[str, Only(lambda value: None if _is_script(value) else "lines of a short script")]
Time = Annotated[
    float,
    Only(
        lambda value: None if type(value) is float and 0 <= value < 1e14 else "a time",
        lambda value: round(float(value), 3) + 0.0,
    ),
]
Count = Annotated[int, Only(lambda value: None if 0 <= value < 2**63 else "a count")]


def told(text: str) -> str:
    """A text as evidence keeps it: one short line that prints.

    >>> told("out of\\n memory")
    'out of memory'
    """
    line = "".join(letter for letter in " ".join(text.split()) if letter.isprintable())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def told_script(text: str) -> str:
    """A script as evidence keeps it: whole, or not at all.

    >>> told_script("import torch"), told_script("#" * 100_000)
    ('import torch', '')
    """
    return text if _is_script(text) else ""
