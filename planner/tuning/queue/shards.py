"""Shards: the parts into which the programs of a run are split, so that each is tuned on a machine that knows nothing of the others.

A split is a pure function of the programs' predicted work: no clock, no device, no database and no order of files has a say in it,
and all sums are of whole numbers. Programs with equal layers are a *family*, and stay together as long as that does not make the
longest shard much longer than it has to be.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from fuseplan.errors import OptionError
from fuseplan.graph.words import counted
from fuseplan.tuning.queue.predicted_work import TuningWork

MOST_SHARDS = 10_000
NEAR = 4, 3
"""So many times as long as the least that it could take, four thirds, may the longest shard be for families to stay as they are."""
HALVINGS = 4
"""How often families are cut into pieces of half the size, before each program is a piece of its own."""
_TEXT = re.compile(r"(\d{1,9})/(\d{1,9})", re.ASCII)


@dataclass(frozen=True)
class Shard:
    """One of so many shards, counted from 1.

    >>> Shard.named("3/16"), str(Shard(3, 16))
    (Shard(number=3, of=16), '3/16')
    """

    number: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.of <= MOST_SHARDS:
            raise OptionError(f"there are 1 to {MOST_SHARDS:,} shards, not {self.of:,}: name one as in 3/16")
        if not 1 <= self.number <= self.of:
            raise OptionError(
                f"shards of {self.of:,} are 1/{self.of} to {self.of}/{self.of}, not {self.number}/{self.of}"
            )

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @staticmethod
    def named(text: str | tuple[int, int]) -> Shard:
        """The shard that a text such as 3/16 names, or a pair of numbers; OptionError for anything else."""
        if isinstance(text, tuple) and [type(one) for one in text] == [int, int]:
            return Shard(*text)
        match = _TEXT.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None:
            raise OptionError(
                f"a shard is named by its number and how many there are, as in 3/16, not {str(text)[:40]!r}"
            )
        return Shard(int(match[1]), int(match[2]))


@dataclass(frozen=True)
class ShardWork:
    """What one shard holds."""

    programs: tuple[int, ...]
    """Where each of its programs stands among those that were split, from the first."""
    ms: int
    """Its predicted work: layers that several of its programs have are measured once."""


@dataclass(frozen=True)
class Shards:
    """All shards of some programs."""

    shards: tuple[ShardWork, ...]
    key: str
    """The beginning of a digest of which program is where: equal on all machines that have split the same."""

    @property
    def longest_ms(self) -> int:
        """The work of the longest shard, for which all others wait."""
        return max(shard.ms for shard in self.shards)


@dataclass(frozen=True)
class ChosenShard:
    """One shard with the split that it is of."""

    shard: Shard
    split: Shards

    @property
    def work(self) -> ShardWork:
        """What it holds."""
        return self.split.shards[self.shard.number - 1]

    @property
    def programs(self) -> int:
        """How many programs were split."""
        return sum(len(one.programs) for one in self.split.shards)

    def __str__(self) -> str:
        programs = counted(self.programs, "program")
        return f"shard {self.shard} of split {self.split.key}: {len(self.work.programs):,} of {programs}"


def split(works: Sequence[TuningWork], count: int) -> Shards:
    """Split programs, each of another key, into `count` shards.

    The longest takes at most 4/3 of what the longest has to take at least, or else what a list of single programs would bring it to:
    the mean of all shards and one program more.

    >>> works = [TuningWork(name, 1000, {layer: 3000}) for name, layer in (("a", "x"), ("b", "y"), ("c", "x"), ("d", "y"))]
    >>> [(shard.programs, shard.ms) for shard in split(works, 2).shards]
    [((0, 2), 5000), ((1, 3), 5000)]
    """
    order = sorted(range(len(works)), key=lambda i: works[i].key)
    families = _families([works[i] for i in order])
    least = _least_ms(works, count)
    best: list[_Pile] | None = None
    for most_ms in (*(least >> halving for halving in range(HALVINGS)), 0):
        pieces = [piece for family in families for piece in _pieces(family, most_ms)]
        found = _piled(pieces, count)
        if best is None or _longest(found) < _longest(best):
            best = found
        if _longest(best) * NEAR[1] <= least * NEAR[0]:
            break
    place = {works[i].key: i for i in order}
    shards = [ShardWork(tuple(sorted(place[work.key] for work in pile.works)), pile.ms) for pile in best or ()]
    return Shards(tuple(shards), _key_of(works, shards))


@dataclass
class _Pile:
    """Programs that are tuned one after the other, and what that takes."""

    works: list[TuningWork] = field(default_factory=list)
    known: dict[str, int] = field(default_factory=dict)
    """The stretches of its programs."""
    ms: int = 0

    def with_more(self, own_ms: int, stretches: Mapping[str, int]) -> int:
        """What it would take with so much more work."""
        return self.ms + own_ms + sum(ms for digest, ms in stretches.items() if digest not in self.known)

    def add(self, works: Iterable[TuningWork]) -> None:
        """Put programs on it."""
        for work in works:
            self.ms = self.with_more(work.own_ms, work.stretches)
            self.known.update(work.stretches)
            self.works.append(work)


def _families(works: Iterable[TuningWork]) -> list[list[TuningWork]]:
    """Programs that have half of their stretches, by work, from the programs before them; the longest come first."""
    families: list[list[TuningWork]] = []
    having: dict[str, list[int]] = {}
    """The families that have a stretch."""
    for work in sorted(works, key=lambda work: (-work.alone_ms, work.key)):
        shared: dict[int, int] = {}
        for digest, ms in work.stretches.items():
            for family in having.get(digest, ()):
                shared[family] = shared.get(family, 0) + ms
        mine = max(shared, key=lambda family: (shared[family], -family), default=-1)
        if mine < 0 or 2 * shared[mine] < sum(work.stretches.values()):
            mine = len(families)
            families.append([])
        families[mine].append(work)
        for digest in work.stretches:
            there = having.setdefault(digest, [])
            if mine not in there:
                there.append(mine)
    return families


def _pieces(family: Iterable[TuningWork], most_ms: int) -> Iterator[_Pile]:
    """A family cut into pieces of at most so much work, or of one program."""
    piece = _Pile()
    for work in family:
        if piece.works and piece.with_more(work.own_ms, work.stretches) > most_ms:
            yield piece
            piece = _Pile()
        piece.add([work])
    yield piece


class _Piles:
    """Piles of which one for a piece is found without asking all: only those that have a stretch of it save something by it."""

    def __init__(self, count: int) -> None:
        self.piles = [_Pile() for _ in range(count)]
        self._having: dict[str, list[int]] = {}
        """The piles that have a stretch."""
        self._lowest = [(0, i) for i in range(count)]
        """A heap of how high piles are, and of how high they were before."""

    def lowest(self, piece: _Pile) -> int:
        """Which pile is the lowest with this piece; of equal ones the first."""
        saved: dict[int, int] = {}
        for digest, ms in piece.known.items():
            for i in self._having.get(digest, ()):
                saved[i] = saved.get(i, 0) + ms
        while self.piles[self._lowest[0][1]].ms != self._lowest[0][0]:
            heappop(self._lowest)
        return min((self._lowest[0][1], *saved), key=lambda i: (self.piles[i].ms - saved.get(i, 0), i))

    def add(self, i: int, piece: _Pile) -> None:
        """Put a piece on a pile."""
        pile = self.piles[i]
        for digest in piece.known:
            if digest not in pile.known:
                self._having.setdefault(digest, []).append(i)
        pile.add(piece.works)
        heappush(self._lowest, (pile.ms, i))


def _piled(pieces: Iterable[_Pile], count: int) -> list[_Pile]:
    """The pieces on so many piles: the longest first, each where it makes the lowest pile."""
    found = _Piles(count)
    for piece in sorted(pieces, key=lambda piece: (-piece.ms, piece.works[0].key)):
        found.add(found.lowest(piece), piece)
    return found.piles


def _least_ms(works: Sequence[TuningWork], count: int) -> int:
    """What the longest shard takes at least: the longest program alone, or all of it as if nothing were measured twice."""
    together = _Pile()
    together.add(works)
    return max([-(-together.ms // count), *(work.alone_ms for work in works)])


def _longest(piles: Iterable[_Pile]) -> int:
    return max(pile.ms for pile in piles)


def _key_of(works: Sequence[TuningWork], shards: Iterable[ShardWork]) -> str:
    lines = (" ".join(sorted(works[i].key for i in shard.programs)) for shard in shards)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
