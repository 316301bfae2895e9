"""Where boxes go: in rows from top to bottom, so that every arrow points down, near what they read and what reads them.

The usual way to draw such graphs (Sugiyama's): rows, then an order within each row that crosses few arrows, then the
place in the row that bends them least. Long arrows get a place in every row that they pass. Linear, but for sorting.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

Point = tuple[float, float]
OUTSIDE = -1
GAP_X = 18.0
GAP_Y = 26.0
WIDEST = 2200.0
"""A row that would be wider than this becomes several."""
_MOST_BENDS = 4000
_SWEEPS = 4
_BEND = 14.0


@dataclass
class Layout:
    """The corners of the boxes, how much room all of them take, and the points that long arrows pass.

    An arrow that comes from outside to box 3 is ``(-1, 3)`` in `bends`, one that leaves it is ``(3, -1)``.
    """

    width: float = 0.0
    height: float = 0.0
    corners: list[Point] = field(default_factory=list)
    bends: dict[tuple[int, int], list[Point]] = field(default_factory=dict)


def layered(sizes: Sequence[Point], arrows: Collection[tuple[int, int]]) -> Layout:
    """Place boxes of these widths and heights. An arrow goes from a box to a later one; -1 stands for what is outside.

    >>> layered([(40, 20), (40, 20)], [(0, 1)]).corners
    [(0.0, 0.0), (0.0, 46.0)]
    """
    if not sizes:
        return Layout()
    grid = _Grid(sizes, sorted({(a, b) for a, b in arrows if a < b or b == OUTSIDE}))
    grid.order()
    grid.spread()
    return grid.layout()


@dataclass
class _Grid:
    """Boxes and bends in their rows. Bends are nodes too, numbered after the boxes."""

    sizes: Sequence[Point]
    arrows: list[tuple[int, int]]
    rows: list[list[int]] = field(default_factory=list)
    above: list[list[int]] = field(default_factory=list)
    below: list[list[int]] = field(default_factory=list)
    chains: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    middle: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = len(self.sizes)
        within = [(a, b) for a, b in self.arrows if a != OUTSIDE and b != OUTSIDE]
        row_of = _folded(_rows(count, within), self.sizes)
        self.rows = [[] for _ in range(max(row_of) + 1)]
        for node, row in enumerate(row_of):
            self.rows[row].append(node)
        self.above = [[] for _ in range(count)]
        self.below = [[] for _ in range(count)]
        for first, last in self.arrows:
            top = -1 if first == OUTSIDE else row_of[first]
            between = range(top + 1, len(self.rows) if last == OUTSIDE else row_of[last])
            chain: list[int] = []
            if len(self.above) + len(between) <= count + _MOST_BENDS:
                for row in between:
                    chain.append(len(self.above))
                    self.rows[row].append(chain[-1])
                    self.above.append([])
                    self.below.append([])
            self.chains[first, last] = chain
            ends = ([] if first == OUTSIDE else [first], [] if last == OUTSIDE else [last])
            for one, two in pairwise([*ends[0], *chain, *ends[1]]):
                self.below[one].append(two)
                self.above[two].append(one)

    def order(self) -> None:
        """Sort each row by where its neighbours stand, downwards and upwards in turn."""
        place = [0.0] * len(self.above)
        for row in self.rows:
            for rank, node in enumerate(row):
                place[node] = rank / len(row)
        for sweep in range(_SWEEPS):
            beside = self.above if sweep % 2 == 0 else self.below
            for row in self.rows if sweep % 2 == 0 else reversed(self.rows):
                row.sort(key=lambda node: _mean([place[other] for other in beside[node]], place[node]))
                for rank, node in enumerate(row):
                    place[node] = (rank + 0.5) / len(row)

    def spread(self) -> None:
        """Move each node as near to the middle of its neighbours as those beside it allow."""
        self.middle = [0.0] * len(self.above)
        for row in self.rows:
            self._place(row, [0.0] * len(row))
        for sweep in range(2 * _SWEEPS):
            down = sweep % 2 == 0
            beside = self.above if down else self.below
            for row in self.rows if down else reversed(self.rows):
                self._place(
                    row, [_mean([self.middle[other] for other in beside[node]], self.middle[node]) for node in row]
                )

    def _place(self, row: list[int], wanted: list[float]) -> None:
        offset, offsets = 0.0, []
        for left, node in zip([None, *row], row, strict=False):
            if left is not None:
                offset += (self._width(left) + self._width(node)) / 2 + GAP_X
            offsets.append(offset)
        near = nearest_rising([want - offset for want, offset in zip(wanted, offsets, strict=True)])
        for node, at, offset in zip(row, near, offsets, strict=True):
            self.middle[node] = at + offset

    def _width(self, node: int) -> float:
        return self.sizes[node][0] if node < len(self.sizes) else _BEND

    def layout(self) -> Layout:
        """The result, moved so that it begins at zero."""
        left = min(self.middle[node] - self._width(node) / 2 for row in self.rows for node in row)
        right = max(self.middle[node] + self._width(node) / 2 for row in self.rows for node in row)
        corners: list[Point] = [(0.0, 0.0)] * len(self.sizes)
        centre: dict[int, Point] = {}
        top = 0.0
        for row in self.rows:
            height = max((self.sizes[node][1] for node in row if node < len(self.sizes)), default=0.0)
            for node in row:
                middle = round(self.middle[node] - left, 1)
                if node < len(self.sizes):
                    width, own = self.sizes[node]
                    corners[node] = (round(middle - width / 2, 1), round(top + (height - own) / 2, 1))
                else:
                    centre[node] = (middle, round(top + height / 2, 1))
            top += height + GAP_Y
        bends = {arrow: [centre[node] for node in chain] for arrow, chain in self.chains.items()}
        return Layout(right - left, top - GAP_Y, corners, bends)


def _rows(count: int, arrows: Sequence[tuple[int, int]]) -> list[int]:
    """The row of each box: below all that it reads; then as far down as shortens its arrows."""
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for first, last in arrows:
        above[last].append(first)
        below[first].append(last)
    row = [0] * count
    for node in range(count):
        row[node] = max((row[other] + 1 for other in above[node]), default=0)
    for node in reversed(range(count)):
        if below[node] and len(below[node]) >= len(above[node]):
            row[node] = max(row[node], min(row[other] for other in below[node]) - 1)
    return row


def _folded(row: Sequence[int], sizes: Sequence[Point]) -> list[int]:
    """The rows without empty ones, and those that are too wide as several."""
    members: dict[int, list[int]] = {}
    for node, number in enumerate(row):
        members.setdefault(number, []).append(node)
    new = [0] * len(row)
    now = 0
    for number in sorted(members):
        width = 0.0
        for node in members[number]:
            if width and width + sizes[node][0] > WIDEST:
                now, width = now + 1, 0.0
            width += sizes[node][0] + GAP_X
            new[node] = now
        now += 1
    return new


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def nearest_rising(wanted: Sequence[float]) -> list[float]:
    """The values nearest to `wanted`, by squares, that never fall from one to the next: neighbours that would, are pooled.

    >>> nearest_rising([1.0, 5.0, 3.0])
    [1.0, 4.0, 4.0]
    """
    pools: list[tuple[float, int]] = []
    for value in wanted:
        total, count = value, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            before, many = pools.pop()
            total, count = total + before, count + many
        pools.append((total, count))
    return [total / count for total, count in pools for _ in range(count)]
