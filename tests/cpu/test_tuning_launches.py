"""Plain and CUDA graphs in one race, on replayed timings: which is kept, what a look-up takes, and what stays plain."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fuseplan.capture.trace.format import Trace
from fuseplan.measure.environment import environment
from fuseplan.measure.jobs import GONE, JudgeKept, Outcome, OutcomeRow, ProfilePlan, RacePlans, VetPlan
from fuseplan.plan import Plan
from fuseplan.tune import Tuner
from fuseplan.tuning.effort import FULL, INSTANT, QUICK, Effort
from fuseplan.tuning.program import profile
from fuseplan.tuning.program.combine import Settings
from fuseplan.tuning.program.result import Tuned, verdict_line
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.traces import EITHER, query_of, traces_of
from fuseplan.tuning_db import Hit, Miss, Places, Stale, Store, StoredPlan
from fuseplan.tuning_db.resume import failures
from replaying import ProfilingPool, ReplayingPool
from stored import HERE as GPU

PLAIN, CUDAGRAPH = Plan("inductor"), Plan("inductor", launch="cudagraph")


@dataclass
class Racing(ReplayingPool):
    """Cuts are as fast as their launch says; all that is not told of takes a ms or two."""

    cuts: Mapping[str, float] = field(default_factory=dict)
    keeps: bool = True
    """Whether what was vetted is still kept when its race is over."""

    late: str = "ok"
    """What comes of judging it there."""

    def vetted_plan(self, job: VetPlan) -> Outcome:
        if isinstance(job, JudgeKept) and not (self.keeps and self.late == "ok"):
            return Outcome(self.late, "planted", rows=(OutcomeRow(job.entry.name, self.late),)) if self.keeps else GONE
        return super().vetted_plan(job)

    def _us(self, name: str, subject: str, scale: float = 10.0) -> float:
        launch = "cudagraph" if name.endswith(", cudagraph") else "plain"
        if name.startswith("cut ") and launch in self.cuts:
            return self.cuts[launch]
        return super()._us(name, subject, scale)

    @property
    def raced(self) -> list[list[str]]:
        return [[entry.name for entry in job.entries] for job in self.jobs if isinstance(job, RacePlans)]

    @property
    def vetted(self) -> list[str]:
        return [job.entry.name for job in self.jobs if isinstance(job, VetPlan) and not isinstance(job, JudgeKept)]

    @property
    def judged_late(self) -> list[str]:
        return [job.entry.name for job in self.jobs if isinstance(job, JudgeKept)]


class Noting(Silent):
    """Keeps what people would be told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def layer() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 32), nn.Tanh())


@pytest.fixture(scope="module")
def trace() -> Trace:
    with torch.no_grad():
        (found,) = traces_of(layer(), torch.randn(16, 32), name="layer")
    return found


@pytest.fixture(scope="module")
def dynamic() -> Trace:
    def double(x: Tensor) -> Tensor:
        return x * 2 + x.shape[0]

    x = torch.randn(48, 4)
    torch._dynamo.mark_dynamic(x, 0)
    (found,) = traces_of(double, x, name="dynamic")
    return found


def tuned(
    trace: Trace, store: Store, pool: ReplayingPool, launch: str = EITHER, again: bool = False, effort: Effort = QUICK
) -> Tuned:
    tuner = Tuner(store, pool, "cpu", effort, Settings(), Silent())
    (found,) = tuner.tune(trace, (launch,), again=again)
    return found


def look_up(trace: Trace, store: Store, launch: str = EITHER) -> Hit | Stale | Miss:
    here = Tuner(store, ReplayingPool(), "cpu", QUICK, Settings(), Silent()).environment
    return store.find_plan(query_of(trace, trace.key, here, launch))


def stored(trace: Trace, store: Store, launch: str = EITHER) -> StoredPlan:
    answer = look_up(trace, store, launch)
    assert isinstance(answer, Hit)
    (found,) = store.plans(answer.plan.key)
    return found


def timed(trace: Trace, store: Store) -> set[tuple[str, str]]:
    """The launch and the name of each default of which a timing is kept."""
    here = Tuner(store, ReplayingPool(), "cpu", QUICK, Settings(), Silent()).environment
    found = store.find_default_timings(trace.key, here)
    return set() if isinstance(found, Miss) else {(one.launch, one.name) for one in found}


def test_a_program_that_waits_for_its_host_ends_in_a_cuda_graph(trace: Trace, store: Store) -> None:
    pool = Racing(times={"inductor": 1000.0, "eager": 1900.0, "inductor, cudagraph": 500.0})
    found = tuned(trace, store, pool)
    assert (found.launch, found.plan, found.status) == ("cudagraph", CUDAGRAPH, "default")
    assert (found.winner, found.best_default, found.wall_us) == ("inductor, cudagraph", "inductor, cudagraph", 500.0)
    assert stored(trace, store).plan == CUDAGRAPH
    assert {one.name for one in found.timed if one.default} == {"inductor", "eager", "inductor, cudagraph"}


def test_of_a_launch_that_was_left_behind_at_once_nothing_is_stored(trace: Trace, store: Store) -> None:
    """Two blocks tell that it is slow, and not which of its plans is the best."""
    tuned(trace, store, Racing(times={"inductor": 1000.0, "eager": 1900.0, "inductor, cudagraph": 500.0}))
    assert [plan.launch for plan in store.plans()] == ["cudagraph"]
    assert timed(trace, store) == {("cudagraph", "inductor")}
    answer = look_up(trace, store, "plain")
    assert isinstance(answer, Miss)
    assert answer.reason == "other launch"


def test_where_the_launch_makes_no_difference_plain_stays(trace: Trace, store: Store) -> None:
    pool = Racing(times={"inductor": 1000.0, "eager": 1100.0, "inductor, cudagraph": 999.0}, cuts={"plain": 1200.0})
    found = tuned(trace, store, pool)
    assert (found.launch, found.plan) == ("plain", PLAIN)
    assert stored(trace, store).plan == PLAIN
    assert stored(trace, store, "plain").plan == PLAIN
    assert stored(trace, store, "cudagraph").plan == CUDAGRAPH  # which has come to the end of the race, too
    assert stored(trace, store, "cudagraph").wall_us == 999.0


def test_each_launch_is_stored_with_the_race_of_both(trace: Trace, store: Store) -> None:
    times = {"inductor": 1000.0, "eager": 1400.0, "inductor, cudagraph": 1010.0}
    found = tuned(trace, store, Racing(times=times, cuts={"plain": 900.0, "cudagraph": 800.0}))
    assert (found.launch, found.status, found.wall_us) == ("cudagraph", "tuned", 800.0)
    assert (found.best_default, found.best_default_us) == ("inductor", 1000.0)  # of both launches
    best, other = stored(trace, store), stored(trace, store, "plain")
    assert (best.launch, best.wall_us, best.best_default, best.best_default_us) == (
        "cudagraph",
        800.0,
        "inductor",
        1010.0,
    )
    assert (other.launch, other.wall_us, other.best_default, other.best_default_us) == (
        "plain",
        900.0,
        "inductor",
        1000.0,
    )
    assert best.run == other.run
    assert best.moves == found.moves
    names = {one.name.split()[0] if one.name.startswith("cut") else one.name for one in best.evidence.raced}
    assert {"inductor", "inductor, plain", "eager, plain"} <= names
    assert {one.wall_us for one in best.evidence.raced} == {one.wall_us for one in other.evidence.raced}
    assert timed(trace, store) == {("cudagraph", "inductor"), ("plain", "inductor"), ("plain", "eager")}


def test_defaults_of_both_launches_are_in_one_race_and_cuts_of_one(trace: Trace, store: Store) -> None:
    times = {"inductor": 1000.0, "eager": 1900.0, "inductor, cudagraph": 1000.0}
    pool = Racing(times=times, cuts={"plain": 900.0, "cudagraph": 900.0})
    found = tuned(trace, store, pool)
    raced, followed = pool.raced
    assert {"inductor", "eager", "inductor, cudagraph"} <= set(raced)
    cuts = [name for name in raced if name.startswith("cut ")]
    assert all(name.endswith(", cudagraph") for name in cuts)
    assert 1 < len(cuts) <= QUICK.plans
    assert len(pool.measured) == len(set(pool.measured))  # no region twice
    assert raced.index("inductor, cudagraph") > max(
        i for i, name in enumerate(raced) if not name.endswith(", cudagraph")
    )
    (new,) = set(followed) - set(raced)
    assert (found.launch, found.winner) == ("plain", new), "it wins where both are equal"
    assert f"{new}, cudagraph" in cuts


def test_nothing_follows_under_a_launch_that_is_slower(trace: Trace, store: Store) -> None:
    """A program that waits for its host does so under any plan: each costs seconds to compile and to check."""
    pool = Racing(times={"inductor": 1100.0, "inductor, cudagraph": 1000.0}, cuts={"plain": 100.0, "cudagraph": 900.0})
    found = tuned(trace, store, pool)
    assert (found.launch, found.wall_us) == ("cudagraph", 900.0)
    assert len(pool.raced) == 1
    assert not any(name.startswith("cut ") and not name.endswith(", cudagraph") for name in pool.vetted)
    assert isinstance(look_up(trace, store, "plain"), Miss), "of what was tried there nothing is known to be the best"


@pytest.mark.parametrize("default_us", [1000.0, 2000.0])
def test_the_best_plan_follows_under_a_launch_that_is_faster(trace: Trace, store: Store, default_us: float) -> None:
    """Inputs that CUDA graphs copy, for one; the more so where these are far behind."""
    times = {"inductor": 950.0, "eager": 5000.0, "inductor, cudagraph": default_us}
    pool = Racing(times=times, cuts={"plain": 700.0, "cudagraph": default_us * 0.8})
    found = tuned(trace, store, pool)
    assert (found.launch, found.status, found.wall_us) == ("plain", "tuned", 700.0)
    assert stored(trace, store).wall_us == 700.0
    assert sum(name.startswith("cut ") and not name.endswith(", cudagraph") for name in pool.vetted) == 1


def test_where_nothing_tells_the_launches_apart_the_best_plan_follows(trace: Trace, store: Store) -> None:
    """The only default that both have is wrong under one of them."""
    pool = Racing(times={"eager": 1000.0}, cuts={"plain": 400.0, "cudagraph": 700.0}, bad={"inductor": "crashed"})
    found = tuned(trace, store, pool)
    assert (found.launch, found.wall_us) == ("plain", 400.0)


@pytest.mark.parametrize("effort", [QUICK, INSTANT])
def test_plans_are_tried_plain_where_none_runs_under_cuda_graphs(store: Store, effort: Effort) -> None:
    with torch.no_grad():
        (trace,) = traces_of(Attending().eval(), torch.randn(2, 32, 64), name="attending")

    class OnlyDefault(Racing):
        def _vetted(self, name: str) -> Outcome:
            if name.endswith(", cudagraph") and name != "inductor, cudagraph":
                return Outcome("error", "planted", rows=(OutcomeRow(name, "error", "planted"),))
            return super()._vetted(name)

    times = {"inductor": 1000.0, "eager": 1900.0, "inductor, cudagraph": 990.0}
    names = ("attention proven", "attention proven, written-attention proven", "written-attention proven")
    pool = OnlyDefault(times={**times, **{f"inductor, {name}": 500.0 for name in names}}, cuts={"plain": 1500.0})
    found = tuned(trace, store, pool, effort=effort)
    assert (found.launch, found.status, found.wall_us) == ("plain", "tuned", 500.0), pool.vetted


def test_each_by_itself_is_what_both_still_means(trace: Trace, store: Store) -> None:
    pool = Racing()
    tuner = Tuner(store, pool, "cpu", QUICK, Settings(), Silent())
    assert [found.launch for found in tuner.tune(trace, ("plain", "cudagraph"))] == ["plain", "cudagraph"]
    assert len(pool.raced) == 2
    assert not any(name.endswith(", cudagraph") for raced in pool.raced for name in raced)


def test_what_cuda_graphs_do_not_suit_says_so_and_stays_plain(trace: Trace, store: Store) -> None:
    class Refusing(Racing):
        def _vetted(self, name: str) -> Outcome:
            answer = super()._vetted(name)
            if answer.rows[0].status != "refused":
                return answer
            why = "the inference graph runs without a CUDA graph: _to_copy is on the cpu"
            return Outcome("refused", why, rows=(OutcomeRow(name, "refused", why),))

    pool = Refusing(times={"inductor": 1000.0}, bad={"inductor, cudagraph": "refused"})
    found = tuned(trace, store, pool)
    assert (found.launch, found.winner) == ("plain", "inductor")
    why = "CUDA graphs do not suit it: the inference graph runs without a CUDA graph: _to_copy is on the cpu"
    assert found.detail == why
    assert why in verdict_line(found)
    assert not any(name.endswith(", cudagraph") for raced in pool.raced for name in raced)
    assert not any(name.endswith(", cudagraph") for name in pool.vetted if name.startswith("cut "))
    assert {launch for launch, _ in timed(trace, store)} == {"plain"}
    assert failures(store, trace.key) == []
    refused = [one for one in stored(trace, store).evidence.raced if one.status == "refused"]
    assert [(one.name, one.detail) for one in refused] == [("inductor, cudagraph", why.partition(": ")[2])]


@pytest.mark.parametrize(("held", "launch"), [(0.2, "cudagraph"), (0.3, "plain")])
def test_graphs_that_would_hold_much_of_the_memory_are_left_out(
    trace: Trace, store: Store, held: float, launch: str
) -> None:
    class Holding(Racing):
        def _vetted(self, name: str) -> Outcome:
            peak = int(held * 2**33) if name.endswith(", cudagraph") else 1000
            return Outcome(rows=(OutcomeRow(name, peak_bytes=peak),))

    pool = Holding(times={"inductor": 1000.0, "eager": 1900.0, "inductor, cudagraph": 100.0})
    here = replace(environment("cpu"), gpu_memory_gib=8)
    (found,) = Tuner(store, pool, "cpu", QUICK, Settings(), Silent(), here=here).tune(trace, (EITHER,))
    assert found.launch == launch
    expected = "" if held < 0.25 else "CUDA graphs do not suit it: its graphs would hold 2.4 of the 8 GiB of the GPU"
    assert found.detail == expected


def test_a_program_of_varying_sizes_stays_plain(dynamic: Trace, store: Store) -> None:
    """Each size would be captured anew."""
    pool = Racing()
    found = tuned(dynamic, store, pool)
    assert found.launch == "plain"
    assert found.detail == "CUDA graphs do not suit it: its sizes vary, and a CUDA graph is of one size alone"
    assert not any(name.endswith(", cudagraph") for name in pool.vetted)


def test_where_no_default_runs_there_is_one_failure(trace: Trace, store: Store) -> None:
    found = tuned(trace, store, Racing(bad=dict.fromkeys(("inductor", "eager", "inductor, cudagraph"), "crashed")))
    assert found.status == "failed"
    assert "no default runs here" in found.detail
    assert [one.launch for one in failures(store, trace.key)] == ["plain"]


def test_without_measuring_it_is_the_plain_launch_that_is_predicted(trace: Trace, store: Store) -> None:
    found = tuned(trace, store, Racing(), effort=Effort.named("none"))
    assert (found.launch, found.status) == ("plain", "unverified")


def test_what_was_tuned_for_one_launch_is_known_until_it_is_tuned_again(trace: Trace, store: Store) -> None:
    times = {"inductor": 1000.0, "eager": 1900.0, "inductor, cudagraph": 500.0}
    tuned(trace, store, Racing(times={"inductor": 1000.0}), "plain")
    pool = Racing(times=times)
    assert tuned(trace, store, pool).launch == "plain"
    assert pool.jobs == []
    assert tuned(trace, store, pool, again=True).launch == "cudagraph"
    assert stored(trace, store).plan == CUDAGRAPH
    assert stored(trace, store, "plain").launch == "plain"


def test_an_interrupted_run_goes_on_without_measuring_again(trace: Trace, store: Store) -> None:
    whole = Racing()
    expected = tuned(trace, Store(Places(user=None)), whole)
    interrupted, rest = Racing(fail_after=len(whole.jobs) - 8), Racing()
    with pytest.raises(KeyboardInterrupt):
        tuned(trace, store, interrupted)
    found = tuned(trace, store, rest)
    assert interrupted.measured
    assert not set(interrupted.measured) & set(rest.measured)
    assert (found.plan, found.wall_us) == (expected.plan, expected.wall_us)


@dataclass
class SeeingRacing(Racing, ProfilingPool):
    """One that tells where the time goes as well."""


@pytest.mark.parametrize(
    ("launch", "kernel_us", "tries"), [(EITHER, 0.5, False), (EITHER, 50.0, True), ("plain", 0.5, True)]
)
def test_no_cut_is_tried_where_all_are_predicted_far_behind_what_is_not_cut(
    trace: Trace, store: Store, monkeypatch: pytest.MonkeyPatch, launch: str, kernel_us: float, tries: bool
) -> None:
    """By what its kernels take, which is what a CUDA graph takes; a program that is plain may wait for its host."""
    monkeypatch.setattr(profile, "FULL", QUICK)  # as on a GPU
    watch = Noting()
    pool = SeeingRacing(times={"inductor": 1000.0, "inductor, cudagraph": 500.0}, kernel_us=kernel_us)
    (found,) = Tuner(store, pool, "cpu", QUICK, Settings(), watch).tune(trace, (launch,))
    assert found.status in ("tuned", "default", "proven"), found.detail
    assert any(name.startswith("cut ") for name in pool.vetted) is tries
    assert bool(pool.measured) is tries
    told = [note for note in watch.notes if "no cut is tried" in note]
    assert len(told) == (0 if tries else 1)
    assert tries or re.search(
        r"no cut is tried: the best is predicted to take [\d,]+ µs, and what is not cut takes \d µs", told[0]
    )


def test_forward_and_backward_race_under_both(store: Store) -> None:
    (training,) = traces_of(layer(), torch.randn(16, 32), name="training")
    pool = Racing(cuts={"plain": 950.0, "cudagraph": 400.0})
    found = tuned(training, store, pool)
    assert (found.launch, found.status) == ("cudagraph", "tuned")
    assert found.plan is not None
    assert {part.role for part in found.plan.carve_outs} == {"forward", "backward"}


class Attending(nn.Module):
    """Attention that is called, with a bias whose last stride is the number of heads, and attention that is written out."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Embedding(32, 4)
        self.q, self.k, self.v = (nn.Linear(64, 64) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        bias = self.bias((places[None] - places[:, None]).abs()).permute(2, 0, 1)[None]
        q, k, v = (one(x).unflatten(-1, (4, 16)).transpose(1, 2) for one in (self.q, self.k, self.v))
        called = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        written = ((q @ k.mT) / 4 + bias).softmax(-1) @ v
        return (called + written).transpose(1, 2).flatten(2)


@pytest.fixture(scope="module")
def attending() -> Trace:
    with torch.no_grad():
        (found,) = traces_of(Attending().eval(), torch.randn(2, 32, 64), name="attending")
    return found


def test_in_seconds_what_is_preferred_is_looked_at_under_cuda_graphs(attending: Trace, store: Store) -> None:
    """Beside all that a GPU races by default, of which eager has no such launch."""
    pool = Racing(times={"inductor": 1000.0, "eager": 1900.0, "inductor, cudagraph": 500.0})
    (found,) = Tuner(store, pool, "cpu", QUICK, Settings(), Silent(), here=GPU).tune(attending, (EITHER,))
    assert found.status in ("proven", "default"), found.detail
    (looked,) = [job.entry.plan for job in pool.jobs if isinstance(job, ProfilePlan)]
    assert looked is not None
    assert looked.rewrites
    assert looked.launch == "cudagraph"
    assert {"eager", "inductor, cudagraph"} <= set(pool.vetted)


def test_every_way_and_every_default_of_a_gpu_races_under_both_launches(attending: Trace, store: Store) -> None:
    pool = Racing(times={"inductor": 1000.0, "eager": 1900.0, "inductor, cudagraph": 500.0})
    tuner = Tuner(store, pool, "cpu", FULL, Settings(), Silent(), here=GPU)
    (found,) = tuner.tune(attending, (EITHER,))
    assert found.status in ("proven", "default"), found.detail
    names = {job.entry.name for job in pool.jobs if isinstance(job, VetPlan)}
    for name in ("inductor", "nvfuser-greedy"):
        assert {name, f"{name}, cudagraph"} <= names
    for kind in ("attention", "written-attention"):
        assert any(kind in name and name.endswith(", cudagraph") for name in names), names
        assert any(kind in name and not name.endswith(", cudagraph") for name in names), names
    plans = [job.entry.plan for job in pool.jobs if isinstance(job, VetPlan)]
    assert len(plans) == len({plan.to_json() for plan in plans if plan is not None})


@dataclass
class Looking(Racing):
    """Whose workers see what a call takes under CUDA graphs."""

    calls: Mapping[str, float] = field(default_factory=dict)

    def vetted_plan(self, job: VetPlan) -> Outcome:
        found = super().vetted_plan(job)
        return replace(found, rows=tuple(replace(row, call_us=self.calls.get(row.name)) for row in found.rows))


@pytest.mark.parametrize(
    ("effort", "greedy_us", "torchs_us", "races"),
    [
        (QUICK, 900.0, 500.0, False),
        (replace(QUICK, name=FULL.name), 900.0, 500.0, True),
        (QUICK, 590.0, 500.0, True),
        (QUICK, 900.0, 1000.0, True),
    ],
    ids=["far behind", "all race", "not far", "a better default"],
)
def test_a_default_of_ours_that_is_far_behind_does_not_race(
    trace: Trace, store: Store, effort: Effort, greedy_us: float, torchs_us: float, races: bool
) -> None:
    """Whoever races it would have to compile it once more."""
    greedy = "nvfuser-greedy, cudagraph"
    times = {"inductor": 1000.0, "eager": 1900.0, "inductor, cudagraph": torchs_us, greedy: greedy_us}
    cuts = {"plain": 700.0, "cudagraph": 400.0}
    pool, watch = Looking(times=times, cuts=cuts, calls={**times, "inductor": None}), Noting()
    (found,) = Tuner(store, pool, "cpu", effort, Settings(), watch, here=GPU).tune(trace, (EITHER,))
    assert found.status == "tuned"
    assert greedy in pool.vetted
    assert any(greedy in names for names in pool.raced) is races
    told = [note for note in watch.notes if "does not race" in note]
    assert told == (
        []
        if races
        else [f"layer: {greedy} does not race: its calls took 900.0 µs, and those of inductor, cudagraph 500.0 µs"]
    )
    assert (("cudagraph", "nvfuser-greedy") in timed_by(trace, store)) is races
    (row,) = [one for one in found.timed if one.name == greedy]
    assert row.detail.startswith("it did not race: its calls took 900.0 µs") is not races
    assert {job.entry.name for job in pool.jobs if isinstance(job, VetPlan) and job.if_near} == (
        set() if effort.name == FULL.name else {greedy, "nvfuser-greedy"} & set(pool.vetted)
    )


def timed_by(trace: Trace, store: Store) -> set[tuple[str, str]]:
    """As `timed`, on that GPU."""
    found = store.find_default_timings(trace.key, GPU)
    return set() if isinstance(found, Miss) else {(one.launch, one.name) for one in found}
