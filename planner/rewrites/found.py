"""What is told of a site to whoever chooses its way in another process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fuseplan.wire.codec import UNLESS_DEFAULT


@dataclass(frozen=True)
class SiteFound:
    """One site of a program: the ways that are legal for it here, why others are not, and which is to be tried first."""

    kind: str
    number: int
    digest: str
    """Of what was matched."""
    group: str
    """Equal sites, such as those of twelve layers, share it: they are one decision."""
    ways: tuple[str, ...] = ()
    """Those that are legal here, beside the one in which it is."""
    refused: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Of the other ways, why not."""
    preferred: str | None = None
    """The way that is tried first, and that a program that is cut has; None where that is as it is, or
    where a site of another kind comes before it."""
    rivals: tuple[tuple[str, str], ...] = ()
    """The ways that are worth a race of their own, each after a word that sites of several groups may share."""
    excludes: tuple[tuple[str, int], ...] = ()
    """The sites of other kinds, each by kind and number, that cannot be rewritten beside this one."""
    about: str = ""
    """What is known of it, in a few words."""
    doubtful: bool = True
    """Whether what is preferred may turn out to be slower."""
    behind: str | None = None
    """The way that would be preferred if no site of another kind came before it."""
    sparing: tuple[str, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    """The ways that take less memory and more time, the one that takes the least first."""

    @property
    def named(self) -> tuple[str, int]:
        """What a plan calls it."""
        return self.kind, self.number


@dataclass(frozen=True)
class MissedPlaces:
    """What looks like sites of a kind and is none, for one reason."""

    kind: str
    reason: str
    nodes: tuple[str, ...]
    """Their names in the graph."""
