"""How much memory CUDA graphs hold, and whose are let go where that is more than option `cuda_graph_memory` allows: numbers alone.
`graph_pool.py` measures the memory, and frees it.

All graphs of a thread share one pool, in which each uses again what others leave free, and which can only be freed as a whole. So what a
program holds is by how much the pool grew when that one was captured. Where some are let go, the pool is freed once a step is over, and
those that stay are captured anew as they are called: no two captures may take turns at that, or every step would be a stall.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    others: int = 0
    """Of these, what came with graphs of torch's own. They know of no bound, and are captured anew once all is freed."""
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
    """How often it was called while it waits, or is a guest …"""
    patience: int = 0
    """… and after how many calls it is looked for room for it."""
    is_guest: bool = False
    """It was let in a moment ago, without anybody making way for it: where there is no room after all, it goes."""
    had_chance: bool = False
    """It was let in although it did not seem to fit: captured behind others, it may use what they leave free."""

    @property
    def expected(self) -> int:
        """What it holds, or will once it is captured anew."""
        return self.bytes if self.is_captured else self.needs

    @property
    def pool(self) -> GraphPool | None:
        """Where its graphs are, or were until they were freed; None where there never were any, or their trees are gone."""
        return None if self.pool_ref is None else self.pool_ref()

    @property
    def is_stopped(self) -> bool:
        """Whether nothing runs through its graphs until all of the pool is freed."""
        return self.pool is not None and self.pool.due


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
        if one.waits or one.is_guest:
            one.waited += 1
        if not one.waits:
            one.is_guest = one.is_guest and one.waited < PATIENCE
            return True
        if one.waited < one.patience:
            return False
        with self.lock:
            one.waits = not self._makes_way_for(one)
        one.patience, one.waited = one.waited + PATIENCE, one.waited if one.waits else 0
        return not one.waits

    def others_hold(self, pool: GraphPool, held: int) -> None:
        """Know that a pool holds so many bytes before a program is captured: what came since the last look is not of ours."""
        with self.lock:
            self.pools.add(pool)
            pool.others += max(held - pool.bytes, 0)
            pool.bytes = held

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
            pool.bytes, pool.others, pool.due = 0, 0, False

    @property
    def bound(self) -> int | None:
        """What is allowed: of those who have said so, the one who allows least counts for all of them."""
        with self.lock:
            return self._bound()

    def _bound(self) -> int | None:
        return min((one.bound for one in self.occupants if one.bound is not None), default=None)

    def _let_go(self, newest: Occupant, pool: GraphPool) -> Sequence[Occupant]:
        bound = self._bound()
        if bound is None or self._kept() <= bound:
            return []
        known = pool.others + sum(one.bytes for one in self._of(pool))
        if pool.bytes > known:  # programs have left the rest that are no more
            pool.due = True
        ones = [one for one in self._least_recent() if one.is_captured]
        going = [one for one in ones if one.is_guest]  # without these the others did fit
        for one in going:
            self._send_off(one)
        if not going:
            too_large = newest.bytes > bound
            for one in sorted((one for one in ones if one.bytes), key=lambda one: (one is newest) is not too_large):
                if self._kept() <= bound:
                    break
                self._send_off(one)
                going.append(one)
        self.freed_for += bool(going)
        for one in going:
            one.patience = PATIENCE * self.freed_for
        return going

    def _send_off(self, one: Occupant) -> None:
        assert one.pool is not None
        one.pool.due = True
        one.times += 1
        self._have_wait(one)

    def _makes_way_for(self, one: Occupant) -> bool:
        """Whether there is room for a program that waits, or others were called much less; or it has not had its chance yet."""
        bound = self._bound()
        if bound is None or one.expected > bound:
            return bound is None
        others, missing = self._least_recent(), self._kept(expected=True) + one.expected - bound
        one.is_guest = missing < 0 or (missing == 0 and one.expected > 0)  # of a new one nobody knows what it needs
        for other in () if one.is_guest else others:
            missing -= other.expected
            if other.recent * MUCH_MORE > one.recent:
                break
            if missing <= 0:
                return True
        if (
            not one.is_guest
            and not one.had_chance
            and one.expected <= max((each.expected for each in others), default=0)
        ):
            one.is_guest = one.had_chance = True
        return one.is_guest

    def _have_wait(self, one: Occupant) -> None:
        one.waits, one.is_guest, one.waited, one.patience = True, False, 0, PATIENCE * self.freed_for

    def _least_recent(self) -> list[Occupant]:
        """Who may be let go, in this order."""
        ones = (one for one in self.occupants if one.bound is not None and not one.waits and one.pool is not None)
        return sorted(ones, key=lambda one: one.last)

    def _kept(self, expected: bool = False) -> int:
        """What is held, without what is about to be freed; with what is `expected` of those who will be captured anew."""
        total = 0
        for pool in self.pools:
            staying = [one for one in self._of(pool) if not one.waits]
            total += pool.others + sum(one.bytes for one in staying) if pool.due else pool.bytes
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
    is_elsewhere: Callable[[], bool] = lambda: False
    """Whether a call runs through none of them, since it is in another thread, or its caller captures it."""

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
    def lacks_room(self) -> bool:
        """Whether calls of it run plain for lack of room."""
        return any(one.waits or one.is_stopped for one in list(self.by_sizes.values()))

    @property
    def lines(self) -> list[str]:
        """What `explain` says of it."""
        memory = self.memory
        if memory is None or not self.by_sizes:
            return []
        ones = list(self.by_sizes.values())
        held, waiting = sum(one.bytes for one in ones if one.is_captured), [one for one in ones if one.waits]
        bound = memory.bound
        allowed = "" if bound is None else f"; cuda_graph_memory allows {spelled_bytes(bound)}"
        said = [f"its CUDA graphs hold {spelled_bytes(held)} of {spelled_bytes(memory.bytes)} that all hold{allowed}"]
        if waiting:
            which = f", called with {len(waiting)} of {len(ones)} sets of sizes," if len(ones) > 1 else ""
            said.append(f"it{which} runs without a CUDA graph: {_why(waiting)}")
        elif any(one.is_stopped for one in ones):
            said.append(
                "it runs plain until the memory of those that were let go is freed, of which something is still held"
            )
        return said


def _why(waiting: Sequence[Occupant]) -> str:
    """Why programs wait that do."""
    times, most = sum(one.times for one in waiting), max(one.expected for one in waiting)
    if not times:
        return "others have been let go for lack of memory, and it was not called much more often than those that stay"
    if any(one.expected > (one.bound or 0) for one in waiting):
        return f"it was let go, since it alone held {spelled_bytes(most)}"
    return f"it was let go {times} ×, since all held too much and it had been called longest ago; it held {spelled_bytes(most)}"
