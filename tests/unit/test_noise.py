"""The one rule for what is faster: what it says, that all who judge times ask it, and that they agree."""

from __future__ import annotations

import ast
import math
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.project import ROOT
from fuseplan.diff import diff
from fuseplan.measure.race import ReplayClock, Sample, race
from fuseplan.noise import RaceTime, band, bounds, compared, far_behind, faster, judged, noise_between, slower
from fuseplan.plan import Plan
from fuseplan.tuning_db import Run, Store
from fuseplan.tuning_db.dashboard.ask import parse
from fuseplan.tuning_db.dashboard.pages.compare import PAGE, ComparePage
from fuseplan.tuning_db.dashboard.reader import readers
from stored import HERE, INDUCTOR, plan, store_at

times = st.floats(0.01, 1e7)
noises = st.floats(0.0, 2.0)


def test_an_interval_holds_the_median_as_often_as_it_says() -> None:
    dice = random.Random(5)
    held = 0
    for _ in range(400):
        low, high = bounds([dice.lognormvariate(0, 0.3) for _ in range(21)])
        held += low <= 1.0 <= high
    assert 0.93 <= held / 400 <= 0.995


@pytest.mark.parametrize(
    ("number", "sure"),
    [(5, (-math.inf, math.inf)), (6, (0.0, 5.0)), (8, (0.0, 7.0)), (9, (1.0, 7.0)), (21, (5.0, 15.0))],
)
def test_an_interval_by_the_tables_of_the_sign_test(number: int, sure: tuple[float, float]) -> None:
    assert bounds([float(value) for value in range(number)]) == sure


@given(times, times, noises)
def test_of_two_times_one_is_faster_where_the_other_is_slower(one: float, two: float, noise: float) -> None:
    assert faster(one, two, noise) == slower(two, one, noise)
    assert not (faster(one, two, noise) and slower(one, two, noise))
    turned = {"faster": "slower", "slower": "faster", "same": "same"}
    assert compared(one, two, noise) == turned[compared(two, one, noise)]
    assert compared(one, one, noise) == "same"


@given(times, times, noises, noises)
def test_more_noise_never_decides_more(one: float, two: float, less: float, more: float) -> None:
    less, more = sorted((less, more))
    assert compared(one, two, more) in ("same", compared(one, two, less))
    assert not far_behind(one, two, more) or far_behind(one, two, less)
    assert not far_behind(one, two, less) or slower(one, two, less)


@given(times, noises)
def test_the_band_that_is_drawn_is_the_one_that_is_judged_by(us: float, noise: float) -> None:
    low, high = band(noise)
    assert compared(us * low * 0.999, us, noise) == "faster"
    assert compared(us * low * 1.001, us, noise) == "same" or noise < 0.002
    assert compared(us * high * 1.001, us, noise) == "slower"


@given(st.lists(st.floats(0.5, 2.0), min_size=7, max_size=25))
def test_a_race_is_won_by_what_it_judges_faster(ratios: list[float]) -> None:
    samples = {"default": [Sample(100.0, 1.0, 100.0)], "new": [Sample(100 * one, 1.0, 100 * one) for one in ratios]}
    result = race(["default", "new"], ReplayClock(samples), incumbent="default")
    assert (result.winner == "new") == (result.compared("new", "default") == "faster")
    assert result.compared("new", "default") == judged(result.differences("new", "default"), math.log1p(result.noise))


@given(times, times, noises, noises)
def test_two_races_differ_by_more_than_one(one: float, two: float, first: float, second: float) -> None:
    together = noise_between(RaceTime(one, first, "race"), RaceTime(two, second, "race"))
    assert together <= noise_between(RaceTime(one, first, "race"), RaceTime(two, second, "another"))
    assert together == noise_between(RaceTime(two, second, "race"), RaceTime(one, first, "race"))


def test_diff_and_the_compare_page_agree(tmp_path: Path) -> None:
    """On programs with random times, noises, standings and runs, in two databases."""
    paths = tmp_path / "before.db", tmp_path / "after.db"
    for seed, path in enumerate(paths):
        store = store_at(path)
        _fill(store, random.Random(f"times {seed}"), random.Random("runs"))
        store.close()
    shown = {one.pair.key.program: one.pair.verdict for one in _page(paths, "kind=databases").lines}
    told = {pair.key.program: pair.verdict for pair in diff(*paths, db=paths[0]).pairs}
    assert told == shown
    assert {"faster", "slower", "same", "unknown"} <= set(told.values())


def _fill(store: Store, dice: random.Random, runs: random.Random) -> None:
    for number in range(80):
        run = Run(None, HERE, key=f"{runs.randrange(2**128):032x}") if runs.random() < 0.5 else None
        if run is not None:
            store.add_run(run)
        us = round(100 * dice.choice((1.0, 1.01, 1.04, 1.2)) * dice.uniform(0.99, 1.01), 3)
        store.add_plan(
            plan(
                program=f"{number:064x}", plan=dice.choice((INDUCTOR, Plan.named("aten"))),
                status=dice.choices(("tuned", "default", "unverified"), (6, 3, 1))[0], word=dice.choice((None, None, "pinned")),
                wall_us=us, noise_us=dice.choice((None, round(us * dice.expovariate(100), 3))), run=run and run.key,
                best_default="inductor", best_default_us=120.0,
            )
        )  # fmt: skip


def _page(paths: tuple[Path, ...], query: str) -> ComparePage:
    reader = next(iter(readers(paths).values()))
    page = PAGE.load(reader, parse(query, PAGE.params))
    assert isinstance(page, ComparePage)
    return page


_NOISY = re.compile("noise|band|across|drift", re.IGNORECASE)


def _by_hand(source: str) -> list[int]:
    """The lines on which one plus a noise is reckoned: what `noise.py` alone does."""
    nodes = ast.walk(ast.parse(source)) if _NOISY.search(source) else ()
    sums = [node for node in nodes if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)]
    ends = [(node.lineno, *pair) for node in sums for pair in ((node.left, node.right), (node.right, node.left))]
    return [
        line for line, one, noise in ends
        if isinstance(one, ast.Constant) and one.value == 1
        and not isinstance(noise, ast.Call) and _NOISY.search(ast.unparse(noise))
    ]  # fmt: skip


def test_nobody_else_judges_by_hand() -> None:
    folders = ("planner", "tuning_db", "benchmarks", "models", "scripts")
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    found = {str(path.relative_to(ROOT)): _by_hand(path.read_text(encoding="utf-8")) for path in files}
    found["benchmarks/planning.py"] = []  # invents costs, of which some are called noise
    assert {name for name, lines in found.items() if lines} == {"planner/noise.py"}
    templates = sorted((ROOT / "tuning_db" / "dashboard").rglob("*.html")) + sorted((ROOT / "tuning_db").rglob("*.js"))
    assert not [path.name for path in templates if re.search(r"1 ?\+ ?[\w.]*(noise|band|across)", path.read_text())]


@pytest.mark.parametrize("text", ["us * (1 + noise) < best", "ratio > 1.0 + self.band", "us > (one.noise + 1) * least"])
def test_what_is_judged_by_hand_is_found(text: str) -> None:
    assert _by_hand(text) == [1]
