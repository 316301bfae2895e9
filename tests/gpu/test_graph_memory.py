"""Option cuda_graph_memory on a GPU: the bound holds, results are those of eager whatever was let go, and no two take turns at it."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.cudagraph_trees import CUDAGraphTreeManager, get_manager

import fuseplan
from captured import LARGE, assert_same_gradients, close, counted_since, model
from fuseplan.runtime import graph_pool
from fuseplan.runtime.graph_memory import PATIENCE

pytestmark = pytest.mark.gpu

WIDTH = 256
"""Of float32, so that a thousand rows are a mebibyte."""
FREED, LET_GO = "memory of CUDA graphs freed", "CUDA graphs let go"
NO_ROOM = "calls run plain for lack of room for CUDA graphs"


@pytest.fixture(autouse=True)
def _nothing_held(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(graph_pool, "_MEMORIES", {})
    drop_everything()
    yield
    drop_everything()


def drop_everything() -> None:
    """With the trees, all that they hold goes."""
    torch._dynamo.reset()
    gc.collect()
    graph_pool._MEMORIES.clear()
    torch.cuda.empty_cache()


def compiled(program: Any, bound: object = None, **options: Any) -> Any:
    return fuseplan.compile(
        program, plan="aten", launch="cudagraph", cuda_graph_memory=bound, **{"dynamic": False, **options}
    )


def held() -> int:
    return fuseplan.stats()["bytes held by CUDA graphs"]


def in_private_pools() -> int:
    """What the allocator says that graphs hold, whoever's they are."""
    torch.cuda.empty_cache()
    segments = torch.cuda.memory_snapshot()
    return sum(segment["total_size"] for segment in segments if tuple(segment["segment_pool_id"]) != (0, 0))


def overwrite_what_is_free() -> None:
    torch.cuda.empty_cache()
    junk = [torch.full((2**24,), float("nan"), device="cuda") for _ in range(16)]
    torch.cuda.synchronize()
    del junk


def free_at_the_next_call() -> None:
    """As where a capture in another thread has gone over the bound."""
    manager = get_manager(0, create_if_none_exists=False)
    assert manager is not None
    graph_pool._TREES[manager].pool.due = True


class Loss(nn.Module):
    """Saves about eight times its input for the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(WIDTH, WIDTH), nn.GELU())))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).square().mean()


class Trained:
    """A program beside the same in eager."""

    def __init__(self, rows: int, bound: object = None) -> None:
        self.net = Loss().cuda()
        self.twin = copy.deepcopy(self.net)
        self.compiled = compiled(self.net, bound)
        self.x = torch.empty(rows, WIDTH, device="cuda")

    def losses(self) -> tuple[Tensor, Tensor]:
        x = self.x.normal_()
        for module in (self.net, self.twin):
            module.zero_grad()
        return self.compiled(x), self.twin(x)

    @property
    def runs_plain(self) -> bool:
        return "it runs without a CUDA graph" in fuseplan.explain(self.compiled, graphs=False)


def step(programs: Sequence[Trained]) -> None:
    """All forwards, and then all backwards: what each saves is there at the same time."""
    losses = [one.losses() for one in programs]
    for which in (0, 1):
        torch.stack([both[which] for both in losses]).sum().backward()
    for loss, expected in losses:
        close(loss.detach(), expected.detach())
    for one in programs:
        assert_same_gradients(one.net, one.twin)


def held_together(sizes: Sequence[int]) -> int:
    """What such programs hold without a bound."""
    programs = [Trained(rows) for rows in sizes]
    for _ in range(4):
        step(programs)
    found = held()
    del programs
    drop_everything()
    return found


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    record = CUDAGraphTreeManager.record_function

    def recorded(self: CUDAGraphTreeManager, *args: Any) -> Any:
        found.append("recorded")
        return record(self, *args)

    monkeypatch.setattr(CUDAGraphTreeManager, "record_function", recorded)
    return found


def test_what_is_held_is_known_without_a_bound() -> None:
    before = in_private_pools()
    one = Trained(16 * 1024)
    for _ in range(4):
        step([one])
    assert held() == in_private_pools() - before
    assert held() > 100 * 2**20
    said = fuseplan.explain(one.compiled, graphs=False)
    assert f"its CUDA graphs hold {held() / 10**6:.0f} MB of {held() / 10**6:.0f} MB that all hold\n" in said + "\n"


def test_the_least_recently_used_goes_and_the_others_stay_captured(
    recordings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    sizes = [rows * 1024 for rows in (16, 14, 12)]
    two, three = held_together(sizes[:2]), held_together(sizes)
    assert two < three
    bound, start, before = (two + three) // 2, in_private_pools(), fuseplan.stats()
    programs = [Trained(rows, bound) for rows in sizes]
    for _ in range(3 * PATIENCE):
        step(programs)
    assert [one.runs_plain for one in programs] == [True, False, False]
    assert held() <= bound
    assert in_private_pools() - start <= bound
    assert counted_since(before, LET_GO) >= 1
    assert len([one for one in caplog.records if "cuda_graph_memory" in one.getMessage()]) == 1
    settled, recorded = fuseplan.stats(), len(recordings)
    for _ in range(2 * PATIENCE):
        step(programs)
    assert len(recordings) == recorded
    assert counted_since(settled, FREED) == counted_since(settled, LET_GO) == 0
    assert counted_since(settled, NO_ROOM) == 2 * PATIENCE


def test_one_that_is_called_much_more_often_takes_the_place_of_others() -> None:
    sizes = [rows * 1024 for rows in (16, 14, 12)]
    bound = (held_together(sizes[:2]) + held_together(sizes)) // 2
    programs = [Trained(rows, bound) for rows in sizes]
    for _ in range(6):
        step(programs)
    assert programs[0].runs_plain
    for _ in range(10 * PATIENCE):
        step(programs[:1])
    assert not programs[0].runs_plain
    for _ in range(8):
        step(programs)
    assert held() <= bound


def test_what_alone_holds_too_much_runs_plain_for_good(recordings: list[str]) -> None:
    before = in_private_pools()
    one = Trained(16 * 1024, "16MB")
    for _ in range(3 * PATIENCE):
        step([one])
    assert one.runs_plain
    assert "since it alone held" in fuseplan.explain(one.compiled, graphs=False)
    assert (held(), recordings) == (0, [])
    assert in_private_pools() == before


def test_programs_that_are_called_in_turns_share_and_stay_within_the_bound(recordings: list[str]) -> None:
    nets = [model_of(parts) for parts in (3, 4, 5)]
    inputs = [torch.randn(rows * 1024, WIDTH, device="cuda") for rows in (12, 16, 24)]
    with torch.no_grad():
        largest = compiled(nets[-1])
        for _ in range(4):
            largest(inputs[-1])
        bound = held() * 3 // 2
        del largest
        drop_everything()
        calls = [compiled(net, bound) for net in nets]
        for number in range(6 * PATIENCE):
            for net, call, x in zip(nets, calls, inputs, strict=True):
                close(call(x), net(x))
            if number == 5 * PATIENCE:
                recorded = len(recordings)
    assert held() <= bound
    assert len(recordings) == recorded
    plain = ["it runs without" in fuseplan.explain(call, graphs=False) for call in calls]
    assert plain.count(True) <= 1


def model_of(parts: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(parts))).cuda().eval()


def held_by(net: nn.Module, inputs: Sequence[Tensor]) -> int:
    """What a program holds without a bound that is called with each of these in turn."""
    call = compiled(net, dynamic=True)
    for _ in range(4):
        for x in inputs:
            call(x)
    found = held()
    del call
    drop_everything()
    return found


def test_of_a_program_with_many_sizes_some_are_let_go() -> None:
    net = model_of(3)
    inputs = [torch.randn(rows * 1024, WIDTH, device="cuda") for rows in (12, 16, 20, 24, 32)]
    with torch.no_grad():
        bound = held_by(net, inputs) * 3 // 4
        call = compiled(net, bound, dynamic=True)
        before = fuseplan.stats()
        for _ in range(8):
            for x in inputs:
                close(call(x), net(x))
    assert held() <= bound
    assert counted_since(before, LET_GO) >= 1
    assert "of 5 sets of sizes, runs without a CUDA graph" in fuseplan.explain(call, graphs=False)


def test_an_output_of_a_capture_that_went_over_stays_as_it_was() -> None:
    net = model().eval()
    call = compiled(net, 1000)
    inputs = [torch.randn(LARGE, 64, device="cuda") for _ in range(6)]
    before = fuseplan.stats()
    with torch.no_grad():
        kept = []
        for x in inputs:
            kept.append(call(x))
            overwrite_what_is_free()
        assert counted_since(before, FREED) == 1
        for x, y in zip(inputs, kept, strict=True):
            close(y, net(x))


@pytest.mark.parametrize("viewed", [False, True])
def test_an_output_of_a_replay_stays_as_it_was_when_all_is_freed(viewed: bool) -> None:
    """It only looks at memory of its graph, and is given that now."""
    net = model().eval()
    call, start = compiled(net, "1GB"), in_private_pools()
    x = torch.randn(LARGE, 64, device="cuda")
    with torch.no_grad():
        for _ in range(6):
            call(x)
        kept = call(x)[3:] if viewed else call(x)
        before = fuseplan.stats()
        free_at_the_next_call()
        other = torch.randn(LARGE, 64, device="cuda")
        found = [call(other).clone() for _ in range(5)]
        assert counted_since(before, FREED) == 1
        assert counted_since(before, NO_ROOM) == 0
        overwrite_what_is_free()
        close(kept, net(x)[3:] if viewed else net(x))
        for one in found:
            close(one, net(other))
        del kept
        assert in_private_pools() - start == held()  # the old memory went with what held it


def test_a_backward_comes_right_although_all_was_freed_since_its_forward() -> None:
    one, other = Trained(4 * 1024, "1GB"), Trained(2 * 1024, "1GB")
    for _ in range(5):
        step([one, other])
    loss, expected = one.losses()
    step([other])  # whose backward ends the step, for all that the trees know
    before = fuseplan.stats()
    free_at_the_next_call()
    step([other])
    assert counted_since(before, FREED) == 1
    step([other])
    overwrite_what_is_free()
    loss.backward()
    expected.backward()
    assert_same_gradients(one.net, one.twin)
    assert counted_since(before, "backward calls run plain") >= 1
    for _ in range(3):
        step([one, other])
    before = fuseplan.stats()
    for _ in range(3):
        step([one, other])
    assert [event for event, n in fuseplan.stats().items() if "run plain" in event and n > before.get(event, 0)] == []


def test_a_backward_comes_right_although_all_was_freed_within_its_step() -> None:
    one, other = Trained(4 * 1024, "1GB"), Trained(2 * 1024, "1GB")
    for _ in range(5):
        step([one, other])
    loss, expected = one.losses()
    before = fuseplan.stats()
    free_at_the_next_call()
    for _ in range(graph_pool.PUT_OFF + 3):  # forwards without a backward
        found, wanted = other.losses()
        close(found.detach(), wanted.detach())
    assert counted_since(before, FREED) == 1
    assert counted_since(before, NO_ROOM) == graph_pool.PUT_OFF
    del found, wanted
    overwrite_what_is_free()
    loss.backward()
    expected.backward()
    assert_same_gradients(one.net, one.twin)
    for _ in range(3):
        step([one, other])


def test_graphs_of_torchs_own_go_on_in_the_same_trees() -> None:
    net, theirs = model().eval(), model().eval()
    ours, own = compiled(net, "1GB"), torch.compile(theirs, backend="cudagraphs")
    x = torch.randn(LARGE, 64, device="cuda")
    before = fuseplan.stats()
    with torch.no_grad():
        for number in range(12):
            if number == 6:
                free_at_the_next_call()
            close(ours(x).clone(), net(x))
            found = own(x).clone()
            close(found, theirs(x))
    assert counted_since(before, FREED) == 1
