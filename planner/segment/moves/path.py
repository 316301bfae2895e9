"""A legal way from one segmentation to another: cut apart what the target has apart, then join what it has together.

Every step is legal by construction, which is why none is checked here and a large graph costs no more than a small one
per op. While regions are being cut, all that stands lies within regions of the start, and could run in their order; what
lies within one region of it could run in the order of the target. While they are joined, the same holds with the roles
exchanged. To recompute one more op is always legal, since its region waits for what that op reads in any case; hence
what both cuts recompute is recomputed between, and ops are dropped from it last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterator
from dataclasses import replace

from fuseplan.graph import Graph
from fuseplan.segment.legality import check_segmentation
from fuseplan.segment.moves.move import Move
from fuseplan.segment.moves.peel import head_views, tail_views
from fuseplan.segment.moves.pieces import Piece, Waiting, growth, in_order, owners, pieces_of
from fuseplan.segment.moves.shape import read_again, target_text, tidy
from fuseplan.segment.region import Region, Segmentation


def moves_between(graph: Graph, start: Segmentation, target: Segmentation) -> tuple[Move, ...]:
    """Return moves that lead from `start` to `target` (as `tidy` writes it), all between them legal.

    Raises PlanError if `start` or `target` is not. The way is meant to be read; there may be a shorter one.

    >>> from fuseplan.graph import Op, Ref, TensorType, Value
    >>> x, y = (Value(name, TensorType("float32", (4,), (1,))) for name in "xy")
    >>> graph = Graph((x,), (Op("aten.relu.default", (Ref("x"),), (), (y,)),), (Ref("y"),))
    >>> [move.text for move in moves_between(graph, Segmentation(), Segmentation((Region((0,), "inductor"),)))]
    ['run op 0 (aten.relu) under inductor']
    """
    check_segmentation(graph, start)
    check_segmentation(graph, target)
    return tuple(_Path(graph, tidy(graph, start), tidy(graph, target)).moves())


class _Path:
    """The two cuts, the pieces that they have in common, and what each piece recomputes on the way."""

    def __init__(self, graph: Graph, start: Segmentation, target: Segmentation) -> None:
        self.graph = graph
        self.start, self.target = start.regions, target.regions
        self.waiting = Waiting(graph)
        self.pieces = pieces_of(graph, start, target)
        self.of_start: defaultdict[int, list[Piece]] = defaultdict(list)
        self.of_target: defaultdict[int, list[Piece]] = defaultdict(list)
        for piece in self.pieces:
            if piece.start is not None:
                self.of_start[piece.start].append(piece)
            if piece.target is not None:
                self.of_target[piece.target].append(piece)
        # What the regions recompute while they are in pieces: less than they do, where it can be said of them as a whole.
        here, there = owners(start), owners(target)
        self.first = [_settled(graph, r, self.of_start[n], here, self._in_target) for n, r in enumerate(self.start)]
        self.last = [_settled(graph, r, self.of_target[n], there, self._in_start) for n, r in enumerate(self.target)]

    def moves(self) -> Iterator[Move]:
        for number, region in enumerate(self.start):
            for op in region.recompute:
                if op not in self.first[number]:
                    yield self._again("reuse", op, region.ops[0])
        for number in range(len(self.start)):
            yield from self._cut(number)
        for piece in self.pieces:
            yield from self._to_target(piece)
        for number in range(len(self.target)):
            yield from self._join(number)
        for number, region in enumerate(self.target):
            for op in reversed(region.recompute):
                if op not in self.last[number]:
                    yield self._again("recompute", op, region.ops[0])

    # What a piece recomputes

    def _in_start(self, piece: Piece) -> tuple[int, ...]:
        return () if piece.start is None else self.start[piece.start].recompute

    def _in_target(self, piece: Piece) -> tuple[int, ...]:
        return () if piece.target is None else self.target[piece.target].recompute

    def _before(self, piece: Piece) -> tuple[int, ...]:
        return () if piece.start is None else read_again(self.graph, piece.ops, self.first[piece.start])

    def _after(self, piece: Piece) -> tuple[int, ...]:
        return () if piece.target is None else read_again(self.graph, piece.ops, self.last[piece.target])

    def _again(self, name: str, op: int, region: int) -> Move:
        return Move(name, (op,), region, target=target_text(self.graph, op))

    # The first half: regions of the start come apart

    def _cut(self, number: int) -> Iterator[Move]:
        pieces = self.of_start[number]
        region = Region(self.start[number].ops, "", recompute=self.first[number])
        leaving = [piece.ops[0] for piece in pieces if self._leaves(piece)]
        if tuple(leaving) == region.ops and (len(leaving) == 1 or all(self.graph.ops[i].is_view for i in leaving)):
            yield self._move("evict", region.ops)
            return
        if len(pieces) > 1:
            yield from self._take_apart(region, pieces, leaving)

    def _take_apart(self, region: Region, pieces: list[Piece], leaving: list[int]) -> Iterator[Move]:
        """All pieces but the largest leave, from both ends, so that what is left is never torn."""
        order = [pieces[i] for i in in_order(self.waiting.among(pieces, [self._before(piece) for piece in pieces]))]
        stays = max(order, key=lambda piece: (not self._leaves(piece), piece.target is not None, len(piece.ops)))
        peeled = self._peeled(region, leaving)
        if peeled is not None:
            yield Move(peeled[0], region=region.ops[0])
        gone = frozenset() if peeled is None else peeled[1]
        left = _Left(region.ops, gone)
        at = order.index(stays)
        for piece in [*order[:at], *reversed(order[at + 1 :])]:
            if piece.ops[0] in gone:
                continue
            yield self._move("evict" if self._leaves(piece) else "split", piece.ops, left.first)
            left.remove(piece.ops)
        if self._leaves(stays) and stays.ops[0] not in gone:
            yield self._move("evict", stays.ops)

    def _leaves(self, piece: Piece) -> bool:
        """Whether it is an op that ATen runs in the target, and may from the beginning."""
        return piece.target is None and not self._before(piece)

    def _peeled(self, region: Region, leaving: list[int]) -> tuple[str, frozenset[int]] | None:
        """The one move that takes all views at the ends of a region, where all of them are to leave."""
        head = head_views(self.graph, region)
        left = Region(tuple(i for i in region.ops if i not in head), "", recompute=region.recompute)
        tail = tail_views(self.graph, left)
        head_goes, tail_goes = (bool(views) and views <= set(leaving) for views in (head, tail))
        if head_goes and tail_goes:
            return "peel-both", head | tail
        tail = tail_views(self.graph, region)
        if head_goes or (tail and tail <= set(leaving)):
            return ("peel-head", head) if head_goes else ("peel-tail", tail)
        return None

    # In the middle: pieces recompute what they will in the target

    def _to_target(self, piece: Piece) -> Iterator[Move]:
        before, after = self._before(piece), self._after(piece)
        if piece.start is None and after:
            yield self._run(piece.ops[0], piece)
        for op in reversed(after):
            if op not in before:
                yield self._again("recompute", op, piece.ops[0])
        for op in before:
            if op not in after:
                yield self._again("reuse", op, piece.ops[0])
        if piece.target is None and before:
            yield self._move("evict", piece.ops)

    # The second half: pieces come together

    def _join(self, number: int) -> Iterator[Move]:
        pieces, region = self.of_target[number], self.target[number]
        standing = [i for i, piece in enumerate(pieces) if piece.start is not None or self._after(piece)]
        seed = max(standing, key=lambda i: len(pieces[i].ops), default=0)
        if not standing:
            yield self._run(pieces[seed].ops[0], pieces[seed])
        if len(pieces) > 1:
            yield from self._grow(pieces, seed)
        source = pieces[seed].start
        if source is not None and (self.start[source].executor, self.start[source].variant) != (
            region.executor,
            region.variant,
        ):
            yield self._run(region.ops[0], pieces[seed], region=True)

    def _grow(self, pieces: list[Piece], seed: int) -> Iterator[Move]:
        waits = self.waiting.among(pieces, [self._after(piece) for piece in pieces])
        first = pieces[seed].ops[0]
        for found, below in growth(waits, seed):
            yield self._move("merge-up" if below else "merge-down", pieces[found].ops, first)
            first = min(first, pieces[found].ops[0])

    def _run(self, op: int, piece: Piece, *, region: bool = False) -> Move:
        assert piece.target is not None
        runner = self.target[piece.target]
        named = Move("run", () if region else (op,), op if region else None, runner.executor, runner.variant)
        return replace(named, target="" if region else target_text(self.graph, op))

    def _move(self, name: str, ops: tuple[int, ...], region: int | None = None) -> Move:
        return Move(name, ops, region, target=target_text(self.graph, ops[0]))


class _Left:
    """The ops that a region still has; all that is asked for is the first."""

    def __init__(self, ops: tuple[int, ...], gone: frozenset[int]) -> None:
        self._ops, self._gone, self._at = ops, set(gone), 0

    @property
    def first(self) -> int:
        while self._ops[self._at] in self._gone:
            self._at += 1
        return self._ops[self._at]

    def remove(self, ops: tuple[int, ...]) -> None:
        self._gone.update(ops)


def _settled(
    graph: Graph, region: Region, pieces: list[Piece], owned: Container[int], other: Callable[[Piece], tuple[int, ...]]
) -> tuple[int, ...]:
    """What a region recomputes while it is in pieces.

    An op of nobody that the other cut recomputes in none of the pieces is no part of it: the region as a whole stops
    recomputing it before it is cut, or begins to after it is joined. That is always legal, as nobody's op can run before
    all who read it, unless it reads in turn what comes from a region.
    """
    if not region.recompute:
        return ()
    elsewhere = {op for piece in pieces for op in other(piece)}
    kept = {op for op in region.recompute if op in owned or op in elsewhere}
    for op in region.recompute:
        if any(graph.producer.get(name) in kept for name in graph.ops[op].reads):
            kept.add(op)
    return tuple(op for op in region.recompute if op in kept)
