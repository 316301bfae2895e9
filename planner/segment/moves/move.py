"""Moves as data: what a plan records of how it came about, what a person reads, and what both are read back from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any

from fuseplan.errors import PlanError
from fuseplan.graph import Graph
from fuseplan.segment.moves.kind import Count, Step, ops_text, runner_text
from fuseplan.segment.moves.kinds import MOVES, kind_named
from fuseplan.segment.moves.shape import tidy
from fuseplan.segment.region import Segmentation
from fuseplan.wire import codec
from fuseplan.wire.codec import UNLESS_DEFAULT, CodecError, Only

NOTE = "note"
"""The name of what is no move but words: a line of an older database that says less than a move does."""
MOST_TEXT = 2**20
"""Characters of the moves of one plan, as they are stored."""

_LINE = re.compile(
    r"(?:(?P<role>inference|joint|forward|backward): )?(?:(?P<times>[1-9]\d{0,6}) × )?(?:(?P<change>[+-]\d{1,15}\.\d) µs: )?(?P<words>.*)",
    re.DOTALL,
)
_ALIKE = ", and the like"
_Change = Annotated[float, Only(lambda us: None if type(us) is float and abs(us) < 1e14 else "a change of a time")]


@dataclass(frozen=True)
class Move(Step):
    """One step from a segmentation to another, with where it was made and what it was worth.

    >>> move = Move("evict", (7,), target="aten.view", role="forward", times=12, change_us=-3.5)
    >>> move.line
    'forward: 12 × -3.5 µs: evict op 7 (aten.view), and the like'
    >>> Move.parse(move.line) == move
    True
    >>> Move("run", region=3, executor="nvfuser").text
    'run the region at op 3 under nvfuser'
    """

    target: str = field(default="", metadata=UNLESS_DEFAULT)
    """What the first of the ops calls, for people."""
    role: str = field(default="", metadata=UNLESS_DEFAULT)
    """Of the graph that it was made in, where a program has several."""
    times: Count = field(default=1, metadata=UNLESS_DEFAULT)
    """How often it was made: in so many equal layers, of which it stands in the first."""
    change_us: _Change | None = field(default=None, metadata=UNLESS_DEFAULT)
    """By how much it changes the predicted time of the program, each time; less than nothing is a gain."""
    words: str = field(default="", metadata=UNLESS_DEFAULT)
    """Of a note, all that is known."""

    @property
    def text(self) -> str:
        """The move in a few words."""
        if self.name == NOTE:
            return self.words
        kind = kind_named(self.name)
        if kind is not None:
            return kind.text(self, self.target)
        ops = f" {ops_text(self.ops, self.target)}" if self.ops else ""
        region = "" if self.region is None else f" in the region at op {self.region}"
        return f"{self.name}{ops}{region}{f' under {runner_text(self)}' if self.executor else ''}"

    @property
    def total_us(self) -> float | None:
        """By how much it changes the predicted time wherever it was made, together."""
        return None if self.change_us is None else self.times * self.change_us

    @property
    def line(self) -> str:
        """The move with its graph, how often it was made, and what it was worth."""
        role = f"{self.role}: " if self.role else ""
        often = "" if self.times == 1 else f"{self.times} × "
        worth = "" if self.change_us is None else f"{self.change_us:+.1f} µs: "
        return f"{role}{often}{worth}{self.text}{'' if self.times == 1 else _ALIKE}"

    @classmethod
    def parse(cls, line: str) -> Move:
        """The move that has this `line`, or this `text`; PlanError where none has."""
        known, words = _prefix(line)
        for kind in MOVES:
            found = kind.read(words)
            if found is not None:
                move = cls(**vars(found[0]), target=found[1], **known)
                if move.line == line:
                    return move
        raise PlanError(f"no move reads {line[:80]!r}")

    @classmethod
    def noted(cls, line: str) -> Move:
        """The move that has this line, and where none has, a note of it.

        >>> Move.noted("forward: +2.0 µs: merge op 7 (aten.t) and 2 more up into the region at op 3").change_us
        2.0
        """
        try:
            return cls.parse(line)
        except PlanError:
            known, words = _prefix(line)
            note = cls(NOTE, words=words, **known)
            return note if note.line == line else cls(NOTE, words=line)


def _prefix(line: str) -> tuple[dict[str, Any], str]:
    """What a line says of a move before it says which one, and the words for that."""
    match = _LINE.fullmatch(line)
    assert match is not None, "every text fits"
    role, times, change, words = match.group("role", "times", "change", "words")
    known = {
        "role": role or "",
        "times": int(times or 1),
        "change_us": None if change is None else float(change),
    }
    return known, words.removesuffix(_ALIKE) if times else words


def apply(graph: Graph, segmentation: Segmentation, move: Move) -> Segmentation:
    """Return the segmentation after `move`, or raise PlanError where it is refused.

    >>> apply(Graph((), (), ()), Segmentation(), Move("evict", ops=(7,)))
    Traceback (most recent call last):
        ...
    fuseplan.errors.PlanError: evict op 7: there is no op 7; the graph has 0
    """
    kind = kind_named(move.name)
    if kind is None:
        raise PlanError(f"there is no move {move.name!r}; known are {', '.join(one.name for one in MOVES)}")
    try:
        return kind.apply(graph, tidy(graph, segmentation), move)
    except PlanError as error:
        raise PlanError(f"{move.text}: {error}") from None


# Moves as they are stored: a JSON list, one object a move, without what says nothing


def to_json(moves: Iterable[Move]) -> str:
    """Moves as `from_json` reads them; of too many for a database, the first, and a note of how many are left out.

    >>> to_json([Move("evict", (7,), role="forward")])
    '[{"name":"evict","ops":[7],"role":"forward"}]'
    """
    kept = list(moves)
    texts = [json.dumps(codec.plain(move), separators=(",", ":")) for move in kept]
    if sum(len(text) + 1 for text in texts) >= MOST_TEXT:
        size = fitting = 0
        while size + len(texts[fitting]) < MOST_TEXT - 200:
            size += len(texts[fitting]) + 1
            fitting += 1
        return to_json([*kept[:fitting], Move(NOTE, words=f"and {len(kept) - fitting} more")])
    return f"[{','.join(texts)}]"


def from_json(text: str) -> tuple[Move, ...]:
    """What `to_json` wrote; PlanError for anything else.

    >>> from_json('[{"name":"evict","ops":[7]}]')[0].text
    'evict op 7'
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise PlanError(f"moves are no JSON: {text[:80]!r}") from None
    if not isinstance(found, list):
        raise PlanError("moves are no list")
    try:
        return tuple(codec.read(Move, one) for one in found)
    except CodecError as error:
        raise PlanError(str(error)) from None
