"""Decisions about moves: was a cut predicted to be faster or slower than the one that a move made it from, and was it so.

Measured times within the tie band make a decision immaterial. A decision is *unsure* where the interval of the difference
holds both signs, or where a region that is in one cut alone is unlike what was learnt from. What is left is right or wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fuseplan.models.evaluation.choices import Predicted, cut_us
from fuseplan.models.evaluation.data import Data, Decision
from fuseplan.models.learned import Gap

TIE = 0.01
KINDS = {
    "peel-head": "keep or peel",
    "peel-tail": "keep or peel",
    "peel-both": "keep or peel",
    "evict": "evict or keep",
    "merge": "merge or not",
    "split": "merge or not",
    "recompute": "recompute or not",
    "alone": "fuse or not",
}


@dataclass(frozen=True, slots=True)
class Moved:
    """One decision."""

    kind: str
    truth: float
    """The log of the measured time after over that before."""
    guess: float
    decided: bool

    @property
    def verdict(self) -> str:
        """Immaterial, unsure, right or wrong."""
        if abs(self.truth) <= TIE:
            return "immaterial"
        return "unsure" if not self.decided else self.forced

    @property
    def forced(self) -> str:
        """Right or wrong, if one has to say."""
        return "right" if self.truth * self.guess > 0 else "wrong"


def moved(
    data: Data,
    decisions: Iterable[Decision],
    predicted: Predicted,
    gap: Callable[[Sequence[int], Sequence[int]], Gap],
    unsure: Callable[[int], bool],
) -> list[Moved]:
    """All decisions about moves in some islands; regions run as is predicted best."""
    found = []
    for decision in decisions:
        cuts = {cut.name: cut for cut in decision.cuts}
        for cut in decision.cuts:
            kind = KINDS.get(cut.name.split()[0])
            base = cuts.get(cut.base or ("maximal" if cut.name == "alone" else ""))
            if kind is None or base is None:
                continue
            after, before = cut_us(data, cut.units), cut_us(data, base.units)
            if min(after, before) <= 0:
                continue
            ways = [[_best(data, key, predicted) for key in one.units] for one in (cut, base)]
            apart = set(ways[0]) ^ set(ways[1])
            seen = gap(*ways)
            sure = seen.decided and not any(unsure(row) for row in apart)
            found.append(Moved(kind, math.log(after / before), seen.ratio, sure))
    return found


def table(found: Sequence[Moved]) -> dict[str, Mapping[str, float | int]]:
    """Counts by kind of move, and how many are right: of those decided, and of all when forced to say."""
    rows: dict[str, Mapping[str, float | int]] = {}
    for kind in sorted({one.kind for one in found}):
        mine = [one for one in found if one.kind == kind]
        verdicts = [one.verdict for one in mine]
        forced = [one.forced for one in mine if one.verdict != "immaterial"]
        counts = {name: verdicts.count(name) for name in ("right", "wrong", "unsure", "immaterial")}
        decided = counts["right"] + counts["wrong"]
        rows[kind] = {
            **counts,
            "right_of_decided": round(counts["right"] / decided, 4) if decided else 0.0,
            "right_if_forced": round(forced.count("right") / len(forced), 4) if forced else 0.0,
        }
    return rows


def _best(data: Data, key: str, predicted: Predicted) -> int:
    return min((choice.row for choice in data.units[key]), key=predicted)
