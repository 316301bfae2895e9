"""Option cuda_graph_memory: what graphs hold is added up, and whose are let go is decided, by numbers; the GPU is played by a stub."""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor.cudagraph_trees import ExecutionState

import fuseplan
from cudagraph_stub import CAPTURED, PLAIN, Captured, Training, Trees
from fuseplan.errors import OptionError
from fuseplan.options import Options
from fuseplan.plan import Plan
from fuseplan.runtime import Program, capture_place, cudagraph, graph_memory, graph_pool, made
from fuseplan.runtime.graph_memory import PATIENCE, GraphMemory, GraphPool, Occupant, ProgramGraphs
from fuseplan.stats import count, counts, level, stats

GB = 10**9
LET_GO = "CUDA graphs let go"
NO_ROOM = "calls run plain for lack of room for CUDA graphs"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (None, None),
        ("4GB", 4 * GB),
        (" 1.5 gib", 3 * 2**29),
        ("512MB", 512 * 10**6),
        ("4096", 4096),
        (4096, 4096),
        ("20%", 0.2),
        ("100 %", 1.0),
    ],
)
def test_what_the_option_means(given: object, meant: object) -> None:
    assert Options.parse({"cuda_graph_memory": given}).cuda_graph_memory == meant


@pytest.mark.parametrize(
    "given", ["", "much", "4XB", "-4GB", "0", 0, -1, True, 0.2, "0%", "120%", "4GB of it", ["4GB"]]
)
def test_what_the_option_cannot_mean_is_said_at_once(given: object) -> None:
    with pytest.raises(OptionError, match=r"option cuda_graph_memory is an amount of memory such as 4GB.*, not "):
        fuseplan.compile(lambda x: x, cuda_graph_memory=given)


def alone(captured: dict[str, int]) -> int:
    """Each program has its memory for itself …"""
    return sum(captured.values())


def shared(captured: dict[str, int]) -> int:
    """… or all use the same, one after the other."""
    return max(captured.values(), default=0)


def piled(captured: dict[str, int]) -> int:
    """… or one that is larger than all before it needs memory of its own, as where a graph is made of few large tensors."""
    most = total = 0
    for size in captured.values():
        total += size if size > most else 0
        most = max(most, size)
    return total


class Played:
    """Programs that are called, and captured in one pool where they may be."""

    def __init__(
        self, bound: int | None, together: Callable[[dict[str, int]], int] = alone, memory: GraphMemory | None = None
    ) -> None:
        self.bound, self.together = bound, together
        self.memory, self.pool = memory or GraphMemory(), GraphPool()
        self.ones: dict[str, Occupant] = {}
        self.captured: dict[str, int] = {}
        self.captures: Counter[str] = Counter()
        self.most = 0

    def call(self, name: str, size: int = 0, bound: int | None = None) -> bool:
        """Whether it was captured, then or before."""
        if self.pool.due:
            self.captured.clear()
            self.memory.freed(self.pool)
        if name not in self.ones:
            self.ones[name] = Occupant(self.bound if bound is None else bound)
            self.memory.enter(self.ones[name])
        one = self.ones[name]
        if one.bound is not None and not self.memory.admits(one):
            return False
        if name not in self.captured:
            self.captures[name] += 1
            self.captured[name] = size
            self.memory.captured(one, self.pool, self.together(self.captured))
            if not self.pool.due:
                self.most = max(self.most, self.together(self.captured))
        return True


def test_within_the_bound_nobody_goes() -> None:
    played = Played(10)
    for _ in range(50):
        assert all([played.call("a", 4), played.call("b", 6)])
    assert played.captures == {"a": 1, "b": 1}
    assert played.memory.bytes == 10


def test_without_a_bound_nobody_goes_and_all_is_known() -> None:
    played = Played(None)
    assert all([played.call("a", 400), played.call("b", 600)])
    assert played.memory.bytes == 1000
    assert [one.bytes for one in played.ones.values()] == [400, 600]


def test_the_least_recently_used_goes_first() -> None:
    played = Played(10)
    for name in ("a", "b", "a", "c"):  # c takes it over, and b was called longest ago
        played.call(name, 4)
    assert [name for name, one in played.ones.items() if one.waits] == ["b"]
    assert [played.call(name, 4) for name in ("a", "b", "c")] == [True, False, True]
    assert played.memory.bytes == 8


def test_what_is_called_in_turns_takes_no_turns_at_being_captured() -> None:
    played = Played(10)
    for round in range(3000):
        for name in ("a", "b", "c"):
            played.call(name, 4)
        if round == 100:
            before = played.captures.copy()
    assert played.captures == before
    assert sum(before.values()) <= 3 + 2 + 3  # two are captured anew, and once more when the third had its chance
    assert len(played.captured) == 2
    assert played.most <= 10


def test_what_is_called_much_more_often_comes_back() -> None:
    played = Played(10)
    for name in ("a", "b", "a", "c"):
        played.call(name, 4)
    for _ in range(PATIENCE):
        for name in ("b", "b", "b", "b", "b", "a", "c"):
            played.call(name, 4)
    assert "b" in played.captured
    for round in range(2000):  # and now it is called no more often than the others
        for name in ("a", "b", "c"):
            played.call(name, 4)
        if round == 200:
            before = played.captures.copy()
    assert played.captures == before


def test_what_fits_behind_others_gets_its_chance() -> None:
    """Captured one after the other they needed more than behind the largest."""
    played = Played(8, piled)
    for _ in range(100):
        for name, size in (("a", 2), ("b", 3), ("c", 4)):
            played.call(name, size)
    assert sorted(played.captured) == ["a", "b", "c"]
    assert played.memory.bytes <= 8


def test_what_is_called_no_more_makes_way() -> None:
    played = Played(10)
    for _ in range(5000):
        assert all([played.call("a", 5), played.call("b", 5)])
    calls = [played.call("c", 5) for _ in range(20 * PATIENCE)]
    assert calls[-1]
    for _ in range(PATIENCE):
        played.call("c", 5)
    assert "c" in played.captured


def test_what_was_called_often_long_ago_makes_way_too() -> None:
    played = Played(10)
    for calls, names in ((200, "abc"), (20_000, "bc")):
        for _ in range(calls):
            for name in names:
                played.call(name, 4)
    assert "a" not in played.captured
    for _ in range(8 * graph_memory.WINDOW):
        played.call("a", 4)
    assert "a" in played.captured


def test_who_holds_nothing_of_its_own_does_not_go_for_others() -> None:
    played = Played(15, piled)
    for name, size in (("a", 9), ("b", 3), ("a", 9), ("c", 12)):
        played.call(name, size)
    assert [name for name, one in played.ones.items() if one.waits] == ["a"]


def test_what_programs_have_left_that_are_no_more_goes_before_others() -> None:
    played = Played(10)
    played.call("gone", 6)
    del played.ones["gone"]
    gc.collect()
    for _ in range(3):
        assert played.call("b", 6)
    assert (played.memory.bytes, played.captures["b"]) == (6, 2)


def test_those_that_will_be_captured_anew_are_reckoned_with() -> None:
    played = Played(10)
    for _ in range(200):
        for name in ("a", "b", "c"):
            played.call(name, 4)
    assert sorted(played.captured) == ["b", "c"]
    played.pool.due = True
    for _ in range(5 * PATIENCE):
        assert not played.call("a", 4)


def test_who_was_let_in_goes_where_others_are_captured_anew_behind_it() -> None:
    """The memory is then found to grow with these, which did fit before."""
    played = Played(10)
    for _ in range(PATIENCE - 1):
        for name in ("a", "b", "c"):
            played.call(name, 4)
    assert played.ones["a"].waits
    while played.ones["a"].waits:
        played.call("a", 0)  # it seems to need nothing
    assert played.memory.captured(played.ones["b"], played.pool, 12) == [played.ones["a"]]
    assert played.pool.due


def test_who_was_let_in_long_ago_is_one_of_them() -> None:
    played = Played(10)
    for name in ("a", "b", "a", "c"):
        played.call(name, 4)
    del played.ones["c"]
    gc.collect()
    for _ in range(2 * PATIENCE):
        for name in ("b", "a"):
            played.call(name, 4)
    assert sorted(played.captured) == ["a", "b"]
    another = Occupant(10)
    played.memory.enter(another)
    assert played.memory.captured(another, played.pool, 12) == [played.ones["b"]]  # which was called longest ago


def test_there_is_room_once_others_are_gone() -> None:
    played = Played(10)
    for name in ("a", "b", "c"):
        played.call(name, 5)
    assert played.ones["a"].waits
    del played.ones["b"], played.ones["c"]
    gc.collect()
    for _ in range(PATIENCE):
        found = played.call("a", 5)
    assert found


def test_what_alone_holds_too_much_goes_alone_and_for_good() -> None:
    played = Played(10)
    played.call("a", 4)
    played.call("large", 20)
    for _ in range(200):
        assert [played.call("a", 4), played.call("large", 20), played.call("large", 20)] == [True, False, False]
    assert played.captures["large"] == 1
    assert played.memory.bytes == 4


def test_programs_that_share_memory_are_not_let_go() -> None:
    """What a second one adds counts, not what it would hold alone."""
    played = Played(10, shared)
    for _ in range(20):
        assert all(played.call(name, 9) for name in ("a", "b", "c"))
    assert sum(played.captures.values()) == 3


def test_one_that_only_seemed_small_is_let_go_once_it_is_seen() -> None:
    """Captured behind a larger one it adds little, and alone it is as large."""
    played = Played(10, lambda captured: shared(captured) + (3 if len(captured) > 1 else 0))
    for _ in range(500):
        for name in ("a", "b"):
            played.call(name, 9)
    assert sum(played.captures.values()) <= 6
    assert played.memory.bytes <= 10


def test_who_has_no_bound_is_never_let_go() -> None:
    memory = GraphMemory()
    free, bounded = Played(None, memory=memory), Played(10, memory=memory)
    bounded.pool, bounded.captured = free.pool, free.captured
    free.call("free", 8)
    bounded.call("a", 4)
    for _ in range(100):
        assert free.call("free", 8)
        assert not bounded.call("a", 4)
    assert memory.bytes == 8


def test_of_several_bounds_the_smallest_counts() -> None:
    played = Played(100)
    played.call("a", 6)
    played.call("b", 6, bound=10)
    assert played.ones["a"].waits


def test_what_another_thread_holds_counts_and_that_thread_frees_it() -> None:
    memory = GraphMemory()
    here, there = Played(10, memory=memory), Played(10, memory=memory)
    there.call("there", 6)
    here.call("here", 6)
    assert there.pool.due
    assert not here.pool.due
    assert memory.bytes == 12
    here.call("another", 3)  # what is about to be freed is reckoned with
    assert here.call("here")
    assert not there.call("there", 6)
    assert memory.bytes == 9 if here.call("another", 3) else memory.bytes == 6


def test_new_ones_without_end_stall_ever_less_often() -> None:
    """Sizes that come and go, each called a few times or often: of captures there are much fewer than calls."""
    random.seed(0)
    played, calls = Played(20), 20_000
    for number in range(calls):
        name = str(random.randrange(number // 100 + 3))
        played.call(name, 4)
    assert played.memory.freed_for < (2 * calls / PATIENCE) ** 0.5
    assert played.most <= 20


@pytest.mark.parametrize("together", [alone, shared, piled])
@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_called_the_bound_holds(seed: int, together: Callable[[dict[str, int]], int]) -> None:
    random.seed(seed)
    played = Played(30, together)
    sizes = {str(name): random.randrange(1, 25) for name in range(12)}
    for _ in range(3000):
        name = random.choices(list(sizes), weights=range(1, 13))[0]
        played.call(name, sizes[name])
    assert played.most <= 30
    assert played.captured  # of those that fit, some are
    assert sum(played.captures.values()) < 300


def test_a_share_is_of_all_there_is_on_the_device() -> None:
    graphs = ProgramGraphs(0.25)
    graphs.on(GraphMemory(), 80 * GB)
    assert graphs.bound == 20 * GB


def test_explain_says_what_is_held_and_what_was_let_go() -> None:
    memory, pool = GraphMemory(), GraphPool()
    ours, others = (ProgramGraphs(3 * GB) for _ in range(2))
    for each in (ours, others):
        assert each.lines == []
        each.on(memory, None)
        assert each.lines == []
    memory.captured(ours.called_with(()), pool, 2 * GB)
    said = "its CUDA graphs hold 2.0 GB of 2.0 GB that all hold; cuda_graph_memory allows 3.0 GB"
    program = Program("key", None, Plan("aten"), "why", cuda_graphs=ours)
    assert ours.lines == [said]
    assert f"  {said}\n" in fuseplan_text(program) + "\n"
    assert others.called_with(()) is others.called_with(())
    memory.captured(others.called_with(()), pool, 4 * GB)
    memory.freed(pool)
    assert ours.lines[1] == (
        "it runs without a CUDA graph: it was let go 1 ×, since all held too much and it had been called longest ago; it held 2.0 GB"
    )
    assert others.called_with((7,)).waits
    assert "it, called with 1 of 2 sets of sizes, runs without a CUDA graph: others have been let go" in others.lines[1]


def fuseplan_text(program: Program) -> str:
    from fuseplan.explain import _program

    return _program(program, "program 1 of 1", graphs=False)


def test_what_goes_up_and_down_is_shown_and_never_added_up() -> None:
    held = [5]
    level("held in this test", lambda: held[0])
    count("counted in this test")
    assert stats()["held in this test"] == 5
    held[0] = 3
    assert stats()["held in this test"] == 3
    assert "held in this test" not in counts()
    assert counts()["counted in this test"] == 1


class Filled(Trees):
    """Trees whose graphs hold so much each; a capture is seen by the state that they are in."""

    def __init__(self) -> None:
        super().__init__()
        self.path_state = ExecutionState.RECORDING
        self.device_index = 0
        self.roots: dict[Any, list[Any]] = {}
        self.held, self.begun = 0, 0


@pytest.fixture
def trees(monkeypatch: pytest.MonkeyPatch) -> Iterator[Filled]:
    found = Filled()

    def begin_anew(manager: Filled) -> None:
        manager.held, manager.begun = 0, manager.begun + 1
        manager.current_node = None  # type: ignore[assignment]

    monkeypatch.setattr(graph_pool, "_MEMORIES", {})
    monkeypatch.setattr(graph_pool, "held_by", lambda manager: manager.held)
    monkeypatch.setattr(graph_pool, "begin_anew", begin_anew)
    yield found
    torch._dynamo.reset()


class Sized(Training):
    """A program whose graphs hold so many bytes, and whose trees others share."""

    def __init__(self, trees: Filled, monkeypatch: pytest.MonkeyPatch, size: int, bound: int | None) -> None:
        super().__init__(nn.Sequential(nn.Linear(8, size), nn.LayerNorm(size), nn.Softmax(-1)), monkeypatch)
        self.trees = self.here = trees
        monkeypatch.setattr(cudagraph, "get_manager", lambda *args, **options: trees)
        monkeypatch.setattr(capture_place, "get_manager", lambda *args, **options: trees)
        self.graphs = ProgramGraphs(bound)
        self.launch = cudagraph.CudaGraphLaunch([], self.graphs)
        self.size, self.in_trees, self.monkeypatch = size, set[tuple[int, bool]](), monkeypatch

    def cudagraphify(self, plain: Any, *, is_backward: bool, static_input_idxs: Sequence[int] = (), **_: Any) -> Any:
        captured = super().cudagraphify(plain, is_backward=is_backward, static_input_idxs=static_input_idxs)

        def call(args: list[Any]) -> Any:
            trees: Any = self.trees
            if (trees.begun, is_backward) not in self.in_trees:
                self.in_trees.add((trees.begun, is_backward))
                trees.held += self.size
            return captured(args)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        self.log.clear()
        self.monkeypatch.setattr(cudagraph, "cudagraphify", self.cudagraphify)
        found: torch.Tensor = self.call(x).square().sum()
        return found

    def step(self, x: torch.Tensor) -> None:
        self.loss(x).backward()


X = torch.randn(4, 8)


def test_a_program_that_is_let_go_runs_plain_forward_and_backward(
    trees: Filled, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = stats()
    a, b = (Sized(trees, monkeypatch, size, 70) for size in (16, 24))
    a.step(X)
    assert (a.log, trees.held) == (CAPTURED, 32)
    b.step(X)
    assert (b.log, trees.held) == (CAPTURED, 80)
    assert stats()["bytes held by CUDA graphs"] == 80
    a.step(X)
    assert (a.log, trees.begun) == (PLAIN, 1)
    assert stats()["bytes held by CUDA graphs"] == 0
    for _ in range(5):
        b.step(X)
        a.step(X)
        assert (a.log, b.log, trees.held) == (PLAIN, CAPTURED, 48)
    (warning,) = [event.message for event in caplog.records if "cuda_graph_memory" in event.message]
    assert "the programs that were called longest ago run without theirs" in warning
    assert stats()[LET_GO] - before.get(LET_GO, 0) == 1
    assert stats()[NO_ROOM] - before.get(NO_ROOM, 0) == 6


def test_the_rest_of_a_step_that_went_over_runs_plain(trees: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its backward too: what the forward has saved lies in memory that is about to be freed, and is its own by then."""
    a, b = (Sized(trees, monkeypatch, size, 40) for size in (16, 32))
    a.step(X)
    b.step(X)
    assert b.log == ["forward captured", "backward plain"]
    trees.alive = trees.pending = True  # the step is not over, and something of it is held
    a.step(X)
    assert (a.log, trees.begun) == (["forward plain", "backward plain"], 0)
    trees.alive = False
    b.step(X)
    assert trees.begun == 1


def test_a_backward_whose_forward_was_before_all_was_freed_runs_plain(
    trees: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = (Sized(trees, monkeypatch, size, 1000) for size in (16, 24))
    loss = a.loss(X)
    trees.pending = False
    graph_pool._TREES[trees].pool.due = True  # type: ignore[index]
    b.step(X)
    assert (b.log, trees.begun) == (CAPTURED, 1)
    a.log.clear()
    monkeypatch.setattr(cudagraph, "cudagraphify", a.cudagraphify)  # it is compiled now
    loss.backward()
    assert a.log == ["backward plain"]
    a.step(X)
    assert a.log == CAPTURED


def test_nothing_is_freed_while_what_torchs_own_programs_gave_may_be_read(
    trees: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their later steps have written over it, so that the trees know nothing of it, and cannot give it memory of its own."""
    a = Sized(trees, monkeypatch, 16, 1000)
    a.step(X)
    graph_pool._TREES[trees].pool.due = True  # type: ignore[index]
    stray = SimpleNamespace(children={}, outputs_weakrefs=[SimpleNamespace(expired=lambda: False)])
    trees.roots = {"torch's own": [stray]}
    a.step(X)
    assert (a.log, trees.begun) == (PLAIN, 0)
    stray.outputs_weakrefs.clear()
    a.step(X)
    assert (a.log, trees.begun) == (CAPTURED, 1)


@pytest.mark.parametrize("captured", ["before", "at its turn in each step"])
def test_what_torchs_own_programs_hold_is_not_said_to_be_of_ours(
    captured: str, trees: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have theirs in the same pool: it counts, but a small program is not kept from its graph for good for it."""
    a = Sized(trees, monkeypatch, 16, 1000)
    for held in (700,) if captured == "before" else (400, 300):  # a warm-up, and a capture in the next step
        trees.held += held
        trees.current_node = Captured(trees, "torch's own")
        a.in_trees.clear()
        a.step(X)
    (occupant,) = a.graphs.by_sizes.values()
    assert (occupant.waits, occupant.bytes) == (False, trees.held - 700)
    b = Sized(trees, monkeypatch, 8, 1000)
    trees.held += 1100
    b.step(X)
    assert "since all held too much and it had been called longest ago; it held 1 kB" in b.graphs.lines[-1]


def test_what_torchs_own_programs_hold_makes_no_step_after_another_stall(
    trees: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are captured anew whenever all is freed, and leave no room."""
    a = Sized(trees, monkeypatch, 16, 1000)
    for _ in range(2000):
        if trees.held < 1100:
            trees.held += 1100
            trees.current_node = Captured(trees, "torch's own")
        a.step(X)
    assert 1 <= trees.begun < 40


def test_what_is_in_the_way_for_long_is_not_looked_for_at_each_call(
    trees: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over hundreds of graphs a look takes milliseconds."""
    a = Sized(trees, monkeypatch, 16, 1000)
    a.step(X)
    graph_pool._TREES[trees].pool.due = True  # type: ignore[index]
    looks: list[bool] = []
    stray = SimpleNamespace(expired=lambda: bool(looks.append(True)))
    trees.roots = {"torch's own": [SimpleNamespace(children={}, outputs_weakrefs=[stray])]}
    for _ in range(10 * graph_pool.PUT_OFF):
        a.loss(X)
    assert len(looks) <= 2 * graph_pool.PUT_OFF
    assert "it runs plain until the memory of those that were let go is freed" in a.graphs.lines[-1]
    trees.roots = {}
    for _ in range(graph_pool.PUT_OFF + 1):
        a.step(X)
    assert (a.log, trees.begun) == (CAPTURED, 1)


def test_what_is_held_of_the_last_step_is_no_reason_to_wait(trees: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given memory of its own; and then nothing is in the way of a captured step."""
    a = Sized(trees, monkeypatch, 16, 1000)
    a.step(X)
    trees.alive = True
    a.step(X)
    assert a.log == PLAIN
    graph_pool._TREES[trees].pool.due = True  # type: ignore[index]
    a.step(X)
    assert (a.log, trees.begun) == (CAPTURED, 1)


def test_a_step_that_never_ends_is_not_waited_for(trees: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of forwards without a backward something is held: it is given memory of its own."""
    a = Sized(trees, monkeypatch, 16, 1000)
    a.step(X)
    graph_pool._TREES[trees].pool.due = trees.pending = trees.alive = True  # type: ignore[index]
    logs = []
    for _ in range(graph_pool.PUT_OFF + 1):
        a.loss(X)
        logs += a.log
    assert logs == ["forward plain"] * graph_pool.PUT_OFF + ["forward captured"]
    assert trees.begun == 1


def test_where_there_are_no_trees_nothing_is_freed(trees: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that waits may be called in one thread, where something is to be freed, and then in another that has captured nothing."""
    Sized(trees, monkeypatch, 16, 1000).step(X)
    graph_pool._TREES[trees].pool.due = trees.pending = trees.alive = True  # type: ignore[index]
    room = graph_pool.Room(ProgramGraphs(1000))
    room.on(0, made.Made())
    assert not room.is_there(trees, [])  # type: ignore[arg-type]
    assert room.is_there(None, [])


def test_without_a_bound_programs_run_as_ever(trees: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (Sized(trees, monkeypatch, size, None) for size in (16, 24))
    for _ in range(3):
        a.step(X)
        b.step(X)
        assert (a.log, b.log) == (CAPTURED, CAPTURED)
    assert a.graphs.lines == ["its CUDA graphs hold 1 kB of 1 kB that all hold"]
    assert trees.begun == 0


def test_trees_begin_anew_with_an_empty_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is private in torch is there: functions stay known, graphs go, and so does what was kept of them."""
    calls: list[str] = []

    class Node:
        def __init__(self, *children: Node) -> None:
            self.children = {number: [child] for number, child in enumerate(children)}
            self.graph: Any = object()

        def remove_node_cached_tensors(self) -> None:
            calls.append("tensors")

    def made_for(device: int) -> Any:
        return SimpleNamespace(
            device_index=device, roots={}, graph=object(), cuda_graphs_thread_pool=(0, 9), stream=object()
        )

    monkeypatch.setattr(graph_pool, "CUDAGraphTreeManager", made_for)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: calls.append("waited"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("emptied"))
    leaf = Node()
    root = Node(leaf, Node())
    manager: Any = made_for(0)
    manager.roots, manager.ids_to_funcs, manager.current_node = {"f": [root]}, {"f": object()}, None
    manager.cuda_graphs_thread_pool = (0, 1)
    graph_pool.begin_anew(manager)
    assert calls == ["waited", *["tensors"] * 3, "emptied"]
    assert (leaf.graph, root.graph, manager.roots, manager.current_node) == (None, None, {}, None)
    assert manager.cuda_graphs_thread_pool == (0, 9)
    assert list(manager.ids_to_funcs) == ["f"]


def test_torchs_trees_have_what_is_replaced() -> None:
    from inspect import getsource

    from torch._inductor.cudagraph_trees import CUDAGraphNode, CUDAGraphTreeManager

    source = getsource(CUDAGraphTreeManager.__init__)
    for name in ("roots", "graph", "cuda_graphs_thread_pool", "stream", "device_index", "current_node", "path_state"):
        assert f"self.{name}" in source
    assert hasattr(CUDAGraphTreeManager, "apply_checkpoint_execution_state_in_allocator")
    assert hasattr(CUDAGraphNode, "remove_node_cached_tensors")
    assert graph_memory.PATIENCE > 0
