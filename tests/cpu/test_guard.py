"""Option verify="sampled": a few calls run the default, what is found is written down, and a slower plan is taken back."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch.utils.checkpoint import checkpoint

import fuseplan
from fuseplan import backend
from fuseplan.backend import programs_of
from fuseplan.errors import OptionError
from fuseplan.explain import compiled_by
from fuseplan.guard import production
from fuseplan.guard.guard import PlanGuard
from fuseplan.guard.rounds import Pace
from fuseplan.guard.times import CallTime, HostClock, backward_of
from fuseplan.measure.environment import environment
from fuseplan.plan import CarveOuts, Plan
from fuseplan.runtime import Program, replay
from fuseplan.runtime.graph_memory import Occupant
from fuseplan.segment import Segmentation
from fuseplan.stats import stats
from fuseplan.tuning_db import Hit, Miss, Places, Query, Store, StoredPlan, clock

ATEN, EAGER = Plan.named("aten"), Plan.named("eager")
QUICK = Pace(rounds=12, first=6, later=8, unheeded=1)


def chain(x: Tensor) -> Tensor:
    return (x * 2).relu() + 1


class Device:
    """A clock that only moves when a program runs, by what that is said to take."""

    def __init__(self) -> None:
        self.at_us = 0.0
        self.takes = {ATEN: 100.0, EAGER: 150.0}
        self.ran: list[Plan] = []

    def now(self) -> float:
        return self.at_us

    def us(self, start: float, end: float) -> float:
        return end - start

    def run(self, plan: Plan) -> None:
        self.ran.append(plan)
        self.at_us += self.takes[plan] * (1 + 0.001 * (len(self.ran) % 7))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """The default is eager, and what runs when is told; no time passes but what a test says."""
    found = Device()

    def timed(plan: Plan, gm: Any, example_inputs: Sequence[Any], program: Program) -> Callable[..., Any]:
        called = replay(plan, gm, example_inputs, program)

        def call(*args: Any) -> Any:
            found.run(plan)
            return called(*args)

        return call

    monkeypatch.setattr("fuseplan.lookup.missing_compiler", lambda *_: "no compiler in this test")
    monkeypatch.setattr(backend, "replay", timed)
    monkeypatch.setattr(production, "PlanGuard", partial(PlanGuard, pace=QUICK))
    monkeypatch.setitem(production._CLOCKS, "cpu", lambda _: found)
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


def program_of(compiled: Any) -> Program:
    (program,) = programs_of(compiled_by(compiled))
    return program


def key_of(function: Callable[..., Any], *args: Any, **options: Any) -> str:
    compiled = fuseplan.compile(function, **options)
    compiled(*args)
    key = program_of(compiled).key
    assert key is not None
    torch._dynamo.reset()
    return key


def keep(path: Path, key: str, plan: Plan = ATEN, **fields: Any) -> StoredPlan:
    stored = StoredPlan(key, environment("cpu"), plan, **{"wall_us": 10.0, **fields})
    store = Store(Places(path))
    assert store.add_plan(stored)
    store.close()
    return stored


def seen(path: Path) -> list[tuple[Any, ...]]:
    """What guards have written, once they have."""
    for thread in threading.enumerate():
        if thread.name == "fuseplan guard":
            thread.join()
    sql = "SELECT comparison, taken_back, rounds, round(speedup, 2) FROM drift ORDER BY id"
    return Store(Places(path)).file.read(lambda connection: connection.execute(sql).fetchall())  # type: ignore[no-any-return]


def looked_up(path: Path, key: str) -> Any:
    return Store(Places(path)).find_plan(Query(key, environment("cpu")))


def guarded(path: Path, **fields: Any) -> tuple[Any, Tensor, StoredPlan]:
    """A program under a stored plan that is looked after, and what it is called with."""
    x = torch.randn(4, 8)
    stored = keep(path, key_of(chain, x), **fields)
    return fuseplan.compile(chain, verify="sampled", db=path), x, stored


def call(compiled: Any, x: Tensor, times: int) -> None:
    for _ in range(times):
        torch.testing.assert_close(compiled(x), chain(x))


def test_a_plan_that_is_faster_stays_and_few_calls_go_to_the_default(device: Device, tmp_path: Path) -> None:
    compiled, x, stored = guarded(tmp_path / "a.db")
    device.ran.clear()
    call(compiled, x, 400)
    assert program_of(compiled).plan == ATEN
    assert device.ran[-1] == ATEN
    assert device.ran.count(EAGER) / 400 == pytest.approx(2 / QUICK.later, rel=0.1)
    assert seen(tmp_path / "a.db") == [("faster", 0, 12, 1.5)]
    told = fuseplan.explain(compiled, graphs=False)
    assert (
        "guard: after 400 calls the plan is faster than the default (100 us a call where the default takes 15" in told
    )
    told = fuseplan.explain(stored.key[:12], graphs=False, db=tmp_path / "a.db")
    assert ": 1.50× as fast as the default (100." in told


def test_a_plan_that_becomes_slower_is_taken_back_within_the_calls_that_are_said(
    device: Device, tmp_path: Path
) -> None:
    compiled, x, stored = guarded(tmp_path / "a.db")
    for _ in range(400):
        compiled(x)
    device.takes[ATEN], device.ran[:], before = 170.0, [], stats().get("plans taken back", 0)
    with pytest.warns(UserWarning, match=f"plan {stored.key[:12]} is taken back, and what torch.compile does is done"):
        call(compiled, x, QUICK.within)
    device.ran.clear()
    for _ in range(400):
        compiled(x)
    assert set(device.ran) == {EAGER}
    assert stats()["plans taken back"] == before + 1
    assert seen(tmp_path / "a.db")[-1] == ("slower", 1, 12, 0.88)
    answer = looked_up(tmp_path / "a.db", stored.program)
    assert isinstance(answer, Miss)
    assert answer.reason == "quarantined"
    assert "slower in production: guard: after" in answer.detail
    assert "it is taken back, and the default runs" in fuseplan.explain(compiled, graphs=False)


def test_a_plan_that_is_slow_from_the_start_is_taken_back_at_once_by_a_guard_as_it_is(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(production, "PlanGuard", PlanGuard)
    device.takes[ATEN] = 200.0
    compiled, x, stored = guarded(tmp_path / "a.db")
    pace = Pace()
    with pytest.warns(UserWarning, match="is taken back"):
        call(compiled, x, (pace.rounds + pace.unheeded + 1) * pace.first)
    assert seen(tmp_path / "a.db") == [("slower", 1, 16, 0.75)]
    assert isinstance(looked_up(tmp_path / "a.db", stored.program), Miss)


def test_what_a_person_has_pinned_stays_and_is_told_of(device: Device, tmp_path: Path) -> None:
    device.takes[ATEN] = 200.0
    compiled, x, stored = guarded(tmp_path / "a.db", word="pinned")
    for _ in range(300):
        compiled(x)
    assert seen(tmp_path / "a.db") == [("slower", 0, 12, 0.75)]
    assert "it stays, since it is pinned" in fuseplan.explain(compiled, graphs=False)
    assert not isinstance(looked_up(tmp_path / "a.db", stored.program), Miss)


def test_ranks_sample_alike_and_leave_the_plan_to_the_next_start(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(production, "runs_in_step", lambda: True)
    device.takes[ATEN] = 200.0
    ran = []
    for rank in (0, 1):
        monkeypatch.setattr(production, "tunes_here", lambda rank=rank: rank == 0)
        path = tmp_path / f"{rank}.db"
        compiled, x, stored = guarded(path)
        device.ran.clear()
        for _ in range(300):
            compiled(x)
        ran.append([*device.ran])
        assert "it stays, since other ranks run it in step" in fuseplan.explain(compiled, graphs=False)
        assert seen(path) == ([("slower", 1, 12, 0.75)] if rank == 0 else [])
        assert isinstance(looked_up(path, stored.program), Miss) == (rank == 0)
    assert ran[0] == ran[1]


def test_never_both_on_one_input_and_what_is_changed_is_changed_once(device: Device, tmp_path: Path) -> None:
    def step(x: Tensor, total: Tensor) -> Tensor:
        total.add_(x.sum())
        return x * 2

    x, total = torch.ones(4), torch.zeros(())
    keep(tmp_path / "a.db", key_of(step, x, total.clone()))
    compiled = fuseplan.compile(step, verify="sampled", db=tmp_path / "a.db")
    for _ in range(100):
        compiled(x, total)
    assert total.item() == 400
    assert EAGER in device.ran


def test_sizes_that_vary(device: Device, tmp_path: Path) -> None:
    def sized(x: Tensor) -> Tensor:
        return x.relu().sum(0)

    keep(tmp_path / "a.db", key_of(sized, torch.randn(6, 8), dynamic=True))
    compiled = fuseplan.compile(sized, verify="sampled", db=tmp_path / "a.db", dynamic=True)
    for number in range(600):
        x = torch.randn(5 + number % 3, 8)
        torch.testing.assert_close(compiled(x), sized(x))
    assert [program.why.split()[0] for program in programs_of(compiled_by(compiled))] == ["tuned"]
    assert seen(tmp_path / "a.db") == [("faster", 0, 12, 1.5)]


def test_a_program_without_a_stored_plan_or_with_the_default_for_one_has_no_guard(
    device: Device, tmp_path: Path
) -> None:
    x = torch.randn(4, 8)
    compiled = fuseplan.compile(chain, verify="sampled", db=tmp_path / "a.db")
    compiled(x)
    program = program_of(compiled)
    assert program.remarks == ["no guard looks after it: it has no stored plan"]
    torch._dynamo.reset()
    assert program.key is not None
    keep(tmp_path / "a.db", program.key, EAGER)
    compiled = fuseplan.compile(chain, verify="sampled", db=tmp_path / "a.db")
    compiled(x)
    assert program_of(compiled).remarks == ["no guard looks after it: its plan is the default"]


def test_a_default_that_cannot_be_compiled_leaves_the_plan_alone(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, x, _ = guarded(tmp_path / "a.db")

    def failing(plan: Plan, *given: Any) -> Any:
        if plan == EAGER:
            raise RuntimeError("planted\nand more")
        return replay(plan, *given)

    monkeypatch.setattr(backend, "replay", failing)
    torch.testing.assert_close(compiled(x), chain(x))
    assert program_of(compiled).remarks == ["no guard looks after it: the default cannot be compiled: planted"]
    assert program_of(compiled).plan == ATEN


def test_what_is_computed_again_in_a_backward_is_left_alone(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guards: list[PlanGuard] = []
    monkeypatch.setattr(
        production, "PlanGuard", lambda *given: guards.append(PlanGuard(*given, pace=QUICK)) or guards[-1]
    )
    x = torch.randn(4, 8, requires_grad=True)
    keep(tmp_path / "a.db", key_of(chain, x))
    for reentrant in (True, False):
        torch._dynamo.reset()
        compiled = fuseplan.compile(chain, verify="sampled", db=tmp_path / "a.db")
        compiled(x)
        for _ in range(60):
            checkpoint(compiled, x, use_reentrant=reentrant).sum().backward()
        guard = guards.pop()
        assert guards == []
        assert guard.calls >= 60
        assert guard._turns == 0
        assert "it looks no more, since some of it is computed again" in guard.told()


def test_a_number_that_only_counts_is_no_other_size(device: Device) -> None:
    """Else no call would have its like."""
    for counts, found in ((frozenset({1}), True), (frozenset(), False)):
        guard = PlanGuard("a", HostClock(), lambda *_: None, counts=counts, pace=QUICK)
        call = guard.around(lambda x, at: x, lambda x, at: x)
        for number in range(400):
            call(torch.ones(2), number)
        assert (guard.found is not None) is found


def test_a_call_that_fails_fails_as_without_a_guard_and_counts_for_nothing(device: Device) -> None:
    def plan(x: Tensor) -> Tensor:
        raise ValueError("planted")

    guard = PlanGuard("a", HostClock(), lambda *_: None, pace=QUICK)
    call = guard.around(plan, plan)
    for _ in range(200):
        with pytest.raises(ValueError, match="planted"):
            call(torch.ones(2))
    assert guard.found is None


def test_a_default_for_which_there_is_no_memory_fails_once() -> None:
    """Whoever catches that and goes on does not meet it again."""

    def default(x: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("planted")

    guard, failed = PlanGuard("a", HostClock(), lambda *_: None, pace=QUICK), []
    call = guard.around(lambda x: x, default)
    for number in range(200):
        with suppress(torch.OutOfMemoryError):
            call(torch.ones(2))
            continue
        failed.append(number)
    assert len(failed) == 1
    assert guard.told() == "guard: it looks no more, since there is no memory for the default here"


def test_ranks_whose_times_are_known_late_give_the_same_calls_to_the_default() -> None:
    class Late(Device):
        def __init__(self, asked: int) -> None:
            super().__init__()
            self.asked, self.left = asked, asked

        def us(self, start: float, end: float) -> Any:
            self.left = self.left - 1 if self.left else self.asked
            return None if self.left else end - start

    ran = []
    for asked in (0, 3, 11):
        device = Late(asked)
        guard = PlanGuard("a", device, lambda *_: None, keeps="planted", pace=replace(QUICK, later=100))
        call = guard.around(partial(device.run, ATEN), partial(device.run, EAGER))
        for _ in range(2000):
            call()
        ran.append(device.ran)
    assert ran[0] == ran[1] == ran[2]


def test_calls_that_fail_in_several_threads_fail_with_their_own_error() -> None:
    class PlantedError(Exception):
        pass

    def plan(x: Tensor) -> Tensor:
        if x.numel() % 3 == 0:
            raise PlantedError
        return x

    guard = PlanGuard("a", HostClock(), lambda *_: None, pace=Pace(rounds=10**6, first=4, later=4))
    call, others = guard.around(plan, plan), []

    def calls() -> None:
        for number in range(3000):
            try:
                with suppress(PlantedError):
                    call(torch.empty(number % 50 + 1))
            except Exception as error:  # noqa: BLE001, PERF203 -- whatever it is, it is the guard's own
                others.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=calls) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert others == []


def test_what_is_found_in_turns_is_not_a_row_at_each_look(device: Device, tmp_path: Path) -> None:
    """A plan that is just as far ahead as counts: each look may say faster or the same."""
    compiled, x, _ = guarded(tmp_path / "a.db")
    for number in range(3000):
        device.takes[ATEN] = 100.0 if number // 300 % 2 else 150.0
        compiled(x)
    assert sorted(comparison for comparison, *_ in seen(tmp_path / "a.db")) == ["faster", "same"]


@pytest.mark.parametrize("change", [{"word": "pinned"}, {"wall_us": 9.0}], ids=["pinned", "raced anew"])
def test_what_a_person_or_a_race_has_said_since_is_left_as_it_is(
    device: Device, tmp_path: Path, change: dict[str, Any]
) -> None:
    path = tmp_path / "a.db"
    compiled, x, stored = guarded(path)
    compiled(x)
    assert Store(Places(path)).add_plan(replace(stored, changed_at=clock.after(stored.changed_at), **change))
    device.takes[ATEN] = 200.0
    with pytest.warns(UserWarning, match="is taken back"):
        call(compiled, x, 200)
    assert seen(path) == [("slower", 1, 12, 0.75)]
    assert isinstance(looked_up(path, stored.program), Hit)


def test_a_plan_whose_graphs_have_no_room_here_is_left_for_others(device: Device, tmp_path: Path) -> None:
    compiled, x, stored = guarded(tmp_path / "a.db")
    compiled(x)
    program_of(compiled).cuda_graphs.by_sizes[()] = Occupant(bound=1, waits=True)
    device.takes[ATEN] = 200.0
    with pytest.warns(UserWarning, match="is taken back"):
        call(compiled, x, 200)
    assert seen(tmp_path / "a.db") == [("slower", 1, 12, 0.75)]
    assert isinstance(looked_up(tmp_path / "a.db", stored.program), Hit)


def test_what_is_not_run_as_it_was_tuned_says_nothing_of_the_stored_plan(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, x, stored = guarded(tmp_path / "a.db", plan=replace(ATEN, saving="all"))
    carry_out = backend._carry_out

    def held_back(choice: Any, gm: Any, inputs: Any, *, lookup: Any) -> Any:
        """As where its rewrites are not allowed in this process."""
        return carry_out(lookup.held_back("planted", choice), gm, inputs, lookup=lookup)

    monkeypatch.setattr(backend, "_carry_out", held_back)
    device.takes[EAGER] = 200.0
    call(compiled, x, 200)
    (remark,) = program_of(compiled).remarks
    assert remark.startswith("no guard looks after it: it does not run as it was tuned")
    assert seen(tmp_path / "a.db") == []
    assert not isinstance(looked_up(tmp_path / "a.db", stored.program), Miss)


def test_what_cannot_be_written_down_does_not_stop_the_program(device: Device) -> None:
    def failing(*_: Any) -> None:
        raise OSError("the disk is full")

    guard = PlanGuard("a", device, failing, pace=QUICK)
    call = guard.around(lambda: device.run(ATEN), lambda: device.run(EAGER))
    for _ in range(200):
        call()
    assert guard.found is not None


def test_threads_that_call_at_once_get_their_own_results(device: Device, tmp_path: Path) -> None:
    compiled, x, _ = guarded(tmp_path / "a.db")
    compiled(x)
    wrong: list[int] = []

    def calls(number: int) -> None:
        mine = torch.full((4, 8), float(number))
        want = chain(mine)
        wrong.extend(1 for _ in range(200) if not torch.equal(compiled(mine), want))

    threads = [threading.Thread(target=calls, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_what_dynamo_has_dropped_is_kept_by_nobody(device: Device, tmp_path: Path) -> None:
    compiled, x, _ = guarded(tmp_path / "a.db")
    call(compiled, x, 40)
    program = program_of(compiled)
    torch._dynamo.reset()
    gc.collect()
    assert program.guard is not None
    assert program.guard() == "guard: what it looked after is no more"


def test_the_option_has_two_words() -> None:
    with pytest.raises(OptionError, match="option verify is off or sampled, not 'always'"):
        fuseplan.compile(chain, verify="always")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.one(x).relu()
        return self.two(hidden), hidden.view(-1)


def test_a_training_step_keeps_one_plan_and_is_timed_with_its_backward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default is Inductor's here: its backward is one node of autograd, as a plan's is."""
    guards: list[PlanGuard] = []

    def made(*given: Any) -> PlanGuard:
        guards.append(PlanGuard(*given, pace=QUICK))
        return guards[-1]

    monkeypatch.setattr(production, "PlanGuard", made)
    torch.manual_seed(3)
    net, same = Net(), Net()
    same.load_state_dict(net.state_dict())
    x = torch.randn(4, 8)
    keep(tmp_path / "a.db", key_of(net, x))
    compiled = fuseplan.compile(net, verify="sampled", db=tmp_path / "a.db")
    optimizers = [torch.optim.SGD(one.parameters(), 0.01) for one in (net, same)]
    for _ in range(120):
        for model, optimizer in zip((compiled, same), optimizers, strict=True):
            optimizer.zero_grad()
            out, hidden = model(x)
            (out.square().sum() + hidden.sum()).backward()
            optimizer.step()
    for mine, theirs in zip(net.parameters(), same.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    (guard,) = guards
    assert guard.stood_down is None
    assert guard.found is not None
    assert len(guard._pending) <= 4


def test_a_plan_fits_whatever_sizes_its_default_is_compiled_for(own_database: Path) -> None:
    """Inductor's backward on the CPU is one for up to so many rows: no plan that is traced after it would be for all of them."""
    net, rows = Net(), (3, 5, 5000)

    def steps(**options: Any) -> list[Program]:
        torch._dynamo.reset()
        compiled = fuseplan.compile(net, dynamic=True, **options)
        for n in rows:
            out, hidden = compiled(torch.randn(n, 8))
            (out.square().sum() + hidden.sum()).backward()
        return programs_of(compiled_by(compiled))

    (traced,) = steps(plan="aten")
    assert traced.key is not None
    cut = tuple(CarveOuts(one.role, str(one.graph.key), Segmentation()) for one in traced.graphs)
    assert [one.role for one in cut] == ["forward", "backward"]
    stored = keep(own_database, traced.key, replace(ATEN, carve_outs=cut))
    programs = steps(verify="sampled")
    assert len(programs) > 1
    assert {(one.plan, one.guard is not None) for one in programs} == {(stored.plan, True)}
    assert isinstance(looked_up(own_database, traced.key), Hit)


def test_the_time_of_a_step_is_known_once_its_backward_has_run() -> None:
    torch._dynamo.reset()
    before = torch.randn(4, 8, requires_grad=True)
    compiled = torch.compile(Net(), backend="aot_eager")
    x = compiled(before)[0]  # its own node of the same name is not the next one's
    time_of = CallTime(HostClock())
    outputs = time_of.run(compiled, [x])
    node, has_backward = backward_of(outputs, [x])
    assert has_backward
    assert node is not None
    assert node is not x.grad_fn
    time_of.await_backward(node)
    assert time_of.us() is None
    loss = outputs[0].sum() + outputs[1].sum()
    loss.backward(retain_graph=True)
    took = time_of.us()
    assert took is not None
    assert took > 0
    loss.backward()
    assert time_of.us() == took


def of_a_net(net: nn.Module) -> tuple[PlanGuard, Callable[..., Any], list[str]]:
    """A guard of a program with a real backward of one piece, and which side ran."""
    torch._dynamo.reset()
    guard, ran = PlanGuard("a", HostClock(), lambda *_: None, pace=QUICK), []
    compiled = torch.compile(net, backend="aot_eager")

    def side(name: str) -> Callable[..., Any]:
        def call(x: Tensor) -> Any:
            ran.append(name)
            return compiled(x)

        return call

    return guard, guard.around(side("plan"), side("default")), ran


def test_calls_whose_backward_never_comes_do_not_keep_later_ones_from_being_timed() -> None:
    """Gradients add up over eight calls, after an evaluation that has forgotten no_grad."""
    guard, call, _ = of_a_net(nn.Linear(8, 8))
    x = torch.randn(4, 8)
    for _ in range(200):
        call(x)
    for _ in range(50):
        torch.stack([call(x).sum() for _ in range(8)]).sum().backward()
    assert guard.found is not None


def test_the_default_gets_no_call_whose_backward_is_asked_for_twice() -> None:
    """Torch's cache may hold a backward of the default that overwrites what was saved: torch refuses to run it twice."""
    guard, call, ran = of_a_net(nn.Linear(8, 8))
    x = torch.randn(4, 8)
    for _ in range(100):
        loss = call(x).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    assert set(ran) == {"plan"}
    assert "it looks no more, since its backward leaves what was saved for it" in guard.told()


@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled_autograd_takes_no_notice_of_the_guard(fullgraph: bool) -> None:
    _, call, ran = of_a_net(nn.Linear(8, 8))
    x = torch.randn(4, 8)
    with compiled_autograd._enable(torch.compile(backend="eager", fullgraph=fullgraph)):
        for _ in range(40):
            call(x).sum().backward()
    assert len(ran) == 40


def test_a_backward_that_fails_is_timed_when_it_is_run_again() -> None:
    class Fails(torch.autograd.Function):
        left = 1

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            Fails.left -= 1
            if Fails.left >= 0:
                raise ValueError("planted")
            return gradient

    class Clock:
        at_us = 0.0

        def now(self) -> float:
            return self.at_us

        def us(self, start: float, end: float) -> float:
            return end - start

    clock, x = Clock(), torch.randn(4, requires_grad=True)
    time_of = CallTime(clock)
    outputs = time_of.run(Fails.apply, [x])
    time_of.await_backward(outputs.grad_fn)
    with pytest.raises(ValueError, match="planted"):
        outputs.sum().backward(retain_graph=True)
    clock.at_us += 1000.0
    outputs.sum().backward()
    assert time_of.us() == 0.0


def test_a_program_on_another_gpu_than_the_current_one_is_timed_there(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: Any = "that of the current device") -> None:
            recorded.append(stream)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: f"that of {device}")
    clock = production._CLOCKS["cuda"](torch.device("cuda:1"))
    CallTime(clock).run(lambda: None, [])
    assert recorded == ["that of cuda:1"] * 2


def test_what_has_no_backward_of_one_piece_is_not_looked_after(device: Device, tmp_path: Path) -> None:
    x = torch.randn(4, 8, requires_grad=True)
    keep(tmp_path / "a.db", key_of(chain, x))
    compiled = fuseplan.compile(chain, verify="sampled", db=tmp_path / "a.db")
    for _ in range(20):
        compiled(x).sum().backward()
    assert "it looks no more, since its backward is not one piece" in fuseplan.explain(compiled, graphs=False)


def test_a_real_plan_that_an_executor_makes_slow_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock: ten milliseconds a call against some hundredths of one."""
    real = replay

    def slowed(plan: Plan, gm: Any, example_inputs: Sequence[Any], program: Program) -> Callable[..., Any]:
        called = real(plan, gm, example_inputs, program)
        if plan != ATEN:
            return called

        def call(*args: Any) -> Any:
            time.sleep(0.01)
            return called(*args)

        return call

    monkeypatch.setattr(backend, "replay", slowed)
    torch._dynamo.reset()
    compiled, x, stored = guarded(tmp_path / "a.db")
    pace = Pace()
    with pytest.warns(UserWarning, match=f"plan {stored.key[:12]} is taken back"):
        call(compiled, x, (pace.rounds + pace.unheeded + 1) * pace.first)
    seen(tmp_path / "a.db")
    assert isinstance(looked_up(tmp_path / "a.db", stored.program), Miss)
