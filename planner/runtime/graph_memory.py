"""How much memory CUDA graphs hold, and whose are let go where that is more than option `cuda_graph_memory` allows: numbers alone.
`graph_pool.py` measures the memory, and frees it.

All graphs of a thread share one pool, in which each uses again what others leave free, and which can only be freed as a whole. So what a
program holds is by how much the pool grew when that one was captured. Where some are let go, the pool is freed once a step is over, and
those that stay are captured anew as they are called: no two captures may take turns at that, or every step would be a stall.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from weakref import WeakSet, ref

from fuseplan.sizes import spelled_bytes

PATIENCE = 16
"""So many calls a program waits that was let go, or that came once others had been; as many more for each time that something was.
So what stalls are there grow as the square root of the calls, whatever the calls are."""
MUCH_MORE = 4
"""It takes the place of others if it was called so many times as often as each of those: of what is called in turns, none does."""
WINDOW = 1024
"""After so many calls what was called before counts half: what was called often long ago is not what is used now."""


@dataclass(eq=False)
class GraphPool:
    """The memory that all graphs of one thread share on one device."""

    bytes: int = 0
    due: bool = False
    """Some of its graphs were let go. Nothing runs through the others until all of it is freed."""


@dataclass(eq=False)
class Occupant:
    """One program, called with one set of sizes, whose graphs take up memory."""

    bound: int | None = None
    pool_ref: ref[GraphPool] | None = None
    bytes: int = 0
    """By how much the pool grew with its graphs, since that was freed last."""
    needs: int = 0
    """The same, of when it was captured before."""
    is_captured: bool = False
    """It was, since the pool was freed last."""
    waits: bool = False
    """It runs plain."""
    times: int = 0
    """How often it was let go."""
    last: int = 0
    """When it was called last, in calls of all programs."""
    recent: int = 0
    """How often it was called lately."""
    waited: int = 0
    """How often it was called while it waits …"""
    patience: int = 0
    """… and after how many calls it is looked for room for it."""

    @property
    def expected(self) -> int:
        """What it holds, or will once it is captured anew."""
        return self.bytes if self.is_captured else self.needs

    @property
    def pool(self) -> GraphPool | None:
        """Where its graphs are, or were until they were freed; None where there never were any, or their trees are gone."""
        return None if self.pool_ref is None else self.pool_ref()


@dataclass(eq=False)
class GraphMemory:
    """What graphs hold of one device."""

    pools: WeakSet[GraphPool] = field(default_factory=WeakSet)
    occupants: WeakSet[Occupant] = field(default_factory=WeakSet)
    freed_for: int = 0
    """How often something was let go."""
    clock: int = 0
    lock: Lock = field(default_factory=Lock)

    @property
    def bytes(self) -> int:
        """All that is held."""
        with self.lock:
            return sum(pool.bytes for pool in self.pools)

    def enter(self, one: Occupant) -> None:
        """Know of a program. Once others were let go, one that comes waits like those."""
        with self.lock:
            self.occupants.add(one)
            if self.freed_for and one.bound is not None:
                self._have_wait(one)

    def admits(self, one: Occupant) -> bool:
        """Count a call of a program with a bound; return whether it may run through a graph."""
        self.clock += 1
        one.last, one.recent = self.clock, one.recent + 1
        if not self.clock % WINDOW:
            with self.lock:
                for each in self.occupants:
                    each.recent //= 2
        if not one.waits:
            return True
        one.waited += 1
        if one.waited < one.patience:
            return False
        with self.lock:
            one.waits = not self._makes_way_for(one)
        one.patience = one.waited + PATIENCE
        return not one.waits

    def captured(self, one: Occupant, pool: GraphPool, held: int) -> Sequence[Occupant]:
        """Know that a pool holds so many bytes since a graph of a program was captured; return who was let go for that."""
        with self.lock:
            self.pools.add(pool)
            one.bytes += max(held - pool.bytes, 0)
            one.pool_ref, one.is_captured, pool.bytes = ref(pool), True, held
            return self._let_go(one, pool)

    def freed(self, pool: GraphPool) -> None:
        """Know that a pool was freed."""
        with self.lock:
            for one in self._of(pool):
                one.needs, one.bytes, one.is_captured = one.expected, 0, False
            pool.bytes, pool.due = 0, False

    @property
    def bound(self) -> int | None:
        """What is allowed: of those who have said so, the one who allows least counts for all of them."""
        return min((one.bound for one in self.occupants if one.bound is not None), default=None)

    def _let_go(self, newest: Occupant, pool: GraphPool) -> Sequence[Occupant]:
        bound = self.bound
        if bound is None or self._kept() <= bound:
            return []
        alone = newest.bound is not None and newest.bytes > bound
        if pool.bytes > sum(one.bytes for one in self._of(pool)):  # what programs have left that are no more
            pool.due = True
        going: list[Occupant] = []
        order = [one for one in self._least_recent() if one.is_captured and one.bytes]
        for one in sorted(order, key=lambda one: (one is newest) is not alone):
            if self._kept() <= bound:
                break
            assert one.pool is not None
            one.pool.due = True
            self._have_wait(one)
            one.times += 1
            going.append(one)
        if going:
            self.freed_for += 1
            for one in going:
                one.patience = PATIENCE * self.freed_for
        return going

    def _makes_way_for(self, one: Occupant) -> bool:
        """Whether there is room for a program that waits, or others were called much less."""
        bound = self.bound
        if bound is None or one.expected > bound:
            return bound is None
        missing = (
            self._kept(expected=True) + max(one.expected, 1) - bound
        )  # of one that never was captured, nobody knows
        for other in self._least_recent():
            if missing <= 0:
                break
            if other.recent * MUCH_MORE > one.recent:
                return False
            missing -= other.expected
        return missing <= 0

    def _have_wait(self, one: Occupant) -> None:
        one.waits, one.waited, one.patience = True, 0, PATIENCE * self.freed_for

    def _least_recent(self) -> list[Occupant]:
        """Who may be let go, in this order."""
        ones = (one for one in self.occupants if one.bound is not None and not one.waits and one.pool is not None)
        return sorted(ones, key=lambda one: one.last)

    def _kept(self, expected: bool = False) -> int:
        """What is held, without what is about to be freed; with what is `expected` of those who will be captured anew."""
        total = 0
        for pool in self.pools:
            staying = [one for one in self._of(pool) if not one.waits]
            total += sum(one.bytes for one in staying) if pool.due else pool.bytes
            if expected:
                total += sum(one.needs for one in staying if not one.is_captured)
        return total

    def _of(self, pool: GraphPool) -> list[Occupant]:
        return [one for one in self.occupants if one.pool is pool]


@dataclass(eq=False)
class ProgramGraphs:
    """What the CUDA graphs of one program hold, for each set of sizes that it is called with."""

    asked: int | float | None = None
    """Option `cuda_graph_memory`: bytes, or a share of the device's memory."""
    bound: int | None = None
    memory: GraphMemory | None = None
    """That of its device; None before it is known to be captured."""
    by_sizes: dict[tuple[Any, ...], Occupant] = field(default_factory=dict)

    def on(self, memory: GraphMemory, all_there_is: int | None) -> None:
        """Know of the device that it is captured on."""
        self.memory = memory
        self.bound = int(self.asked * (all_there_is or 0)) if isinstance(self.asked, float) else self.asked

    def called_with(self, sizes: tuple[Any, ...]) -> Occupant:
        """What takes part in the memory for these sizes."""
        found = self.by_sizes.get(sizes)
        if found is None:
            assert self.memory is not None
            found = self.by_sizes[sizes] = Occupant(self.bound)
            self.memory.enter(found)
        return found

    @property
    def lines(self) -> list[str]:
        """What `explain` says of it."""
        memory = self.memory
        if memory is None or not self.by_sizes:
            return []
        ones = list(self.by_sizes.values())
        held, waiting = sum(one.bytes for one in ones if one.is_captured), [one for one in ones if one.waits]
        allowed = "" if memory.bound is None else f"; cuda_graph_memory allows {spelled_bytes(memory.bound)}"
        said = [f"its CUDA graphs hold {spelled_bytes(held)} of {spelled_bytes(memory.bytes)} that all hold{allowed}"]
        if waiting:
            which = f", called with {len(waiting)} of {len(ones)} sets of sizes," if len(ones) > 1 else ""
            said.append(f"it{which} runs without a CUDA graph: {_why(waiting)}")
        return said


def _why(waiting: Sequence[Occupant]) -> str:
    """Why programs wait that do."""
    times, most = sum(one.times for one in waiting), max(one.expected for one in waiting)
    if not times:
        return "others have been let go for lack of memory, and it was not called much more often than those that stay"
    if any(one.expected > (one.bound or 0) for one in waiting):
        return f"it was let go, since it alone held {spelled_bytes(most)}"
    return f"it was let go {times} ×, since all held too much and it had been called longest ago; it held {spelled_bytes(most)}"
