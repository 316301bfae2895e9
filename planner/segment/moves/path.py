"""A legal way from one segmentation to another: cut apart what the target has apart, then join what it has together.

Every step is legal by construction, which is why none is checked here and a large graph costs no more than a small one
per op:

- What either cut recomputes is nobody's on the way: a region that has such an op of its own computes it again instead.
  That is always legal, since the op alone waits for the region at most, and nobody waits for more than before.
- While regions are cut into pieces, all that stands lies within regions of the start, which could run in some order; and
  the pieces of one region depend on each other as their regions in the target do, which have an order too. While pieces
  are joined, the same holds with the roles exchanged.
- To recompute one more op that is nobody's is always legal, as a region waits for what that op reads in any case. Hence a
  piece recomputes what both cuts do before it stops to recompute what only the start does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace

from fuseplan.graph import Graph
from fuseplan.segment.legality import check_segmentation
from fuseplan.segment.moves.move import Move
from fuseplan.segment.moves.peel import head_views, tail_views
from fuseplan.segment.moves.pieces import Piece, Waiting, growth, in_order, pieces_of
from fuseplan.segment.moves.shape import read_again, target_text, tidy, values_of
from fuseplan.segment.region import Region, Segmentation


def moves_between(graph: Graph, start: Segmentation, target: Segmentation) -> tuple[Move, ...]:
    """Return moves that lead from `start` to `target` (as `tidy` writes it), all between them legal.

    Raises PlanError if `start` or `target` is not. The way is meant to be read; there may be a shorter one.

    >>> graph = Graph.parse('''
    ... def graph(
    ...     x,  # cpu float32[4]
    ... ):
    ...     y = aten.relu.default(x)  # cpu float32[4]
    ...     return y
    ... ''')
    >>> [move.text for move in moves_between(graph, Segmentation(), Segmentation((Region((0,), "inductor"),)))]
    ['run op 0 (aten.relu) under inductor']
    """
    check_segmentation(graph, start)
    check_segmentation(graph, target)
    return tuple(_Path(graph, tidy(graph, start), tidy(graph, target)).moves())


class _Path:
    """The two cuts without the ops that are recomputed, and the pieces that they have in common."""

    def __init__(self, graph: Graph, start: Segmentation, target: Segmentation) -> None:
        self.graph = graph
        self.start, self.target = start.regions, target.regions
        again = _recomputed(self.start, self.target)
        self.recomputed = sorted(again)
        self.start_having, self.target_having = (
            _regions_having(again, regions) for regions in (self.start, self.target)
        )
        self.start_cores = [_core(graph, region, again) for region in self.start]
        self.target_cores = [_core(graph, region, again) for region in self.target]
        self.waiting = Waiting(graph)
        self.pieces = pieces_of(graph, self.start_cores, self.target_cores)
        self.of_start: defaultdict[int, list[Piece]] = defaultdict(list)
        self.of_target: defaultdict[int, list[Piece]] = defaultdict(list)
        for piece in self.pieces:
            if piece.start is not None:
                self.of_start[piece.start].append(piece)
            if piece.target is not None:
                self.of_target[piece.target].append(piece)
        self.start_recomputes = [
            self._recomputed_in_pieces(region, core, self.of_start[n], self._in_target)
            for n, (region, core) in enumerate(zip(self.start, self.start_cores, strict=True))
        ]
        self.target_recomputes = [
            self._recomputed_in_pieces(region, core, self.of_target[n], self._in_start)
            for n, (region, core) in enumerate(zip(self.target, self.target_cores, strict=True))
        ]

    def moves(self) -> Iterator[Move]:
        for op in self.recomputed:
            yield from self._take_out(op)
        for number in range(len(self.start)):
            yield from self._cut(number)
        for piece in self.pieces:
            yield from self._change_recomputed(piece)
        for number in range(len(self.target)):
            yield from self._join(number)
        joined = {number: core.ops[0] for number, core in enumerate(self.target_cores) if core.ops}
        for op in reversed(self.recomputed):
            yield from self._put_in(op, joined)

    # What a region, or a piece of it, recomputes

    def _recomputed_in_pieces(
        self, region: Region, core: Region, pieces: list[Piece], other: Callable[[Piece], tuple[int, ...]]
    ) -> frozenset[int]:
        """What a region has to recompute while it is in pieces.

        What the other cut recomputes in none of the pieces is no part of it, unless it reads what the region makes: the
        region as a whole stops to recompute it before it is cut, or begins to after it is joined.
        """
        candidates = sorted({*region.recompute, *region.ops}.difference(core.ops))
        elsewhere = {op for piece in pieces for op in other(piece)} if candidates else set()
        inside = set(core.ops)
        for op in candidates:
            if op in elsewhere or not self.waiting.before(op).isdisjoint(inside):
                inside.add(op)
        return frozenset(inside.intersection(candidates))

    def _in_start(self, piece: Piece) -> tuple[int, ...]:
        return () if piece.start is None else self.start_cores[piece.start].recompute

    def _in_target(self, piece: Piece) -> tuple[int, ...]:
        return () if piece.target is None else self.target_cores[piece.target].recompute

    def _recomputes_first(self, piece: Piece) -> tuple[int, ...]:
        return () if piece.start is None else read_again(self.graph, piece.ops, self.start_recomputes[piece.start])

    def _recomputes_last(self, piece: Piece) -> tuple[int, ...]:
        return () if piece.target is None else read_again(self.graph, piece.ops, self.target_recomputes[piece.target])

    # First and last: what is recomputed by anybody becomes nobody's, in the order of the graph, and comes back the other way

    def _take_out(self, op: int) -> Iterator[Move]:
        """An op that is recomputed leaves the regions of the start that have it."""
        having = [(self.start[number], op in self.start_recomputes[number]) for number in self.start_having[op]]
        for region, stays in having:
            if op in region.ops:
                goes = not stays or not self._read_in(region, op)
                yield self._move("evict", (op,)) if goes else self._move("recompute", (op,), self._first_op(region, op))
        for region, stays in having:
            if op in region.recompute and not stays:
                yield self._move("reuse", (op,), self._first_op(region, op))

    def _first_op(self, region: Region, op: int) -> int:
        """The first op of the region once those before `op` that are recomputed have left it."""
        return next(i for i in region.ops if i >= op or i not in self.start_having)

    def _put_in(self, op: int, joined: dict[int, int]) -> Iterator[Move]:
        """It comes into the regions of the target that have it; `joined` is the first op of each that is there."""
        for number in self.target_having[op]:
            if op in self.target[number].recompute and op not in self.target_recomputes[number]:
                yield self._move("recompute", (op,), joined[number])
        for number in self.target_having[op]:
            region, first = self.target[number], joined.get(number)
            if op not in region.ops:
                continue
            if first is None:
                yield self._run(op, region)
            elif self._read_in(region, op):
                yield self._move("merge-up" if op in self.target_recomputes[number] else "merge-down", (op,), first)
            else:
                yield from self._bring_what_it_reads(op, number)
                yield self._move("merge-up", (op,), first)
            joined[number] = op if first is None else min(first, op)

    def _read_in(self, region: Region, op: int) -> bool:
        made = values_of(self.graph, (op,))
        return any(not made.isdisjoint(self.graph.ops[i].reads) for i in (*region.ops, *region.recompute))

    def _bring_what_it_reads(self, op: int, number: int) -> Iterator[Move]:
        """What only this op reads and the region recomputes comes with it."""
        again = read_again(self.graph, (op,), [i for i in self.target_recomputes[number] if i < op])
        if not set(again) <= set(self.target_cores[number].recompute):
            yield self._run(op, self.target[number])
            for other in reversed(again):
                yield self._move("recompute", (other,), op)

    # The first half: regions of the start come apart

    def _cut(self, number: int) -> Iterator[Move]:
        pieces = self.of_start[number]
        core = self.start_cores[number]
        region = replace(core, recompute=read_again(self.graph, core.ops, self.start_recomputes[number]))
        leaving = [piece.ops[0] for piece in pieces if self._leaves(piece)]
        all_leave = len(leaving) == len(region.ops)
        if leaving and all_leave and (len(leaving) == 1 or all(self.graph.ops[i].is_view for i in leaving)):
            yield self._move("evict", region.ops)
        elif len(pieces) > 1:
            yield from self._take_apart(region, pieces, leaving)

    def _take_apart(self, region: Region, pieces: list[Piece], leaving: list[int]) -> Iterator[Move]:
        """All pieces but the largest leave, from both ends, so that what is left is never torn."""
        waits = self.waiting.among(pieces, [self._recomputes_first(piece) for piece in pieces])
        order = [pieces[i] for i in in_order(waits)]
        stays = max(order, key=lambda piece: (not self._leaves(piece), piece.target is not None, len(piece.ops)))
        peeled = self._peeled(region, leaving)
        if peeled is not None:
            yield Move(peeled[0], region=region.ops[0])
        gone = frozenset() if peeled is None else peeled[1]
        remaining = _Remaining(region.ops, gone)
        at = order.index(stays)
        for piece in [*order[:at], *reversed(order[at + 1 :])]:
            if piece.ops[0] not in gone:
                yield (
                    self._move("evict", piece.ops)
                    if self._leaves(piece)
                    else self._move("split", piece.ops, remaining.first)
                )
                remaining.remove(piece.ops)
        if self._leaves(stays) and stays.ops[0] not in gone:
            yield self._move("evict", stays.ops)

    def _leaves(self, piece: Piece) -> bool:
        """Whether it is an op that ATen runs in the target, and may from the beginning."""
        return piece.target is None and not self._recomputes_first(piece)

    def _peeled(self, region: Region, leaving: list[int]) -> tuple[str, frozenset[int]] | None:
        """The one move that takes all views at the ends of a region, where all of them are to leave."""
        head = self._unordered(head_views(self.graph, region))
        between = replace(region, ops=tuple(i for i in region.ops if i not in head))
        if head and head <= set(leaving):
            tail = self._unordered(tail_views(self.graph, between))
            return ("peel-both", head | tail) if tail and tail <= set(leaving) else ("peel-head", head)
        tail = self._unordered(tail_views(self.graph, region))
        return ("peel-tail", tail) if tail and tail <= set(leaving) else None

    def _unordered(self, views: frozenset[int]) -> frozenset[int]:
        """The views, or none if writes that must come before or after them may hold them where they are."""
        return frozenset() if any(i in self.waiting.earlier or i in self.waiting.later for i in views) else views

    # In the middle: pieces recompute what they will in the target

    def _change_recomputed(self, piece: Piece) -> Iterator[Move]:
        before, after = self._recomputes_first(piece), self._recomputes_last(piece)
        if piece.start is None and piece.target is not None and after:
            yield self._run(piece.ops[0], self.target[piece.target])
        for op in reversed(after):
            if op not in before:
                yield self._move("recompute", (op,), piece.ops[0])
        for op in before:
            if op not in after:
                yield self._move("reuse", (op,), piece.ops[0])
        if piece.target is None and before:
            yield self._move("evict", piece.ops)

    # The second half: pieces come together

    def _join(self, number: int) -> Iterator[Move]:
        pieces, region = self.of_target[number], self.target[number]
        if not pieces:
            return
        standing = [i for i, piece in enumerate(pieces) if piece.start is not None or self._recomputes_last(piece)]
        seed = max(standing, key=lambda i: len(pieces[i].ops), default=0)
        if not standing:
            yield self._run(pieces[seed].ops[0], region)
        if len(pieces) > 1:
            yield from self._grow(pieces, seed)
        source = pieces[seed].start
        if source is not None:
            old = self.start[source]
            if (old.executor, old.variant) != (region.executor, region.variant):
                first = self.target_cores[number].ops[0]
                yield Move("run", (), first, region.executor, region.variant)

    def _grow(self, pieces: list[Piece], seed: int) -> Iterator[Move]:
        waits = self.waiting.among(pieces, [self._recomputes_last(piece) for piece in pieces])
        first = pieces[seed].ops[0]
        for found, below in growth(waits, seed):
            yield self._move("merge-up" if below else "merge-down", pieces[found].ops, first)
            first = min(first, pieces[found].ops[0])

    def _run(self, op: int, region: Region) -> Move:
        """An op of nobody becomes a region of its own."""
        return Move("run", (op,), None, region.executor, region.variant, target_text(self.graph, op))

    def _move(self, name: str, ops: tuple[int, ...], region: int | None = None) -> Move:
        return Move(name, ops, region, target=target_text(self.graph, ops[0]))


class _Remaining:
    """The ops that a region still has; all that is asked for is the first."""

    def __init__(self, ops: tuple[int, ...], gone: frozenset[int] = frozenset()) -> None:
        self._ops, self._gone, self._at = ops, set(gone), 0

    @property
    def first(self) -> int:
        while self._ops[self._at] in self._gone:
            self._at += 1
        return self._ops[self._at]

    def remove(self, ops: tuple[int, ...]) -> None:
        self._gone.update(ops)


def _recomputed(start: tuple[Region, ...], target: tuple[Region, ...]) -> frozenset[int]:
    """What is recomputed by regions that do not stay as they are, since another recomputes an op of theirs if for nothing else."""
    staying = {(region.ops, region.recompute) for region in start} & {(r.ops, r.recompute) for r in target}
    found = {op for r in (*start, *target) if (r.ops, r.recompute) not in staying for op in r.recompute}
    new = found
    while new:
        moved = {(ops, recompute) for ops, recompute in staying if not new.isdisjoint(ops)}
        staying -= moved
        new = {op for _, recompute in moved for op in recompute} - found
        found |= new
    return frozenset(found)


def _regions_having(again: frozenset[int], regions: tuple[Region, ...]) -> dict[int, list[int]]:
    """For each op of `again`, the regions that it is in or that recompute it."""
    found: dict[int, list[int]] = {op: [] for op in again}
    for number, region in enumerate(regions):
        for op in again.intersection((*region.ops, *region.recompute)):
            found[op].append(number)
    return found


def _core(graph: Graph, region: Region, again: frozenset[int]) -> Region:
    """The region with those of its ops recomputed that are in `again`."""
    own = again.intersection(region.ops)
    if not own:
        return region
    ops = tuple(op for op in region.ops if op not in own)
    return replace(region, ops=ops, recompute=read_again(graph, ops, (*region.recompute, *own)))
