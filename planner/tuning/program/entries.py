"""Entries of one launch in a race, by the names of the race and by their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.jobs import OutcomeRow
from fuseplan.tuning_db.launches import of_launch


class LaunchEntries:
    """The entries of one launch, in the order in which they were found. Where another launch races beside it, one of the two is
    `called` by its launch: no two entries of a race have one name.
    """

    def __init__(self, launch: str, *, called: bool) -> None:
        self.launch, self.called = launch, called
        self._own: dict[str, RaceEntry] = {}
        """What entries are by their own names, by what they are called in a race."""

    def enter(self, entries: Sequence[RaceEntry]) -> list[RaceEntry]:
        """Add entries; return them as a race knows them."""
        names = [of_launch(entry.name, self.launch) if self.called else entry.name for entry in entries]
        self._own |= dict(zip(names, entries, strict=True))
        return [replace(entry, name=name) for name, entry in zip(names, entries, strict=True)]

    def __contains__(self, name: str) -> bool:
        return name in self._own

    def __iter__(self) -> Iterator[tuple[str, RaceEntry]]:
        """What each is called in a race, with the entry by its own name."""
        yield from self._own.items()

    @property
    def own(self) -> list[RaceEntry]:
        """The entries by their own names."""
        return list(self._own.values())

    @property
    def raced(self) -> list[RaceEntry]:
        """The entries as a race knows them."""
        return [replace(entry, name=name) for name, entry in self._own.items()]

    def own_of(self, name: str) -> RaceEntry:
        """The entry that is called so in a race, by its own name."""
        return self._own[name]

    def of(self, entries: Sequence[RaceEntry]) -> list[RaceEntry]:
        """Those of `entries` that are of this launch, in the order in which they were found."""
        given = {entry.name: entry for entry in entries}
        return [given[name] for name in self._own if name in given]

    def own_rows(self, rows: Mapping[str, OutcomeRow]) -> dict[str, OutcomeRow]:
        """What came of the entries, by their own names."""
        found = {entry.name: rows.get(name) for name, entry in self._own.items()}
        return {name: replace(row, name=name) for name, row in found.items() if row is not None}
