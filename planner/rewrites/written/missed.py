"""Why a softmax is not the middle of attention that can be written as one call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch.fx import Node


class MissedError(Exception):
    """Something looks like attention and is not, or cannot be written as one call of it; the message says why."""


@dataclass(frozen=True)
class MissedSite:
    """A softmax that is no site, with the reason."""

    softmax: Node
    reason: str


@contextmanager
def noted(missed: list[MissedError]) -> Iterator[None]:
    """Go on behind the block where it finds that something does not match, and note why."""
    try:
        yield
    except MissedError as error:
        missed.append(error)
