"""What is asked for, in which order it is tuned and why, and what --dry-run says of it without doing any of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from benchmarks import traces as many
from fuseplan.capture.trace.calls import Calls
from fuseplan.capture.trace.format import Trace
from fuseplan.cli import main
from fuseplan.durations import seconds
from fuseplan.errors import OptionError, StoreError
from fuseplan.measure.environment import environment
from fuseplan.plan import Plan
from fuseplan.tune import agenda, tune
from fuseplan.tuning.effort import PREDICTED_S, Effort
from fuseplan.tuning.progress import Silent
from fuseplan.tuning.queue.budget import Time
from fuseplan.tuning.traces import traces_of
from fuseplan.tuning_db import DefaultTiming, Places, Run, Store, StoredPlan
from replaying import ReplayingPool
from stored import RELU, measurement


def pointwise(x: Tensor) -> Tensor:
    return (x * 2).sin().relu() + 1


def product(x: Tensor) -> Tensor:
    return x @ x


@pytest.fixture(scope="module")
def small() -> Trace:
    with torch.no_grad():
        return traces_of(pointwise, torch.randn(8, 8), name="small")[0]


@pytest.fixture(scope="module")
def large() -> Trace:
    with torch.no_grad():
        return traces_of(pointwise, torch.randn(512, 512), name="large")[0]


@pytest.fixture(scope="module")
def matmul() -> Trace:
    with torch.no_grad():
        return traces_of(product, torch.randn(512, 512), name="matmul")[0]


@pytest.fixture(scope="module")
def dynamic() -> Trace:
    def double(x: Tensor) -> Tensor:
        return x * 2 + x.shape[0]

    x = torch.randn(48, 4)
    torch._dynamo.mark_dynamic(x, 0)
    with torch.no_grad():
        return traces_of(double, x, name="dynamic")[0]


def called(trace: Trace, times: int) -> Trace:
    return replace(trace, calls=(Calls({}, times, 0.1),))


@pytest.fixture(autouse=True, scope="module")
def forgotten() -> Iterator[None]:
    """A function that was seen at another size is captured for any."""
    with torch._dynamo.config.patch(automatic_dynamic_shapes=False):
        yield


def names(traces: Sequence[Trace], **settings: object) -> list[str]:
    return [item.name for item in agenda(traces, **settings).items]  # type: ignore[arg-type]


@contextmanager
def replayed(device: str, effort: Effort) -> Iterator[ReplayingPool]:
    yield ReplayingPool()


def written(folder: Path, *traces: Trace) -> Path:
    folder.mkdir(exist_ok=True)
    for i, trace in enumerate(traces):
        (folder / f"{i}.json").write_text(trace.to_text())
    return folder


# Order


def test_what_could_gain_the_most_comes_first(small: Trace, large: Trace) -> None:
    assert names([small, large]) == ["large", "small"]


def test_many_calls_weigh_more_than_long_ones(small: Trace, large: Trace) -> None:
    assert names([called(small, 1_000_000), large]) == ["small", "large"]


def test_a_matmul_that_is_at_its_best_has_less_to_gain_than_what_can_be_fused(large: Trace, matmul: Trace) -> None:
    fused, alone = (agenda([trace]).items[0].gain for trace in (large, matmul))
    assert alone.default_us > fused.default_us
    assert alone.us < fused.us


def test_a_default_that_was_timed_counts_in_place_of_the_predicted_one(small: Trace, large: Trace) -> None:
    store = Store.open({"FUSEPLAN_DB": str(database())})
    for name, wall in (("inductor", 9e6), ("eager", 9e9)):
        store.add_default_timing(DefaultTiming(small.key, environment("cpu"), name, wall_us=wall))
    store.close()
    first, second = agenda([large, small]).items
    assert (first.name, first.gain.source, first.gain.default_us) == ("small", "timed", 9e6)
    assert (second.name, second.gain.source) == ("large", "predicted")


def test_a_program_that_nobody_can_look_into_is_tuned_all_the_same(
    small: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise NotImplementedError("no such thing on meta")

    monkeypatch.setattr("fuseplan.tuning.queue.possible_gain.load_trace", broken)
    (item,) = agenda([small]).items
    assert item.gain.source == "guessed"
    assert item.worth_us > 0


def test_only_so_many_are_looked_into(small: Trace, large: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuseplan.tuning.queue.agenda.MOST_LOOKED_AT", 1)
    found = {item.name: item.gain.source for item in agenda([small, called(large, 2)]).items}
    assert found == {"large": "predicted", "small": "guessed"}


def test_the_first_programs_alone(small: Trace, large: Trace, matmul: Trace) -> None:
    found = agenda([small, large, matmul], top=1)
    assert {item.name for item in found.items} == {"large"}
    assert (found.programs, found.left_out) == (3, 2)
    with pytest.raises(OptionError, match="at least one program"):
        agenda([small], top=0)


def test_a_cpu_has_no_cuda_graphs(small: Trace) -> None:
    """Nothing is measured to find that out."""
    assert [item.launch for item in agenda([small], launch="both").items] == ["plain"]
    assert [item.launch for item in agenda([small]).items] == ["plain"]
    with pytest.raises(OptionError, match="CUDA graphs need a GPU"):
        agenda([small], launch="cudagraph")


# What is one program


def test_equal_programs_are_one_with_the_larger_count_of_calls(small: Trace, large: Trace, tmp_path: Path) -> None:
    folder = written(tmp_path / "traces", called(small, 3), large, called(small, 7), small)
    found = agenda([folder, folder / "0.json", small])
    assert found.read == 5  # a file that is named twice is read once
    assert {(item.name, item.trace.times) for item in found.items} == {("small", 7), ("large", 1)}


def test_many_files_of_few_programs(tmp_path: Path) -> None:
    """As scripts/bench traces times it, with 1,000 files of 100."""
    few = many.programs(4)
    assert many.write(tmp_path / "traces", few, 40) > 0
    found = agenda([tmp_path / "traces"])
    assert (found.read, found.programs) == (40, 4)
    assert {item.key: item.trace.times for item in found.items} == {trace.key: 37 + i for i, trace in enumerate(few)}


def test_a_dynamic_program_is_tuned_for_each_box_of_the_sizes_it_was_called_with(dynamic: Trace) -> None:
    (name,) = [symbol["name"] for symbol in dynamic.fields["symbols"]]
    counted = [Calls({name: size}, calls) for size, calls in ((48, 1000), (60, 500), (300, 1000))]
    found = agenda([replace(dynamic, calls=tuple(counted))])
    assert {(item.sizes.text, item.trace.times) for item in found.items} == {
        (f"{name}=33..64", 1500),
        (f"{name}=257..512", 1000),
    }
    assert {item.key for item in found.items} == {dynamic.key}
    tuned = tune([replace(dynamic, calls=tuple(counted))], workers=replayed, progress=Silent())
    assert [one.status in ("tuned", "default") for one in tuned] == [True, True]
    store = Store(Places(database()))
    assert {plan.sizes.text for plan in store.plans()} == {item.sizes.text for item in found.items}
    store.close()


def test_boxes_that_hold_next_to_nothing_of_a_program_s_time_stay_under_the_default(dynamic: Trace) -> None:
    (name,) = [symbol["name"] for symbol in dynamic.fields["symbols"]]
    rare, often = [Calls({name: size}, calls, seconds) for size, calls, seconds in ((300, 40, 0.3), (48, 1000, 9.0))]
    with pytest.warns(UserWarning, match="dynamic is called in 2 boxes of sizes, of which 1 hold most of its time"):
        found = agenda([replace(dynamic, calls=(rare, often))])
    assert [item.sizes.text for item in found.items] == [f"{name}=33..64"]
    by_itself = agenda([replace(dynamic, calls=(rare,))])
    assert [item.sizes.text for item in by_itself.items] == [f"{name}=257..512"]


# What is known already


def test_what_is_known_is_said_and_takes_no_time(small: Trace, large: Trace) -> None:
    (tuned,) = tune([small], workers=replayed, progress=Silent())
    store = Store(Places(database()))
    for program, rows in ((small, 2), (large, 1)):
        run = Run(program.key, environment("cpu"))
        store.add_run(run)
        for executor in ("aten", "inductor")[:rows]:
            one = measurement(environment=environment("cpu"), executor=executor, run=run.key)
            store.add_measurement(RELU, one)
    store.close()
    found = {item.name: item for item in agenda([small, large]).items}
    known = found["small"].known
    assert known is not None
    assert (known.plan, known.status) == (tuned.plan, tuned.status)
    assert found["small"].seconds == 0 < found["large"].seconds
    assert (found["small"].measurements, found["large"].measurements) == (tuned.measured + 2, 1)
    assert found["small"].why.startswith("known: ")
    assert all(item.known is None for item in agenda([small, large], again=True).items)


def test_a_plan_of_a_retargeted_program_is_found_again(small: Trace) -> None:
    """Recorded on a GPU, tuned on this CPU: whoever asks once more is told the plan."""
    recorded = small.on("cuda")
    (tuned,) = tune([recorded], device="cpu", workers=replayed, progress=Silent())
    assert tuned.program == small.key
    (item,) = agenda([recorded], device="cpu").items
    assert item.known is not None
    assert item.known.program == small.key


def test_how_long_it_takes_is_how_long_it_took(small: Trace, large: Trace) -> None:
    before = agenda([large]).seconds
    tune([small], workers=replayed, progress=Silent())
    assert 0 < agenda([large]).seconds < before / 2


def test_what_is_only_predicted_takes_seconds_whatever_measuring_took(
    small: Trace, large: Trace, tmp_path: Path
) -> None:
    tune([small], workers=replayed, progress=Silent())
    tune([small], effort="none", workers=replayed, progress=Silent())
    assert agenda([small, large], effort="none", again=True).seconds == 2 * PREDICTED_S < 10
    folder = written(tmp_path / "traces", large)
    told = CliRunner().invoke(main, ["tune", str(folder), "--effort", "none", "--dry-run"]).output.splitlines()
    assert told[-1] == "1 trace read, 1 distinct, 1 to tune, about 3 s"


def test_a_trace_recorded_where_we_are_not_names_the_device(small: Trace) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(OptionError, match=r"recorded on cuda:0: there is no device.*--device cpu"):
        agenda([small.on("cuda")])


# --dry-run


def test_a_dry_run_lists_and_does_nothing(small: Trace, large: Trace, tmp_path: Path) -> None:
    folder = written(tmp_path / "traces", called(small, 3), large, small)
    arguments = ["tune", str(folder), "--dry-run", "--budget", "10m", "--device", "cpu"]
    ran = CliRunner().invoke(main, arguments)
    assert ran.exit_code == 0, ran.output
    first, second = (line.split() for line in ran.output.splitlines()[1:3])
    assert (first[:4], second[:4]) == (["1", "large", "1", "plain"], ["2", "small", "3", "plain"])
    assert ran.output.splitlines()[-1].startswith("3 traces read, 2 distinct, 2 to tune, about ")
    told = json.loads(CliRunner().invoke(main, [*arguments, "--json", "--top", "1"]).output)
    assert (told["read"], told["programs"], told["left_out"]) == (3, 2, 1)
    assert [(one["name"], one["known"], one["devices"]) for one in told["items"]] == [("large", None, ["cpu"])]
    assert told["seconds"] > 0
    assert not database().exists()


def test_a_dry_run_tells_a_known_plan(small: Trace, tmp_path: Path) -> None:
    store = Store(Places(database()))
    store.add_plan(StoredPlan(small.key, environment("cpu"), Plan("inductor"), wall_us=5.0))
    (key,) = [plan.key for plan in store.plans()]
    store.close()
    folder = written(tmp_path / "traces", small)
    told = json.loads(CliRunner().invoke(main, ["tune", str(folder), "--dry-run", "--json"]).output)
    assert told["items"][0]["known"] == {"plan": key, "status": "tuned", "wall_us": 5.0}


def database() -> Path:
    """The one of this test."""
    import os

    return Path(os.environ["FUSEPLAN_DB"])


# Time


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90s", 90), ("10m", 600), ("1h30m", 5400), ("1.5h", 5400), ("45", 45), (" 2M ", 120), ("1d", 86400)],
)
def test_budgets(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize(
    "text", ["banana", "", "0", "0s", "-5s", "10x", "1h-3m", "h", "1..5s", "nan", "inf", "5s banana"]
)
def test_no_budgets(text: str) -> None:
    with pytest.raises(OptionError, match="a budget is"):
        seconds(text)


def test_a_budget_for_many_goes_to_the_first_of_them() -> None:
    """Six seconds for each of a hundred would be of no use to any of them."""
    assert Time(600.0, [1.0] * 100).share() == pytest.approx(45, abs=1)
    assert Time(600.0, [1.0] * 100, devices=4).share() == pytest.approx(45, abs=1)
    assert Time(600.0, [1.0] * 4, devices=2).share() == pytest.approx(300, abs=1)
    assert Time(600.0, [1.0] * 3, devices=2).share() == pytest.approx(300, abs=1)
    assert Time(20.0, [1.0] * 4).share() == pytest.approx(20, abs=1)
    assert Time(120.0, [0.0, 0.0]).share(0.0) == pytest.approx(60, abs=1)


def test_what_is_worth_more_gets_more_time_and_the_rest_what_is_of_use() -> None:
    time = Time(190.0, [90.0, 10.0])
    assert time.share(90.0) == pytest.approx(45 + 90, abs=1)
    assert time.share(10.0) == pytest.approx(45 + 10, abs=1)
    time.end(90.0)  # it took no time at all
    assert time.share(10.0) == pytest.approx(190, abs=1)


def test_what_one_program_has_no_time_for_the_others_get() -> None:
    """On two devices, the long one keeps the first: nobody else can use that time, but they can use the second's."""
    time = Time(600.0, [1000.0, 1.0, 1.0, 1.0, 1.0], devices=2)
    assert time.share(1000.0) == pytest.approx(600, abs=1)
    assert time.share(1.0) == pytest.approx(100, abs=1)


def test_a_storage_is_not_made_for_a_wrong_call(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no file"):
        tune("nothing-of-this-name", storage=f"journal:{tmp_path / 'study.log'}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("given", [{"sampler": "grid"}, {"storage": "mystery://me:secret@host/db"}])
def test_a_study_that_cannot_be_is_told_before_anything_is_done(
    small: Trace, own_database: Path, given: dict[str, str]
) -> None:
    with pytest.raises(OptionError, match=r"there is no sampler|storage of the study cannot be used") as caught:
        tune([small], **given)  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)
    assert not own_database.exists()
