"""Effort instant: whole programs alone, in seconds beyond what torch.compile takes, on replayed timings and for real."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.backends import registry

from cpu.test_tuning_launches import Racing, stored
from fuseplan import backend, lookup
from fuseplan.backend import programs_of
from fuseplan.capture.dynamo.program import program_key
from fuseplan.capture.trace.format import Trace
from fuseplan.errors import FuseplanError
from fuseplan.explain import compiled_by
from fuseplan.measure.environment import environment
from fuseplan.measure.jobs import Calibrate, Capture, Outcome, ProfilePlan, VetPlan
from fuseplan.measure.sites_alone import sites_alone
from fuseplan.options import Options
from fuseplan.plan import Plan
from fuseplan.runtime import replay
from fuseplan.tune import Tuner, tune
from fuseplan.tuning import effort as efforts
from fuseplan.tuning.effort import INSTANT, QUICK
from fuseplan.tuning.program.budget import Budget
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.program.result import Tuned
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.queue import staying
from fuseplan.tuning.traces import EITHER, traces_of
from fuseplan.tuning_db import Store, StoredPlan
from fuseplan.tuning_db.resume import failures
from stored import HERE as GPU

PROVEN = "inductor, attention proven"


def attends(q: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, q, q, mask) * 2


@pytest.fixture(scope="module")
def trace() -> Trace:
    with torch.no_grad():
        (found,) = traces_of(attends, torch.randn(2, 4, 16, 8), torch.zeros(2, 1, 16, 16), name="attends")
    return found


@pytest.fixture(scope="module")
def plain_trace() -> Trace:
    with torch.no_grad():
        (found,) = traces_of(lambda x: (x + 1).relu(), torch.randn(4, 4), name="plain")
    return found


def tuned(trace: Trace, store: Store, pool: Racing) -> Tuned:
    (found,) = Tuner(store, pool, "cpu", INSTANT, Settings(), Silent()).tune(trace, (EITHER,))
    return found


def test_what_is_preferred_races_under_cuda_graphs_and_nothing_is_looked_into(trace: Trace, store: Store) -> None:
    pool = Racing(times={"inductor": 900.0, "inductor, cudagraph": 800.0, f"{PROVEN}, cudagraph": 400.0})
    found = tuned(trace, store, pool)
    assert (found.status, found.launch, found.winner) == ("tuned", "cudagraph", f"{PROVEN}, cudagraph")
    assert found.best_default_us == 800.0
    assert set(pool.vetted) == {"inductor", "eager", "inductor, cudagraph", f"{PROVEN}, cudagraph"}
    jobs = [job for job in pool.jobs if isinstance(job, VetPlan)]
    assert all(job.keeps and not job.race for job in jobs)
    assert all((job.over_s is None) is job.entry.default for job in jobs)
    assert not any(isinstance(job, Calibrate | ProfilePlan) for job in pool.jobs)
    assert all(job.sites_alone for job in pool.jobs if isinstance(job, Capture))
    assert not store.graphs(trace.key), "none was traced"
    assert stored(trace, store).plan.rewrites
    sites = stored(trace, store).evidence.sites
    assert [(site.kind, site.chosen != "as-is") for site in sites] == [("attention", True)]


def test_where_cuda_graphs_do_not_suit_it_is_plain_that_races(trace: Trace, store: Store) -> None:
    pool = Racing(times={"inductor": 900.0, PROVEN: 500.0, "eager": 1000.0}, bad={"inductor, cudagraph": "error"})
    found = tuned(trace, store, pool)
    assert (found.status, found.launch, found.winner) == ("tuned", "plain", PROVEN)
    assert "CUDA graphs do not suit it" in found.detail


def test_a_program_without_sites_gets_the_best_launch(plain_trace: Trace, store: Store) -> None:
    found = tuned(plain_trace, store, Racing(times={"inductor": 900.0, "eager": 950.0, "inductor, cudagraph": 300.0}))
    assert (found.status, found.launch, found.plan) == ("default", "cudagraph", Plan("inductor", launch="cudagraph"))


def test_nothing_is_stored_where_no_default_runs(plain_trace: Trace, store: Store) -> None:
    found = tuned(plain_trace, store, Racing(bad=dict.fromkeys(("inductor", "eager", "inductor, cudagraph"), "error")))
    assert found.status == "failed"
    assert not store.plans()


def test_on_a_gpu_eager_is_tried_where_nothing_else_runs(plain_trace: Trace, store: Store) -> None:
    pool = Racing(times={"inductor": 900.0, "inductor, cudagraph": 800.0})
    tuner = Tuner(store, pool, "cpu", INSTANT, Settings(), Silent(), here=GPU)
    (found,) = tuner.tune(plain_trace, (EITHER,))
    assert found.status == "default"
    assert pool.vetted == ["inductor", "inductor, cudagraph"]
    broken = Racing(bad=dict.fromkeys(("inductor", "inductor, cudagraph"), "error"))
    (found,) = Tuner(store, broken, "cpu", INSTANT, Settings(), Silent(), here=GPU).tune(
        plain_trace, (EITHER,), again=True
    )
    assert (found.status, found.winner) == ("default", "eager")


def test_its_seconds_are_those_beyond_what_compiling_takes_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("fuseplan.tuning.program.budget.monotonic", lambda: now[0])
    budget, other = (Budget(effort, on_gpu=True, started=0.0) for effort in (INSTANT, QUICK))
    now[0] = 70.0
    assert (budget.left_s, other.left_s) == (INSTANT.wall_s, QUICK.wall_s - 70)
    budget.default_took(60.0)
    budget.default_took(10.0)  # under another launch
    assert budget.left_s == INSTANT.wall_s - 10
    assert (budget.prepares, budget.keeps, other.prepares, other.keeps) == (False, True, True, False)
    assert budget.fair_race_s(4, 1000.0) < other.fair_race_s(4, 1000.0)


def test_a_dynamo_graph_tells_of_its_sites_as_a_worker_does(trace: Trace) -> None:
    found = []

    def look(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        found.append(sites_alone(gm, example_inputs))
        return gm.forward

    mask, q = torch.zeros(2, 1, 16, 16), torch.randn(2, 4, 16, 8)
    with torch.no_grad():
        torch.compile(attends, backend=look)(q, mask)
    torch._dynamo.reset()
    torch.compile(attends, backend=look)(q.clone().requires_grad_(), mask)
    torch._dynamo.reset()
    infers, trains = found
    assert infers.key == trace.key
    assert (infers.trains, trains.trains) == (False, True)
    assert [(site.kind, site.preferred is not None) for site in infers.sites] == [("attention", True)]


@pytest.mark.slow
def test_for_real_on_a_cpu(trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efforts, "EFFORTS", (replace(INSTANT, wall_s=600.0),))  # however busy this machine is
    (found,) = tune([trace], effort="instant", db=tmp_path / "tuning.db")
    assert found.status in ("tuned", "default")
    with_times = {one.name for one in found.timed if one.wall_us}
    assert {"inductor", "eager"} <= with_times
    assert PROVEN in {one.name for one in found.timed}
    compiled = torch.compile(attends, backend="fuseplan", options={"db": tmp_path / "tuning.db"})
    q, mask = torch.randn(2, 4, 16, 8), torch.zeros(2, 1, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(compiled(q, mask), attends(q, mask))
    (program,) = programs_of(compiled_by(compiled))
    assert program.plan == found.plan


# What this process does while workers are at it


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """What is compiled in this process, in the place of which eager runs."""
    found: list[Plan] = []

    def counted(plan: Plan, gm: Any, example_inputs: Any, program: Any) -> Callable[..., Any]:
        found.append(plan)
        called = replay(Plan("eager"), gm, example_inputs, program)
        program.plan = plan
        return called

    monkeypatch.setattr(backend, "replay", counted)
    monkeypatch.setattr(lookup, "missing_compiler", lambda *_: None)
    return found


def stores(winner: Plan) -> Callable[..., None]:
    """In the place of tuning."""

    def found(gm: Any, inputs: Any, effort: str, store: Store, options: Any, meanwhile: Callable[[], None]) -> None:
        meanwhile()
        key = program_key(gm, inputs).key
        assert key is not None
        store.add_plan(StoredPlan(key, environment("cpu"), winner, status="tuned", wall_us=1.0))

    return found


@pytest.mark.parametrize("winner", [Plan("inductor"), Plan("aten")], ids=["the default", "another"])
def test_the_default_is_compiled_meanwhile_and_once(
    winner: Plan, compiles: list[Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("fuseplan.tune"), "tune_online", stores(winner))
    compiled = torch.compile(
        lambda x: x.sin() + 1, backend="fuseplan", options={"db": tmp_path / "a.db", "tune": "instant"}
    )
    compiled(torch.ones(3))
    assert compiles == ([winner] if winner == Plan("inductor") else [Plan("inductor"), winner])
    (program,) = programs_of(compiled_by(compiled))
    assert program.why.startswith("tuned plan")


def test_what_is_written_otherwise_by_option_is_not_the_default_that_was_compiled(
    compiles: list[Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(*given: Any) -> None:
        given[-1]()
        raise FuseplanError("planted")

    monkeypatch.setattr(import_module("fuseplan.tune"), "tune_online", failed)
    options = {"db": tmp_path / "a.db", "tune": "instant", "attention": "proven"}
    compiled = torch.compile(attends, backend="fuseplan", options=options)
    with torch.no_grad():
        compiled(torch.randn(2, 4, 16, 8), torch.zeros(2, 1, 16, 16))
    assert [bool(plan.rewrites) for plan in compiles] == [True]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_is_broken_off_stores_nothing(
    error: type[BaseException], trace: Trace, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers are killed, and what a thread makes of that counts for nothing."""
    at_work, ended = threading.Event(), threading.Event()

    class Ended(Racing):
        def stream(self, ask: Any, on_done: Any = None) -> list[Outcome]:
            at_work.set()
            assert ended.wait(60)
            return super().stream(ask, on_done)

    @contextmanager
    def workers(*_: Any) -> Iterator[Racing]:
        try:
            yield Ended(bad=dict.fromkeys(("inductor", "eager"), "crashed"))
        except BaseException:
            ended.set()
            raise

    def meanwhile() -> None:
        assert at_work.wait(60)
        raise error

    tuning = import_module("fuseplan.tune")
    monkeypatch.setattr(tuning, "staying_workers", workers)
    monkeypatch.setattr(tuning, "environment", lambda where: GPU)
    threads = set(threading.enumerate())
    seen: list[tuple[Any, Any]] = []
    with torch.no_grad():
        torch.compile(attends, backend=lambda gm, inputs: seen.append((gm, inputs)) or gm.forward)(
            torch.randn(2, 4, 16, 8), torch.zeros(2, 1, 16, 16)
        )
        torch._dynamo.reset()
        (given,) = seen
        with pytest.raises(error):
            tuning.tune_online(*given, "instant", store, Options.parse({"tune": "instant"}), meanwhile)
    for thread in set(threading.enumerate()) - threads:
        thread.join(60)
    assert not store.plans()
    assert not failures(store)


def test_a_head_start_that_fails_is_nobodys_matter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(*_: Any) -> None:
        raise BlockingIOError

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(staying, "start_ahead", fails)
    backend._asked({"tune": "instant", "db": str(tmp_path / "a.db")})
    started: list[Any] = []
    monkeypatch.setattr(staying, "start_ahead", lambda *given: started.append(given))
    monkeypatch.setattr(backend, "tunes_here", lambda: False)
    backend._asked({"tune": "instant", "db": str(tmp_path / "a.db")})
    assert not started, "another rank tunes"


def test_what_a_tuned_program_was_called_with_first_is_let_go(
    tmp_path: Path, compiles: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("fuseplan.tune"), "tune_online", stores(Plan("aten")))
    options = {"db": tmp_path / "a.db", "tune": "instant"}
    compiled = torch.compile(lambda x: x.sin() + 1, backend="fuseplan", options=options)
    x = torch.ones(1000)
    gone = weakref.ref(x)
    compiled(x)
    (program,) = programs_of(compiled_by(compiled))
    assert program.refuse is not None
    del x
    gc.collect()
    assert gone() is None


def test_a_race_waits_for_what_this_process_does(trace: Trace, store: Store) -> None:
    order: list[str] = []
    ready = threading.Event()

    class Ordered(Racing):
        def raced_plans(self, job: Any) -> Outcome:
            order.append("race")
            return super().raced_plans(job)

    def quiet() -> None:
        order.append("waits")
        ready.set()

    tuner = Tuner(store, Ordered(), "cpu", INSTANT, Settings(), Silent(), quiet=quiet)
    list(tuner.tune(trace, (EITHER,)))
    assert order == ["waits", "race"]
    assert ready.is_set()


# Workers that stay, and those that start ahead


class Counted:
    """In the place of workers."""

    made: list[Counted]

    def __init__(self, device: str, operators: Mapping[str, str]) -> None:
        self.setup = type("S", (), {})
        self.device, self.operators, self.started, self.closed = device, operators, 0, False
        self.made.append(self)

    def start(self, *, racing: bool) -> None:
        self.started += 1

    def rest(self) -> None: ...

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Counted]]:
    Counted.made = []
    monkeypatch.setattr(staying, "workers_for", lambda device, effort: Counted(device, {}))
    monkeypatch.setattr(staying, "_has_room", lambda device: True)
    monkeypatch.setattr(staying, "_alike", lambda one, other: one.operators == other.operators)
    yield Counted.made
    for one in list(staying._staying):
        one.end.cancel()
    staying._staying.clear()


@contextmanager
def used(device: str = "cuda:0") -> Iterator[Any]:
    with staying.staying_workers(device, INSTANT) as pool:
        yield pool


def test_the_next_program_finds_the_workers_of_the_last(made: list[Counted]) -> None:
    with used() as first:
        pass
    with used() as second:
        pass
    with used("cuda:1") as elsewhere:
        pass
    assert first is second
    assert elsewhere is not first
    assert (first.started, first.closed) == (1, False)
    assert len(staying._staying) == 2


def test_nobody_comes_and_they_end(made: list[Counted], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staying, "STAY_S", 0.05)
    monkeypatch.setattr(staying._let_stay, "__defaults__", (0.05,))
    with used() as first:
        pass
    for one in list(staying._staying):
        one.end.join(10)
    assert first.closed
    assert not staying._staying


def test_after_an_error_and_on_a_cpu_none_stay(made: list[Counted]) -> None:
    with pytest.raises(KeyError), used() as first:
        raise KeyError
    with used("cpu") as other:
        pass
    assert first.closed
    assert other.closed
    assert not staying._staying


def test_workers_that_started_ahead_are_taken_up(made: list[Counted]) -> None:
    staying.start_ahead("cuda:0", "instant")
    staying.start_ahead("cuda:0", "instant")
    with used() as pool:
        assert pool is made[0]
    assert sum(one.started for one in made) == 1


def test_workers_are_alike_if_they_would_be_started_so_now() -> None:
    one, other = (staying.workers_for("cpu", INSTANT) for _ in range(2))
    assert staying._alike(one, other)
    setup = other.racer.setup
    for process in (other.racer, *other.vetters):
        process.setup = replace(process.setup, operators={**setup.operators, "x::y": "torch.distributed.z"})
    assert staying._alike(one, other), "torch brings its own"
    for process in (other.racer, *other.vetters):
        process.setup = replace(process.setup, operators={**setup.operators, "x::y": "mine"})
    assert not staying._alike(one, other)
    flags = {**setup.flags, "another": 1}
    for process in (other.racer, *other.vetters):
        process.setup = replace(setup, flags=flags)
    assert not staying._alike(one, other)


@pytest.mark.parametrize(
    ("options", "there", "cuda", "starts"),
    [
        ({"tune": "instant"}, False, True, True),
        ({"tune": "quick"}, False, True, True),
        ({"tune": "later"}, False, True, False),
        ({"tune": "instant"}, True, True, False),
        ({"tune": "instant"}, False, False, False),
        ({"tune": "instant", "db": 3}, False, True, False),
        ({"tune": "instant", "plan": "aten"}, False, True, False),
        ({}, False, True, False),
    ],
)
def test_the_first_that_asks_for_tuning_has_workers_started(
    options: dict[str, Any], there: bool, cuda: bool, starts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a database is there already, the program may well be known."""
    file, started = tmp_path / "tuning.db", list[tuple[str, str]]()
    if there:
        file.touch()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(staying, "start_ahead", lambda device, effort: started.append((device, effort)))
    backend._asked({"db": str(file), **options})
    assert started == ([("cuda:1", options["tune"])] if starts else [])


def test_torch_compile_tells_of_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Mapping[str, Any]] = []
    table = registry._COMPILER_FNS
    monkeypatch.setattr(table, "_asked", heard.append)
    torch.compile(lambda x: x, backend="fuseplan", options={"tune": "instant"})
    torch.compile(lambda x: x, backend="fuseplan")
    torch.compile(lambda x: x, backend="eager", options={})
    backend.compile(lambda x: x, tune="later")
    assert {"tune": "instant"} in heard
    assert {"tune": "later"} in heard
    assert all(options in ({"tune": "instant"}, {"tune": "later"}) for options in heard)
    assert registry.list_backends(), "what is no call of torch.compile tells nothing"
