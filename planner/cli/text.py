"""How verbs print what others may have written."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from fuseplan.graph.words import printable


def misplaced(words: Sequence[str]) -> list[str]:
    """A line for whoever gave an option of this verb behind the script, whose it is there; none where nobody did."""
    own = {name for option in click.get_current_context().command.params for name in option.opts}
    found = next((word for word in words[1:] if word.split("=")[0] in own), None)
    if found is None:
        return []
    return [f"  {printable(found)} stands behind the script, whose it is: to be fuseplan's it has to stand before it"]


@contextmanager
def plain_warnings() -> Iterator[None]:
    """What fuseplan itself warns of is one line, as its errors are. A script that a verb runs has its own warnings as ever."""
    show = warnings.showwarning

    def plain(message: Warning | str, *where: Any, **more: Any) -> None:
        mine, _, text = str(message).partition("fuseplan: ")
        if mine or not text:
            show(message, *where, **more)
        else:
            click.echo(f"Warning: {printable(' '.join(text.split()))}", err=True)

    warnings.showwarning = plain
    try:
        yield
    finally:
        if warnings.showwarning is plain:
            warnings.showwarning = show
