"""The memory of CUDA graphs in PyTorch's trees: measured after each capture, and freed where that of some programs is let go.

The trees of a thread have one pool for all graphs, and CUDA's allocator gives none of it back as long as one graph is left. Nor can one
graph go alone: others were captured behind it, over what it makes. So all go at once, between two steps, and the trees go on as they
are with a new pool. Each function is still known to them, and captured anew when it is called next, those of torch's own as well.
What a caller still holds then, or autograd, keeps its memory: the trees give it to what holds it, as they do before they capture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch._inductor import cudagraph_trees
from torch._inductor.cudagraph_trees import CUDAGraphNode, CUDAGraphTreeManager, ExecutionState

from fuseplan.log import logger
from fuseplan.measure.segments import segments
from fuseplan.runtime.graph_memory import GraphMemory, GraphPool, Occupant, ProgramGraphs
from fuseplan.runtime.held import gives_held, is_held
from fuseplan.runtime.made import Made
from fuseplan.sizes import spelled_bytes
from fuseplan.stats import count, level

PUT_OFF = 64
"""So many calls wait for the end of a step. Then it is none: something of it is held, and no backward comes. And then only each one of
so many looks if something else is in the way."""
_MEMORIES: dict[int, GraphMemory] = {}
"""By the number of a device."""


@dataclass(eq=False)
class _Trees:
    """What is known of the trees of one thread."""

    pool: GraphPool = field(default_factory=GraphPool)
    last: ref[Any] | None = None
    """The graph after whose capture the pool was looked at last."""
    looked_for: WeakSet[Occupant] = field(default_factory=WeakSet)
    """Before whose capture it was looked at, since it was freed last."""
    put_off: int = 0
    """How many calls ran plain since a step was not over."""
    made: WeakSet[Made] = field(default_factory=WeakSet)
    """Where captured forwards have put what they make: nowhere any more, once the pool is freed."""

    def last_is(self, node: Any) -> bool:
        """Whether this is the graph after whose capture the pool was looked at last."""
        return self.last is not None and self.last() is node

    @property
    def is_worth_a_look(self) -> bool:
        """Whether to look if the pool may be freed now: over hundreds of graphs, that takes milliseconds."""
        return self.put_off <= PUT_OFF or self.put_off % PUT_OFF == 1


_TREES: WeakKeyDictionary[CUDAGraphTreeManager, _Trees] = WeakKeyDictionary()


class Room:
    """Whether there is room for the graphs of one program."""

    def __init__(self, graphs: ProgramGraphs) -> None:
        self.graphs = graphs
        self.made: Made | None = None
        self.now: Occupant | None = None
        """The program, with the sizes that its forward was called with last."""
        self._sizes_at: tuple[int, ...] | None = None
        self._trees: _Trees | None = None

    def on(self, device: int, made: Made) -> None:
        """Know where the program is captured, and what its forward makes."""
        if device not in _MEMORIES:
            _MEMORIES[device] = GraphMemory()
            level("bytes held by CUDA graphs", lambda: sum(memory.bytes for memory in list(_MEMORIES.values())))
        shares = isinstance(self.graphs.asked, float)
        there_is = torch.cuda.get_device_properties(device).total_memory if shares else None
        self.graphs.on(_MEMORIES[device], there_is)
        self.made, self._trees = made, None

    def is_there(self, manager: CUDAGraphTreeManager | None, args: Sequence[Any]) -> bool:
        """Whether a forward may run through a graph. What was let go is freed first, if a step is over."""
        trees = self._of(manager)
        if trees is not None and trees.pool.due:
            assert manager is not None
            trees.put_off += 1
            if not trees.is_worth_a_look or _is_held_unknown(manager):
                return False
            if _is_within_step(manager) and trees.put_off <= PUT_OFF:
                return False
            free(manager)
        one = self.now = self.graphs.called_with(self._sizes(args))
        if one.bound is None or self.graphs.memory is None:
            return True
        if not self.graphs.memory.admits(one):
            return False
        if manager is not None and not (one.is_captured and manager.path_state is ExecutionState.EXECUTION):
            self._look_before(manager, one, self.graphs.memory)
        return True

    def is_left(self, manager: CUDAGraphTreeManager | None) -> bool:
        """Whether the backward of the last forward may run through a graph."""
        trees = self._of(manager)
        return not (trees is not None and trees.pool.due) and not (self.now is not None and self.now.waits)

    def look(self, manager: CUDAGraphTreeManager) -> None:
        """See what the graphs hold, if this call was captured."""
        if self.now is None or manager.path_state is ExecutionState.EXECUTION:
            return
        node = manager.current_node
        if node is None:
            return
        trees = self._trees = _TREES.setdefault(manager, _Trees())
        if trees.last_is(node):
            return
        trees.last = ref(node)
        if self.made is not None:
            trees.made.add(self.made)
        memory, held = self.graphs.memory, _held_if_seen(manager)
        assert memory is not None
        going = () if held is None else memory.captured(self.now, trees.pool, held)
        if going:
            count("CUDA graphs let go", len(going))
            if memory.freed_for == 1:
                logger.warning(_told(memory, manager.device_index))

    def _look_before(self, manager: CUDAGraphTreeManager, one: Occupant, memory: GraphMemory) -> None:
        """See what the graphs hold before a program is captured, unless that is known: torch's own programs have theirs in the pool too."""
        trees, node = _TREES.setdefault(manager, _Trees()), manager.current_node
        is_known = node is None or manager.path_state is ExecutionState.EXECUTION or trees.last_is(node)
        if is_known and (one.is_captured or one in trees.looked_for):
            return
        trees.looked_for.add(one)
        trees.last = None if node is None else ref(node)
        held = _held_if_seen(manager)
        if held is not None:
            memory.others_hold(trees.pool, held)

    def _of(self, manager: CUDAGraphTreeManager | None) -> _Trees | None:
        if self._trees is None and manager is not None:  # not captured yet, wherever that will be
            return _TREES.get(manager)
        return self._trees

    def _sizes(self, args: Sequence[Any]) -> tuple[Any, ...]:
        if self.graphs.bound is None:
            return ()
        if self._sizes_at is None:
            self._sizes_at = tuple(i for i, one in enumerate(args) if isinstance(one, int))
        return tuple(args[i] for i in self._sizes_at)


@cache
def _say_once(text: str) -> None:
    logger.warning("%s", text, exc_info=True)


def _told(memory: GraphMemory, device: int) -> str:
    bound = spelled_bytes(memory.bound or 0)
    return (
        f"CUDA graphs hold {spelled_bytes(memory.bytes)} of cuda:{device}, and option cuda_graph_memory allows {bound}: the programs"
        " that were called longest ago run without theirs; fuseplan.explain(…) says of each what it holds, and fuseplan.stats() counts"
        " them. This is said once"
    )


def _held_if_seen(manager: CUDAGraphTreeManager) -> int | None:
    try:
        return held_by(manager)
    except (RuntimeError, TypeError, KeyError):  # the call itself was right: what cannot be seen is not bounded
        _say_once("what CUDA graphs hold cannot be seen with this torch: cuda_graph_memory bounds nothing")
        return None


def held_by(manager: CUDAGraphTreeManager) -> int:
    """The bytes of the pool of these trees. What the driver keeps of a graph itself is not among them."""
    return sum(segment["total_size"] for segment in segments(manager.cuda_graphs_thread_pool))


def _is_within_step(manager: CUDAGraphTreeManager) -> bool:
    """Whether what is captured next may belong to the graphs before: these would have to be captured anew in the middle."""
    node = manager.current_node
    return node is not None and not manager.can_start_new_generation() and is_held(node)


def _is_held_unknown(manager: CUDAGraphTreeManager) -> bool:
    """Whether something is held that the trees cannot give memory: what programs of torch's own gave, whose later steps have written
    over it. All else that is held is of the step that was last.
    """
    path, node = set[int](), manager.current_node
    while node is not None:
        path.add(id(node))
        node = node.parent
    return any(gives_held(each) for each in _nodes(manager) if id(each) not in path)


def free(manager: CUDAGraphTreeManager) -> None:
    """Free the pool, but for what is held, and all graphs with it."""
    begin_anew(manager)
    trees = _TREES[manager]
    for made in trees.made:
        made.forget()
    trees.last, trees.put_off = None, 0
    trees.looked_for.clear()
    _MEMORIES[manager.device_index].freed(trees.pool)
    count("memory of CUDA graphs freed")


def begin_anew(manager: CUDAGraphTreeManager) -> None:
    """Have the trees go on with a new pool, and no graph."""
    fresh = CUDAGraphTreeManager(manager.device_index)  # which brings an empty pool, and what keeps it
    with getattr(cudagraph_trees, "graph_capture_lock", None) or nullcontext():
        torch.cuda.synchronize(manager.device_index)
        _give_memory_to_holders(manager)
        for each in _nodes(manager):
            each.remove_node_cached_tensors()
            each.graph = None
        manager.current_node = None  # and nobody else may have it: one that was no more than warmed up keeps the pool
        manager.roots, manager.graph = fresh.roots, fresh.graph
        manager.cuda_graphs_thread_pool, manager.stream = fresh.cuda_graphs_thread_pool, fresh.stream
        with suppress(RuntimeError):  # another thread captures a graph of its own: the next capture here empties it
            torch.cuda.empty_cache()


def _give_memory_to_holders(manager: CUDAGraphTreeManager) -> None:
    """Have what is held own its memory. What was captured or warmed up last does; what a replay gave only looks at that of the graph."""
    node = manager.current_node
    if node is not None and manager.path_state is ExecutionState.EXECUTION and is_held(node):
        manager.apply_checkpoint_execution_state_in_allocator()


def _nodes(manager: CUDAGraphTreeManager) -> Iterator[CUDAGraphNode]:
    ahead = [node for roots in manager.roots.values() for node in roots]
    while ahead:
        node = ahead.pop()
        yield node
        ahead += [child for children in node.children.values() for child in children]
