"""`explain`, `draw` and `bench`: of stored plans, and of traces that nobody tuned."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
import torch
from click.testing import CliRunner

import fuseplan
from fuseplan.capture.trace.format import Trace
from fuseplan.cli import main
from fuseplan.errors import FuseplanError, OptionError, StoreError
from fuseplan.explain import explained
from fuseplan.graph import Graph
from fuseplan.judge.output import JudgedOutput
from fuseplan.looking.explained import Explained
from fuseplan.measure.environment import environment
from fuseplan.plan import CarveOuts, Plan
from fuseplan.segment import Region, Segmentation
from fuseplan.segment.moves import Move
from fuseplan.tuning_db import Box, Evidence, Raced, RegionEvidence, StoredPlan
from fuseplan.tuning_db.profile_evidence import GapEvidence, ProfileEvidence
from replaying import ReplayingPool
from stored import store_at

EXACTLY = "beside a run in float64"


def output(share: float, name: str = "output 0") -> JudgedOutput:
    return JudgedOutput(name, "largest", share * 1e-6, 1e-6, 5e-7)


@pytest.fixture(scope="module")
def trace() -> Trace:
    (found,) = fuseplan.traces_of(lambda x: (x.relu() + 1).sum(), torch.ones(4, 4), name="ramp")
    return found


@pytest.fixture(scope="module")
def untuned(trace: Trace) -> Explained:
    """What is told of the trace where no database knows it; its graph comes from a worker."""
    (found,) = explained(trace)
    return found


@pytest.fixture
def stored(trace: Trace, untuned: Explained, tmp_path: Path) -> tuple[Path, StoredPlan, Graph]:
    """A database that holds a plan with two regions for the trace, as if it had been tuned here."""
    path = tmp_path / "tuning.db"
    ((_, graph),) = untuned.graphs
    cut = Segmentation((Region((0, 1), "inductor"), Region((2,), "aten")))
    walls = {"inductor": (20.0, 21.0, 19.0), "cut 1": (10.0, 10.5, 9.5)}
    raced = (
        Raced("inductor", True, wall_us=20.0, walls=walls["inductor"]),
        Raced(
            "cut 1",
            wall_us=10.0,
            predicted_us=12.0,
            walls=walls["cut 1"],
            how=EXACTLY,
            outputs=(output(0.25), output(0.125, "x")),
        ),
        Raced(
            "cut 2",
            status="wrong",
            detail="output 0 differs",
            predicted_us=9.0,
            how=f"{EXACTLY}, allowed 2 times as much",
            outputs=(output(12.5),),
        ),
        Raced("cut 3", status="compile-error", detail="no kernel", how=EXACTLY),
    )
    regions = (
        RegionEvidence("inference", 0, "ab" * 32, "inductor", ops=2, predicted_device_us=6.0, device_us=4.0, roofline_us=1.0),
        RegionEvidence("inference", 1, "cd" * 32, "aten", ops=1, predicted_device_us=5.0, device_us=6.0, roofline_us=3.0),
    )  # fmt: skip
    plan = StoredPlan(
        trace.key, environment("cpu"), Plan("aten", carve_outs=(CarveOuts("inference", graph.key, cut),)), wall_us=10.0, device_us=10.0,
        host_us=0.0, noise_us=0.1, predicted_us=12.0, best_default="inductor", best_default_us=20.0,
        moves=(Move("split", (2,), role="inference", change_us=-2.0),), evidence=Evidence(raced, regions),
    )  # fmt: skip
    store = store_at(path)
    store.add_program(trace.key, "ramp", {"inference": graph}, trace=trace.to_json())
    store.add_plan(plan)
    store.close()
    return path, plan, graph


def test_where_the_time_goes_is_told_with_what_is_left(trace: Trace, tmp_path: Path) -> None:
    gaps = (
        GapEvidence("backward", "sum, mul", ("triton_red_fused_mul_sum_0",), 12, 500.0, 200.0, "memory"),
        GapEvidence("forward", "mm", ("extern_kernels.mm",), 1, 300.0, 310.0, "arithmetic"),
    )
    profile = ProfileEvidence("inductor", 1000.0, 200.0, ("Memcpy DtoD 200 µs",), gaps)
    path = tmp_path / "tuning.db"
    store = store_at(path)
    store.add_program(trace.key, "ramp")
    evidence = Evidence((Raced("inductor", True, wall_us=1250.0, host_us=900.0),), profile=profile)
    store.add_plan(StoredPlan(trace.key, environment("cpu"), Plan("inductor"), status="default", evidence=evidence))
    store.close()

    found = CliRunner().invoke(main, ["explain", trace.key[:10], "--gaps", "--db", str(path)])
    assert found.exit_code == 0, found.output
    lines = [line.strip() for line in found.output.splitlines()]
    assert "where the time of inductor goes, 1.00 ms on the device in a step:" in lines
    assert "the device waits 250.0 µs of 1.25 ms in a step, for the host" in lines
    assert "left: 300.0 µs, 30.0 %, above what these ops could take on this machine" in lines
    assert any(
        re.fullmatch(r"500.0 µs +50.0 % +200.0 µs +300.0 µs +30.0 % +memory +backward +×12 +sum, mul", one)
        for one in lines
    )
    assert any(
        re.fullmatch(r"300.0 µs +30.0 % +310.0 µs +0.0 µs +0.0 % +arithmetic +forward +mm", one) for one in lines
    )
    assert lines[-1].startswith("200.0 µs, 20.0 %, in kernels of which nobody knows what they compute: Memcpy DtoD")
    told = json.loads(
        CliRunner().invoke(main, ["explain", trace.key[:10], "--gaps", "--json", "--db", str(path)]).output
    )
    assert told[0]["profile"]["gaps"][0]["gap_us"] == 300.0


def test_what_nobody_has_profiled_says_so(stored: tuple[Path, StoredPlan, Graph]) -> None:
    path, plan, _ = stored
    found = CliRunner().invoke(main, ["explain", plan.key[:10], "--gaps", "--db", str(path)])
    assert (
        "nobody has looked where its time goes: tuning does, on a GPU or with effort full, where there is time"
        in found.output
    )


def test_a_stored_plan_is_explained_with_its_evidence(stored: tuple[Path, StoredPlan, Graph]) -> None:
    path, plan, graph = stored
    text = fuseplan.explain(plan.key[:10], db=path)
    assert f"program {plan.program}, ramp" in text
    assert "why: plan " in text
    assert "tuned: it won its race against the defaults" in text
    assert "time: 10.0 µs (device 10.0 µs, host 0.0 µs), noise 1.0 %, 2.00× as fast as inductor (20.0 µs)" in text
    assert "predicted: 12.0 µs, off by 20.0 %" in text
    assert "inference: -2.0 µs: split op 2 off its region" in text
    assert re.search(r"inductor +20\.0 µs +2\.00× +- +- +default", text)
    assert re.search(r"cut 2 +- +- +9\.0 µs +- +wrong: output 0 differs", text)
    judged = text[text.index("judged ") : text.index("\ninference")].splitlines()
    assert judged[0] == f"judged {EXACTLY}:"
    assert judged[2].split() == "cut 1 right 2.5e-07 1e-06 25.0 % 5e-07 largest output 0".split()
    assert judged[3] == f"  judged {EXACTLY}, allowed 2 times as much:"
    assert judged[5].split() == "cut 2 wrong 1.25e-05 1e-06 1250.0 % 5e-07 largest output 0".split()
    assert "cut 3" not in "\n".join(judged), "it did not get that far"
    assert re.search(r"1 +aten +1 +6\.0 µs +5\.0 µs +3\.0 µs +50\.0 %", text)
    listing = text[text.index("def graph(") :]
    assert "    with inductor:  # region 0, 2 ops: measured 4.0 µs, predicted 6.0 µs, at least 1.0 µs" in listing
    compile(re.sub(r"(?<=#).*", "", listing), "listing", "exec")  # it is Python
    assert [line.strip() for line in listing.splitlines() if "= aten." in line] == [
        line.strip() for line in str(graph).splitlines() if "= aten." in line
    ]
    assert "def graph(" not in fuseplan.explain(plan.key, db=path, graphs=False)


def test_the_same_as_json(stored: tuple[Path, StoredPlan, Graph]) -> None:
    path, plan, graph = stored
    told = CliRunner().invoke(main, ["explain", "ramp", "--json", "--db", str(path)])
    ((one),) = json.loads(told.output)
    assert one["stored"]["key"] == plan.key
    assert [raced["ratio"] for raced in one["raced"]] == [2.0, 1.0, None, None]
    assert [one["how"] for one in one["raced"]] == ["", EXACTLY, f"{EXACTLY}, allowed 2 times as much", EXACTLY]
    assert [[out["share"] for out in one["outputs"]] for one in one["raced"]] == [[], [0.25, 0.125], [12.5], []]
    assert [(region["executor"], region["ops"], region["device_us"]) for region in one["graphs"][0]["regions"]] == [
        ("inductor", [0, 1], 4.0),
        ("aten", [2], 6.0),
    ]
    assert one["graphs"][0]["key"] == graph.key


def test_a_trace_that_has_a_plan_here(stored: tuple[Path, StoredPlan, Graph], trace: Trace, tmp_path: Path) -> None:
    path, plan, _ = stored
    (tmp_path / "ramp.json").write_text(trace.to_json())
    (one,) = explained(tmp_path / "ramp.json", db=path)
    assert one.plan == plan.plan, one.why
    assert f"plan {plan.key[:12]} of the user database is tuned" in one.why


def test_a_trace_that_nobody_tuned(untuned: Explained) -> None:
    assert untuned.plan == Plan.named("inductor")
    assert untuned.why.endswith("; this is what torch.compile does")
    assert "no plan is stored for program" in untuned.why
    assert [role for role, _ in untuned.graphs] == ["inference"]
    assert "aten.relu.default" in untuned.text()


def test_a_training_trace_that_nobody_tuned_is_drawn_as_forward_and_backward(tmp_path: Path) -> None:
    (trace,) = fuseplan.traces_of(torch.nn.Linear(3, 2), torch.ones(1, 3), name="linear")
    (tmp_path / "linear.json").write_text(trace.to_json())
    drawn = fuseplan.draw(tmp_path / "linear.json", tmp_path / "plan.svg")
    assert list(drawn) == ["forward", "backward"]
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == ["plan-backward.svg", "plan-forward.svg"]


def test_a_program_of_another_machine_is_explained_from_the_database_alone(tuned_database: Path) -> None:
    text = fuseplan.explain("BERT", db=tuned_database)
    assert "torch 2.12.0" in text
    assert "its other plans:" in text
    assert "torch 2.11.0" in text
    assert "with nvfuser:" in text
    assert "alone ×3" in text


def test_what_is_drawn_has_the_regions_of_the_plan_and_their_times(
    stored: tuple[Path, StoredPlan, Graph], tmp_path: Path
) -> None:
    path, plan, _ = stored
    told = CliRunner().invoke(
        main, ["graph", plan.key[:8], "--svg", str(tmp_path / "p.svg"), "--json", "--db", str(path)]
    )
    assert json.loads(told.output) == {"inference": str(tmp_path / "p.svg")}
    text = (tmp_path / "p.svg").read_text(encoding="utf-8")
    hulls = [g for g in Xml.fromstring(text).iter("{http://www.w3.org/2000/svg}g") if "region" in g.get("class", "")]
    assert [hull.get("data-region") for hull in hulls if hull.get("data-region")] == ["0", "1"]
    assert "4.0 µs" in text
    with pytest.raises(FuseplanError, match="it has no backward graph"):
        fuseplan.draw(plan.key, role="backward", db=path)
    with pytest.raises(OptionError, match="no graph has the role"):
        fuseplan.draw(plan.key, role="sideways", db=path)


def test_names_that_mean_several_programs(tuned_database: Path) -> None:
    assert fuseplan.explain("GPT-2", db=tuned_database, graphs=False).count("program 00000") == 2
    with pytest.raises(OptionError, match="GPT-2 means 2 programs, and one is drawn"):
        fuseplan.draw("GPT-2", db=tuned_database)
    with pytest.raises(StoreError, match="there is no plan and no program that begins with 'T5': see fuseplan show"):
        fuseplan.explain("T5", db=tuned_database)


# bench


class Bench:
    """Races of made-up times in the place of workers."""

    def __init__(self, **pool: Any) -> None:
        self.pool = ReplayingPool(**pool)

    @contextmanager
    def open(self, device: str, effort: object) -> Iterator[ReplayingPool]:
        yield self.pool


@pytest.mark.parametrize(
    ("us", "verdict"), [(500.0, "faster"), (1000.0, "same"), (1500.0, "slower")]
)  # fmt: skip
def test_a_stored_plan_races_against_the_defaults(
    stored: tuple[Path, StoredPlan, Graph], us: float, verdict: str
) -> None:
    path, plan, _ = stored
    times = {"inductor": 1000.0, "eager": 1200.0, f"plan {plan.key[:12]}": us}
    (found,) = fuseplan.bench("ramp", db=path, workers=Bench(times=times).open)
    assert (found.verdict, found.best_default, found.plan) == (verdict, "inductor", plan.key)
    ratio = next(side.ratio for side in found.sides if not side.default)
    assert ratio == us / 1000
    assert [side.name for side in found.sides] == sorted(times, key=times.__getitem__) or us == 1000.0


def test_a_plan_that_fails_by_now(stored: tuple[Path, StoredPlan, Graph]) -> None:
    path, plan, _ = stored
    bad = Bench(bad={f"plan {plan.key[:12]}": "wrong"})
    (found,) = fuseplan.bench(plan.key, db=path, workers=bad.open)
    assert found.verdict == "slower"
    assert [(side.status, side.detail) for side in found.sides if not side.default] == [("wrong", "planted")]
    assert "wrong: planted" in str(found)


def test_nothing_runs(trace: Trace) -> None:
    (found,) = fuseplan.bench(trace, workers=Bench(bad={"inductor": "crashed", "eager": "crashed"}).open)
    assert (found.verdict, found.detail) == ("failed", "no default of this launch runs here")


def test_bench_measures_here(trace: Trace, tmp_path: Path) -> None:
    (tmp_path / "ramp.json").write_text(trace.to_json())
    told = CliRunner().invoke(main, ["bench", str(tmp_path / "ramp.json"), "--seconds", "0.2", "--json"])
    (found,) = json.loads(told.output)
    assert found["verdict"] == "untuned"
    assert {side["name"]: side["status"] for side in found["sides"]} == {"inductor": "ok", "eager": "ok"}
    assert all(side["wall_us"] > 0 and side["ratio"] > 0 for side in found["sides"])


def test_plans_of_other_sizes_race_at_theirs(tmp_path: Path) -> None:
    """A plan is benched with the trace of its own box."""
    torch._dynamo.mark_dynamic(x := torch.ones(24, 4), 0)
    (trace,) = fuseplan.traces_of(lambda x: x.relu() * 2, x, name="rows")
    store = store_at(tmp_path / "t.db")
    box = Box.of({"s0": (17, 32)})
    plan = StoredPlan(trace.key, environment("cpu"), Plan.named("eager"), status="default", sizes=box, wall_us=1.0)
    store.add_program(trace.key, "rows", trace=trace.to_json(), sizes=box)
    store.add_plan(plan)
    store.close()
    (found,) = fuseplan.bench(plan.key, db=tmp_path / "t.db", workers=Bench(times={"inductor": 9.0, "eager": 5.0}).open)
    assert found.verdict == "same"  # it is the best default
    assert str(found).startswith("rows s0=17..32, plain: same")
