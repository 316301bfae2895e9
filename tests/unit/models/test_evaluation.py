"""The evaluation: its figures by hand where they can be had so, what is left out is left out, and all of it as a verb."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fuseplan.cli import main
from fuseplan.errors import OptionError
from fuseplan.models import Cost, Machine, Row
from fuseplan.models.evaluation import Data, metrics
from fuseplan.models.evaluation.choices import best_us, candidates, executor_regrets, island_regrets
from fuseplan.models.evaluation.evaluate import Report
from fuseplan.models.evaluation.limits import limits_met
from fuseplan.models.evaluation.moves import Moved, moved, table
from fuseplan.models.evaluation.plots import write_report
from fuseplan.models.evaluation.replay import ByBounds, sessions_of
from fuseplan.models.evaluation.splits import grouped, left_out
from fuseplan.models.learned import Gap
from fuseplan.models.model import Question
from fuseplan.models.rows import CutIsland, IslandCut, Measured, Rows, read_rows
from models_rows import write_part
from small_graphs import graph, op, tensor

TIMES = {
    # One op after another, fused or not, by inductor and nvfuser: fusing both wins under nvfuser alone.
    "0-1": (9.0, 5.0),
    "0": (3.0, 4.0),
    "1": (3.0, 4.0),
}


def island(family: str, size: int, scale: float = 1.0) -> tuple[list[Measured], dict[str, object], CutIsland]:
    kind = tensor(size, 64)
    whole = graph(
        {"x": kind}, op("exp.default", ("%x",), ("y", kind)), op("neg.default", ("%y",), ("z", kind)), out="z"
    )
    first = graph({"x": kind}, op("exp.default", ("%x",), ("y", kind)), out="y")
    second = graph({"x": kind}, op("neg.default", ("%x",), ("y", kind)), out="y")
    graphs = {"0-1": whole, "0": first, "1": second}
    rows = [
        Measured(graphs[choice].key, family, whole.key, choice, executor, "default", "ok", scale * time, 9.0)
        for choice, times in TIMES.items()
        for executor, time in zip(("inductor", "nvfuser"), times, strict=True)
    ]
    cuts = (
        IslandCut("maximal", "", (("0-1", whole.key),)),
        IslandCut("split 1", "maximal", (("0", first.key), ("1", second.key))),
    )
    return rows, {one.key: one for one in graphs.values()}, CutIsland(whole.key, family, cuts)


@cache
def data() -> Data:
    made = [island("bert-1x128", 64), island("bert-8x128", 128), island("random-pointwise", 256, 2.0)]
    return Data.of(
        [
            Rows(
                {"environment": {"gpu": "NVIDIA H200"}},
                tuple(row for rows, *_ in made for row in rows),
                {key: one for _, graphs, _ in made for key, one in graphs.items()},  # type: ignore[misc]
                tuple(one for *_, one in made),
            )
        ]
    )


def truth(row: int) -> float:
    return data().rows[row].device_us


def by_executor(inductor: float, nvfuser: float) -> dict[str, float]:
    return {"inductor": inductor, "nvfuser": nvfuser}


def test_whoever_knows_the_times_regrets_nothing() -> None:
    decisions = data().decisions
    assert [round(best_us(data(), one), 6) for one in decisions] == [5.0, 5.0, 10.0]
    for regrets in (executor_regrets(data(), list(data().units), truth), island_regrets(data(), decisions, truth)):
        assert all(value == 0 for found in regrets for value in found)


def test_regret_is_what_was_chosen_over_the_best() -> None:
    def inductor_first(row: int) -> float:
        return truth(row) * (1.0 if data().measured[row].executor == "inductor" else 10.0)

    one, three = executor_regrets(data(), list(data().units), inductor_first)
    assert sorted(set(np.round(one, 6))) == [0.0, 0.8]  # fused, inductor takes 9 and nvfuser 5
    assert set(three) == {0.0}
    one, three = island_regrets(data(), data().decisions, inductor_first)
    assert np.round(one, 6).tolist() == [0.2] * 3  # split under inductor 6, fused under nvfuser 5
    assert [candidate.rows for candidate in candidates(data(), data().decisions[0], inductor_first)] == [
        (0,), (1,), (2, 4), (3, 5)
    ]  # fmt: skip


def test_a_model_family_is_left_out_whole_and_shares_no_region_with_what_is_learnt_from() -> None:
    splits = {split.name: split for split in left_out(data())}
    assert set(splits) == {"bert", "random-pointwise"}
    assert {data().measured[i].family for i in splits["bert"].test} == {"bert-1x128", "bert-8x128"}
    for split in (*splits.values(), *grouped(data(), 3)):
        regions = [{data().measured[i].region for i in part} for part in (split.train, split.test)]
        assert not regions[0] & regions[1]
    assert sorted(i for split in grouped(data(), 3) for i in split.test) == list(range(len(data().rows)))


def test_a_region_that_two_families_have_is_not_learnt_from() -> None:
    rows, graphs, one = island("bert-1x128", 64)
    other = Measured("k", "vit", "other", "0", "inductor", "default", "ok", 2.0, 2.0)
    shared = CutIsland("other", "vit", (IslandCut("maximal", "", (("0", rows[2].region),)),))
    region = graph({"x": tensor(8)}, op("sin.default", ("%x",), ("y", tensor(8))), out="y")
    found = Data.of(
        [
            Rows({"environment": {"gpu": "NVIDIA H200"}}, (*rows, other), {**graphs, "k": region}, (one, shared))  # type: ignore[arg-type]
        ]
    )
    (split,) = [split for split in left_out(found) if split.name == "vit"]
    assert rows[2].region not in {found.measured[i].region for i in split.train}
    assert {found.measured[i].choice for i in split.train} == {"0-1", "1"}


class Told:
    """A model that says what it was given, and never learns."""

    def __init__(self, factors: dict[str, float], spread: float, unsure: bool = False) -> None:
        self.times = {data().questions[i]: truth(i) for i in range(len(data().rows))}
        self.factors, self.spread, self.unsure, self.heard = factors, spread, unsure, 0

    def predict(self, regions: list[Question]) -> list[Cost]:
        return [Cost(self.times[one] * self.factors[one[1]], 9.0, self.spread, unsure=self.unsure) for one in regions]

    def update(self, rows: list[Row]) -> None:
        self.heard += len(rows)


def test_measuring_what_could_win_finds_the_best_plan() -> None:
    model = Told(by_executor(1.0, 1.5), spread=0.6)
    sessions = sessions_of(data().decisions)
    assert [(one.name, len(one.plans)) for one in sessions] == [
        ("bert-1x128", 1), ("bert-8x128", 1), ("random-pointwise", 1)
    ]  # fmt: skip
    none, all_of_it = ByBounds(data(), sessions[0].plans, model).spend((0.0, 1.0))  # type: ignore[arg-type]
    assert (none.measured, round(none.regrets[0], 6)) == (0, 0.2)
    assert all_of_it.regrets == (0.0,)
    assert 0 < all_of_it.measured == model.heard <= all_of_it.rows == 6


def test_what_is_decided_is_not_measured_and_what_is_unsure_is() -> None:
    plans = sessions_of(data().decisions)[0].plans
    (sure,) = ByBounds(data(), plans, Told(by_executor(1.0, 1.0), 0.001)).spend((1.0,))  # type: ignore[arg-type]
    (unsure,) = ByBounds(data(), plans, Told(by_executor(1.0, 1.0), 0.001, True)).spend((1.0,))  # type: ignore[arg-type]
    assert (sure.measured, sure.regrets) == (0, (0.0,))
    assert unsure.measured > 0


def test_a_budget_is_kept() -> None:
    model = Told(by_executor(1.0, 1.5), spread=2.0)
    points = ByBounds(data(), sessions_of(data().decisions)[0].plans, model).spend((0.2, 0.4))  # type: ignore[arg-type]
    assert [point.measured for point in points] == [1, 2]


def test_moves_are_right_wrong_or_unsure() -> None:
    def gap(spread: float) -> list[Moved]:
        return moved(data(), data().decisions, truth, lambda a, b: Gap(0.3, spread), lambda _: False)

    assert [(one.kind, round(math.exp(one.truth), 3)) for one in gap(0.01)] == [("merge or not", 1.2)] * 3
    assert [one.verdict for one in gap(0.01)] == ["right"] * 3
    assert [one.verdict for one in gap(0.5)] == ["unsure"] * 3
    odd = moved(data(), data().decisions, truth, lambda a, b: Gap(0.3, 0.01), lambda _: True)
    assert [one.verdict for one in odd] == ["unsure"] * 3
    rows = table([*gap(0.01), Moved("merge or not", 0.2, -0.1, True), Moved("merge or not", 0.005, 1.0, True)])
    assert rows == {
        "merge or not": {
            "right": 3, "wrong": 1, "unsure": 0, "immaterial": 1, "right_of_decided": 0.75, "right_if_forced": 0.75
        }
    }  # fmt: skip


def test_figures_by_hand() -> None:
    measured, predicted = np.array([5.0, 20.0, 40.0]), np.array([6.0, 10.0, 40.0])
    assert metrics.errors(measured, predicted) == {
        "from_10_us_rows": 2, "from_10_us_mape": 0.25, "from_10_us_median": 0.25, "below_10_us_rows": 1,
        "below_10_us_mape": 0.2, "below_10_us_median": 0.2,
    }  # fmt: skip
    order = metrics.tau(
        ["a"] * 3 + ["b"] * 2, np.array([1.0, 2.0, 3.0, 1.0, 1.001]), np.array([1.0, 3.0, 2.0, 9.0, 1.0])
    )
    assert (order["regions"], order["tau"], order["pairs"], order["pairs_right"]) == (1, 0.3333, 3, 0.6667)
    assert metrics.regret([0.0, 0.0, 0.3])["p95"] == 0.27
    assert metrics.auc(np.array([True, False, False, True]), np.array([0.9, 0.1, 0.5, 0.3])) == 0.75


def test_rows_of_two_machines_are_not_mixed() -> None:
    rows, graphs, _ = island("bert-1x128", 64)
    files = [Rows({"environment": {"gpu": name}}, tuple(rows), graphs) for name in ("NVIDIA H200", "NVIDIA A100")]  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="one at a time"):
        Data.of(files)


def test_views_alone_have_no_time_on_a_gpu() -> None:
    kind = tensor(8, 16)
    view = graph({"x": kind}, op("t.default", ("%x",), ("y", tensor(16, 8, stride=(1, 16))), view=True), out="y")
    row = Measured(view.key, "bert", "i", "0", "aten", "default", "ok", 0.002, 1.0)
    for name, timed in (("NVIDIA H200", [False]), ("AMD EPYC", [True])):
        place = {"gpu": name} if "NVIDIA" in name else {"cpu": name}
        assert Data.of([Rows({"environment": place}, (row,), {view.key: view})]).timed == timed


def test_a_report_is_written_as_json_and_pictures(tmp_path: Path) -> None:
    report = Report(
        {"limits": {}}, [2.0, 30.0, 400.0], [2.2, 28.0, 100.0], [False, False, True],
        {"learned": [(0, 5.0), (20, 1.0)], "random": [(0, 90.0)]}, {"families left out": [(50, 48), (90, 89)]},
    )  # fmt: skip
    first, second = write_report(report, tmp_path / "new")
    assert json.loads(first.read_text()) == {"limits": {}}
    text = " ".join(node.text or "" for node in ElementTree.parse(second).iter("{http://www.w3.org/2000/svg}text"))
    assert "predicted, µs" in text
    assert "learned" in text
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["cost-model.json", "cost-model.svg"]


def test_info_lists_features_with_reasons_and_rows() -> None:
    result = CliRunner().invoke(main, ["model", "info", "--json"])
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert all(one["reason"] for one in found["features"])
    assert max(one["rows"] for one in found["rows"]) >= 6000
    assert "bytes_in" in CliRunner().invoke(main, ["model", "info"]).stdout


def test_fit_keeps_what_tuning_takes_up(tmp_path: Path) -> None:
    rows = write_part(tmp_path / "some.jsonl.xz", ("gpt2-8x1024", "random-gated"), 60)
    database = tmp_path / "tuned.db"
    result = CliRunner().invoke(main, ["model", "fit", "--rows", str(rows), "--db", str(database), "--json"])
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (found["machine"], found["rows"] + found["failed"] > 50) == ("NVIDIA H200", True)
    assert Path(found["path"]).parent == tmp_path / "models"
    from fuseplan.models.learned import Learned
    from fuseplan.models.shipped import planner_model

    assert isinstance(planner_model(Machine.guess("NVIDIA H200"), tmp_path / "models", []), Learned)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "--machine", "Cray"], "there are no rows of Cray; there are rows of: "),
        (["evaluate", "--rows", "{tmp}/broken.jsonl"], "broken.jsonl"),
        (["evaluate", "--rows", "{tmp}/none.jsonl"], "does not exist"),
        (["fit", "--rows", "{tmp}/few.jsonl.xz", "--db", "{tmp}/x.db"], "too few to learn from"),
        (["evaluate", "--rows", "{tmp}/few.jsonl.xz"], "one model family alone"),
    ],
)
def test_bad_calls_end_with_one_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "broken.jsonl").write_text("{}\n")
    write_part(tmp_path / "few.jsonl.xz", ("random-gated",), 20)
    result = CliRunner().invoke(main, ["model", *(one.format(tmp=tmp_path) for one in arguments)])
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.exhaustive
def test_the_whole_evaluation_on_a_part_of_the_rows(tmp_path: Path) -> None:
    rows = write_part(tmp_path / "some.jsonl.xz", ("gpt2-8x1024", "random-gated", "random-softmax"), 100)
    result = CliRunner().invoke(
        main, ["model", "evaluate", "--rows", str(rows), "--json", "--jobs", "1", "--plots", str(tmp_path / "out")]
    )
    found = json.loads(result.stdout)
    assert result.exit_code == 1, "so few rows cannot be enough"
    assert found["limits"]["rows"] == {"asked": 6000, "found": found["rows"]["with_times"], "met": False}
    assert found["limits"] == limits_met(found)
    models = found["left_out"]["models"]
    assert {"learned", "roofline", "random", "best single executor", "random forest on raw shapes"} < set(models)
    assert models["learned"]["device"]["from_10_us_median"] < models["random"]["device"]["from_10_us_median"]
    assert sum(one["test"] for one in found["left_out"]["splits"].values()) == found["rows"]["measured"]
    assert set(found["plans"]["learned"]["all"]) == {"0", "0.05", "0.1", "0.2", "0.4"}
    assert json.loads((tmp_path / "out" / "cost-model.json").read_text()) == found
    assert len(read_rows(rows).rows) == found["rows"]["measured"]
