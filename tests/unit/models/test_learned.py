"""The learned model: what it says of rows that it has not seen, when it says that it does not know, and what it keeps."""

from __future__ import annotations

import logging
import math
import random
from dataclasses import replace
from pathlib import Path
from threading import Thread
from time import sleep

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor

from fuseplan.errors import OptionError
from fuseplan.graph import Graph
from fuseplan.models import Machine, Roofline, Row
from fuseplan.models import shipped as shipping
from fuseplan.models.evaluation.data import Data
from fuseplan.models.evaluation.splits import heads_of, left_out
from fuseplan.models.fitting import fit_heads
from fuseplan.models.heads import Heads
from fuseplan.models.learned import Learned
from fuseplan.models.learners import FAMILIES, fitted_of, one_thread
from fuseplan.models.model import Question
from fuseplan.models.rows import Measured, Rows, packaged, read_rows
from fuseplan.models.shipped import own_fit, planner_model, rows_for
from fuseplan.models.trees import Forest, of_boosting, of_trees
from models_rows import EXECUTORS, H200, made_up_heads, made_up_rows, made_up_work, write_rows
from small_graphs import graph, op, tensor


def questions_of(rows: list[Row]) -> list[Question]:
    return [(row.work, row.executor, row.variant) for row in rows]


def unseen(count: int = 240) -> list[Row]:
    return [row for row in made_up_rows(count, seed=99) if row.usable]


def errors(model: Learned | Roofline, rows: list[Row]) -> list[float]:
    found = model.predict(questions_of(rows))
    return [abs(math.log(one.device_us / row.device_us)) for one, row in zip(found, rows, strict=True)]


def test_it_learns_what_the_roofline_has_no_words_for() -> None:
    rows = unseen()
    roofline = Roofline(H200)
    roofline.update(made_up_rows(360))
    learned = sorted(errors(Learned(made_up_heads()), rows))
    assert np.mean(learned) < 0.9 * np.mean(errors(roofline, rows))
    assert learned[len(learned) // 2] < 0.1


def test_nine_of_ten_times_lie_within_what_it_says() -> None:
    rows = unseen(600)
    found = Learned(made_up_heads()).predict(questions_of(rows))
    held = [one.low_us <= row.device_us <= one.high_us for one, row in zip(found, rows, strict=True)]
    assert 0.82 < np.mean(held) < 0.98


def test_what_is_unlike_anything_learnt_from_is_unsure() -> None:
    chance, model = random.Random(5), Learned(made_up_heads())
    usual = [made_up_work(chance) for _ in range(60)]
    odd = [
        replace(
            work, bytes_in=work.bytes_in * 3000, bytes_alone=work.bytes_alone * 90_000, special=2**36, kernels=40, ops=60,
            traits=replace(work.traits, classes=(0, 30, 0, 9, 0, 9, 0, 0, 0, 9, 0, 3, 0), largest=2**34, inner=3, strided=2**36),
        )
        for work in usual
    ]  # fmt: skip
    share = [
        np.mean([one.unsure for one in model.predict([(w, "inductor", "default") for w in some])])
        for some in (usual, odd)
    ]
    assert share[0] < 0.35
    assert share[1] > share[0] + 0.3


def test_it_foresees_what_fails_and_what_comes_near_the_best() -> None:
    chance, model = random.Random(6), Learned(made_up_heads())
    works = [made_up_work(chance) for _ in range(80)]
    fails = {bool(w.anchors): model.predict([(w, "nvfuser", "default")])[0].fails for w in works}
    assert fails[True] > 0.5 > fails[False]
    large = [work for work in works if work.reduced and work.bytes_in > 2**24 and not work.anchors]
    near = [[one.near_best or 0.0 for one in model.predict([(w, e, "default") for e in EXECUTORS])] for w in large]
    assert large
    assert all(nvfuser > max(aten, inductor) for aten, inductor, nvfuser in near)


def test_own_measurements_adapt_it_to_another_machine() -> None:
    model = Learned(made_up_heads())
    here = [row for row in made_up_rows(90, seed=3, slower=1.8) if row.usable]
    there = [row for row in made_up_rows(90, seed=4, slower=1.8) if row.usable]
    before = np.median(errors(model, there))
    model.update(here)
    assert before > 0.5
    assert np.median(errors(model, there)) < 0.2


def test_what_was_measured_of_a_region_tells_of_its_other_choices() -> None:
    model, work = Learned(made_up_heads()), made_up_work(random.Random(8))
    first, second = model.predict([(work, "aten", "default"), (work, "inductor", "default")])
    model.update([Row(work, "aten", "default", 1.6 * first.device_us, first.host_us)])
    (after,) = model.predict([(work, "inductor", "default")])
    assert 1.1 * second.device_us < after.device_us < 1.6 * second.device_us


def test_what_was_measured_of_a_region_tells_of_those_with_other_views() -> None:
    model, work = Learned(made_up_heads()), made_up_work(random.Random(8))
    kin = replace(work, views=work.views + 3, traits=replace(work.traits, head_views=work.traits.head_views + 2))
    before, other = model.predict([(work, "inductor", "default"), (kin, "nvfuser", "default")])
    measured = 1.2 * before.device_us
    model.update([Row(work, "inductor", "default", measured, before.host_us)])
    near, far = model.predict([(kin, "inductor", "default"), (kin, "nvfuser", "default")])
    assert abs(math.log(near.device_us / measured)) < 0.01
    assert far.device_us < 1.1 * other.device_us  # under another executor it is another question


def test_kin_that_differ_among_themselves_or_were_far_off_leave_a_doubt() -> None:
    work = made_up_work(random.Random(8))
    kin = [replace(work, views=work.views + n) for n in range(3)]
    spreads = []
    for times in (1.2, 1.2), (0.8, 1.6):
        model = Learned(made_up_heads())
        (before,) = model.predict([(work, "inductor", "default")])
        rows = [Row(one, "inductor", "default", n * before.device_us, 5.0) for one, n in zip(kin, times, strict=False)]
        model.update(rows)
        spreads.append(model.predict([(kin[2], "inductor", "default")])[0].spread)
    assert spreads[1] > 2 * spreads[0]
    model = Learned(made_up_heads())
    model.update([Row(work, "inductor", "default", 50 * before.device_us, 5.0)])
    (after,) = model.predict([(kin[2], "inductor", "default")])
    assert after.device_us > 30 * before.device_us


def test_nine_of_ten_kin_lie_within_what_it_says_on_rows_of_a_model_that_it_has_not_seen() -> None:
    shipped = next(path for path in packaged() if "h200" in path.name)
    data = Data.of([read_rows(shipped)])
    split = next(one for one in left_out(data) if one.name == "bert")
    model = Learned(heads_of(data, split.train[::3]))
    seen: dict[Question, int] = {}
    others = []
    for i in (i for i in split.test if data.timed[i] and data.rows[i].work.ops):
        row = data.rows[i]
        first = seen.setdefault((row.work.kin, row.executor, row.variant), i)
        others += [i] if data.measured[first].region != data.measured[i].region else []
    model.update([data.rows[i] for i in seen.values()])
    told = model.predict([data.questions[i] for i in others])
    held = [one.low_us <= data.rows[i].device_us <= one.high_us for one, i in zip(told, others, strict=True)]
    assert len(held) > 50
    assert np.mean(held) >= 0.87


@pytest.mark.parametrize("kept", [300_000, 40])
def test_what_it_says_does_not_depend_on_what_it_was_asked_before(monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    monkeypatch.setattr("fuseplan.models.learned._KEPT", kept)
    rows, others = unseen(90), questions_of(made_up_rows(120, seed=7))
    asked = Learned(made_up_heads())
    for first in range(0, len(rows), 15):
        some = [replace(row, device_us=row.device_us * (1 + first / 10)) for row in rows[first : first + 15]]
        asked.update(some)
        told = asked.predict(others)
        unasked = Learned(made_up_heads())
        for begin in range(0, first + 1, 15):
            unasked.update(
                [replace(row, device_us=row.device_us * (1 + begin / 10)) for row in rows[begin : begin + 15]]
            )
        assert unasked.predict(others) == told


def test_measurements_that_contradict_it_widen_what_it_says() -> None:
    model, rows = Learned(made_up_heads()), unseen(60)
    others = [row for row in made_up_rows(60, seed=123) if row.usable]
    before = [one.spread for one in model.predict(questions_of(others))]
    wild = [replace(row, device_us=row.device_us * (6 if i % 2 else 1 / 6)) for i, row in enumerate(rows)]
    model.update(wild)
    after = [one.spread for one in model.predict(questions_of(others))]
    assert all(late > 1.5 * early for early, late in zip(before, after, strict=True))


def test_the_gap_between_two_cuts_leaves_out_what_they_share() -> None:
    chance, model = random.Random(4), Learned(made_up_heads())
    shared, small = made_up_work(chance), made_up_work(chance, largest=12)
    one, other = (shared, "nvfuser", "default"), (small, "inductor", "default")
    assert model.gap([one], [one]) == (0.0, 0.0)
    gap = model.gap([one, other], [one])
    assert gap.ratio > 0
    assert gap.spread < model.predict([other])[0].spread
    many = [(made_up_work(chance), "aten", "default") for _ in range(30)]
    assert model.gap(many, [other]).decided


def test_the_same_rows_give_the_same_bytes_which_hold_all_of_it() -> None:
    content = made_up_heads().dump()
    assert fit_heads(made_up_rows(360), H200).dump() == content
    asked = questions_of(unseen(60))
    assert Learned(Heads.load(content)).predict(asked) == Learned(made_up_heads()).predict(asked)


@pytest.mark.parametrize("content", [b"", b"PK", b"\x80\x04K\x01."], ids=["nothing", "half a file", "a pickle"])
def test_what_is_no_fit_is_refused(content: bytes) -> None:
    with pytest.raises(OptionError, match="not a fitted model"):
        Heads.load(content)


def test_a_fit_of_other_features_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    content = made_up_heads().dump()
    monkeypatch.setattr("fuseplan.models.features.VERSION", 999)
    with pytest.raises(OptionError, match="features"):
        Heads.load(content)


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(OptionError, match="too few"):
        fit_heads(made_up_rows(12), H200)


@pytest.mark.parametrize("kind", [HistGradientBoostingRegressor, ExtraTreesRegressor], ids=["boosting", "trees"])
def test_flat_trees_give_what_scikit_learn_gives_for_few_rows_and_for_many(kind: type) -> None:
    chance = np.random.default_rng(0)
    rows = chance.normal(size=(300, 6)).astype(np.float32)
    with one_thread():
        model = kind(random_state=0).fit(rows, rows[:, 0] * rows[:, 1] + np.abs(rows[:, 2]))
    flat = (of_boosting if kind is HistGradientBoostingRegressor else of_trees)(model)
    again = Forest.of(flat.arrays())
    for some in (rows[:3], rows):
        assert flat.predict(some) == pytest.approx(model.predict(some), abs=1e-9)
        assert again.predict(some) == pytest.approx(model.predict(some), abs=1e-9)


@pytest.mark.parametrize("family", ["kernel-ridge", "boosting + extra-trees"])
def test_families_of_functions_survive_as_arrays(family: str) -> None:
    chance = np.random.default_rng(1)
    rows = chance.normal(size=(200, 5)).astype(np.float32)
    fitted = FAMILIES[family](rows, rows[:, 0] - rows[:, 3], 0)
    again = fitted_of(fitted.arrays())
    assert again.predict(rows).tolist() == fitted.predict(rows).tolist()
    assert np.abs(again.predict(rows) - (rows[:, 0] - rows[:, 3])).mean() < 0.5


def region(size: int) -> Graph:
    kind = tensor(size, 64, device="cuda:0")
    return graph({"x": kind}, op("exp.default", ("%x",), ("y", kind)), out="y")


def rows_file(path: Path, gpu: str, slow: float = 1.0) -> Path:
    graphs = {one.key: one for one in map(region, range(64, 64 * 80, 64))}
    rows = [
        Measured(key, f"f{i % 4}", key, "0", executor, "default", "ok", slow * (2.0 + i / 20), 9.0)
        for i, key in enumerate(graphs)
        for executor in EXECUTORS
    ]
    write_rows(path, Rows({"environment": {"gpu": gpu}, "command": "made up"}, tuple(rows), graphs))
    return path


def test_a_fit_is_kept_and_taken_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = rows_file(tmp_path / "rows.jsonl.xz", "NVIDIA H200")
    first = planner_model(H200, tmp_path / "fits", [path])
    assert isinstance(first, Learned)

    def never(*_: object, **__: object) -> Heads:
        raise AssertionError("fitted again")

    monkeypatch.setattr(shipping, "fit_heads", never)
    shipping._fitted.cache_clear()
    again = planner_model(H200, tmp_path / "fits", [path])
    asked: list[Question] = [(made_up_work(random.Random(1)), "inductor", "default")]
    assert again.predict(asked) == first.predict(asked)
    assert planner_model(H200, None, []).__class__ is Roofline


def test_a_damaged_fit_is_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = rows_file(tmp_path / "rows.jsonl.xz", "NVIDIA H200")
    planner_model(H200, tmp_path / "fits", [path])
    (kept,) = (tmp_path / "fits").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:1000])
    with caplog.at_level(logging.WARNING, "fuseplan"):
        assert isinstance(planner_model(H200, tmp_path / "fits", [path]), Learned)
    assert "left aside" in caplog.text
    assert kept.read_bytes() == whole


def test_what_was_fitted_here_comes_before_what_ships(tmp_path: Path) -> None:
    path = rows_file(tmp_path / "rows.jsonl.xz", "NVIDIA H200")
    shipping.keep(made_up_heads(), own_fit(tmp_path, H200))
    asked = questions_of(unseen(12))
    assert planner_model(H200, tmp_path, [path]).predict(asked) == Learned(made_up_heads()).predict(asked)


def test_rows_of_the_same_product_are_preferred_and_of_another_type_of_device_refused(tmp_path: Path) -> None:
    a100, h200 = (rows_file(tmp_path / f"{name}.jsonl", f"NVIDIA {name}") for name in ("A100", "H200"))
    assert rows_for(H200, [a100, h200]) == h200
    assert rows_for(Machine.guess("NVIDIA B200"), [a100, h200]) == a100
    assert rows_for(Machine.guess("AMD EPYC"), [a100, h200]) is None


def test_threads_that_ask_at_once_read_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where several devices are tuned for: Python 3.11 may raise a SystemError where two threads parse at once."""
    inside, most = list[int](), list[int]()

    def read(path: Path, folder: Path | None = None) -> None:
        inside.append(1)
        most.append(len(inside))
        sleep(0.05)
        inside.pop()

    monkeypatch.setattr(shipping, "shipped_heads", read)
    asking = [Thread(target=shipping.planner_model, args=(Machine.guess("NVIDIA H200"), tmp_path)) for _ in range(4)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert most == [1, 1, 1, 1]
