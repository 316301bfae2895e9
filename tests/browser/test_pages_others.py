"""Comparing, the model, runs and look-ups in a browser: every number again by SQL of the tests' own, empty states, a live run."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from browsing import Server, serving, shown, sql
from fuseplan.tuning_db import Run, clock
from stored import HERE, RELU, measurement, store_at
from tuned_samples import add_program, key_of


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, tuned_database: Path) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("sample")
    shutil.copy(tuned_database, folder)
    store = store_at(folder / "other.db")
    add_program(store, 1, "GPT-2, graph 0", gain=1.1, seed=5)
    add_program(store, 4, "<b>only there</b>", gain=2.0, seed=5)
    store.close()
    return folder / "tuning.db", folder / "other.db"


@pytest.fixture(scope="module")
def server(files: tuple[Path, Path]) -> Iterator[Server]:
    with serving(*files) as started:
        yield started
    assert started.errors == [""]


WALLS = "SELECT program.key, wall_us, noise_us, plan.json FROM plan JOIN program ON program.id = program_id JOIN environment ON environment.id = environment_id WHERE torch = ?"  # fmt: skip


def compared(before: list[tuple[Any, ...]], after: list[tuple[Any, ...]]) -> dict[str, float]:
    """By hand: how many times as fast each program is that stands on both sides."""
    there = {key: wall for key, wall, *_ in after}
    return {key: wall / there[key] for key, wall, *_ in before if key in there}


def test_two_environments(server: Server, files: tuple[Path, Path], open_page: Callable[..., Any]) -> None:
    opened = open_page(f"{server.url}/compare")
    page = opened.page
    opened.drawn()
    before, after = (sql(files[0], WALLS, torch) for torch in ("2.11.0", "2.12.0"))
    ratios = compared(before, after)
    assert len(ratios) == 3
    assert sorted(shown(page, ".compared td.speedup")) == pytest.approx(sorted(ratios.values()))
    assert shown(page, ".lead .big") == [pytest.approx(math.exp(sum(map(math.log, ratios.values())) / 3))]
    assert page.locator("[data-verdict=faster]").inner_text() == str(sum(ratio > 1.03 for ratio in ratios.values()))
    assert page.locator("[data-verdict=slower]").inner_text() == str(sum(ratio < 1 / 1.03 for ratio in ratios.values()))
    plans = [{key: plan for key, _, _, plan in side} for side in (before, after)]
    changed = sum(plans[0][key] != plans[1][key] for key in ratios)
    assert page.locator("[data-verdict=changed]").inner_text() == str(changed)
    assert opened.axe() == []


def test_swapped_it_is_the_other_way_round(server: Server, open_page: Callable[..., Any]) -> None:
    page = open_page(f"{server.url}/compare").page
    before = sorted(shown(page, ".compared td.speedup"))
    page.get_by_role("link", name="Swap").press("Enter")
    page.wait_for_url("**a=*")
    assert sorted(1 / ratio for ratio in shown(page, ".compared td.speedup")) == pytest.approx(before)


def test_sides_are_chosen_by_keyboard_and_stay(server: Server, open_page: Callable[..., Any]) -> None:
    page = open_page(f"{server.url}/compare").page
    first = page.get_by_label("A, before")
    text = first.locator("option").nth(1).inner_text()
    first.select_option(index=1)
    first.press("Tab")
    page.get_by_role("button", name="Compare").press("Enter")
    page.wait_for_url("**a=*")
    page.reload()
    assert page.get_by_label("A, before").locator("option:checked").inner_text() == text


def test_two_databases(server: Server, files: tuple[Path, Path], open_page: Callable[..., Any]) -> None:
    page = open_page(f"{server.url}/compare?kind=databases").page
    ours = "SELECT program.key || torch, wall_us FROM plan JOIN program ON program.id = program_id JOIN environment ON environment.id = environment_id"  # fmt: skip
    ratios = compared(sql(files[0], ours), sql(files[1], ours))
    assert len(ratios) == 1
    assert shown(page, ".compared td.speedup") == [pytest.approx(next(iter(ratios.values())))]
    assert "<b>only there</b>" in page.locator(".compared").inner_text()
    assert "only in B" in page.locator(".compared").inner_text()


def test_two_runs(server: Server, files: tuple[Path, Path], open_page: Callable[..., Any]) -> None:
    one, other = (f"{seed:08x}{1:024x}" for seed in (1, 2))
    page = open_page(f"{server.url}/compare?kind=runs&a={one}&b={other}").page
    timed = "SELECT name, wall_us FROM default_timing JOIN run ON run.id = run_id WHERE run.key = ? UNION SELECT 'plan', wall_us FROM plan JOIN run ON run.id = run_id WHERE run.key = ?"  # fmt: skip
    ratios = compared(*(sql(files[0], timed, key, key) for key in (one, other)))
    assert len(ratios) == 4
    assert sorted(shown(page, ".compared td.speedup")) == pytest.approx(sorted(ratios.values()))


def test_what_is_compared_can_be_downloaded(server: Server) -> None:
    rows = httpx.get(f"{server.url}/compare.json").json()
    names = [column["id"] for column in rows["columns"]]
    assert len(rows["rows"]) == 3
    told = list(csv.reader(io.StringIO(httpx.get(f"{server.url}/compare.csv").text)))
    assert told[0] == names
    place = names.index("ratio")
    assert [float(row[place]) for row in told[1:]] == [row[place] for row in rows["rows"]]


@pytest.mark.parametrize("query", ["a=nothing&b=nothing", "kind=files", "kind=runs&a=../..&b=1", "kind=databases&a=/etc/passwd&b=tuning.db"])  # fmt: skip
def test_sides_that_there_are_not(server: Server, query: str) -> None:
    answer = httpx.get(f"{server.url}/compare?{query}")
    assert answer.status_code in (400, 404)
    assert "passwd" not in answer.text


def test_the_model(server: Server, files: tuple[Path, Path], open_page: Callable[..., Any]) -> None:
    opened = open_page(f"{server.url}/model")
    page = opened.page
    opened.drawn()
    pairs = sql(files[0], "SELECT executor, device_us, predicted_us, spread FROM measurement WHERE status = 'ok' AND predicted_us > 0 AND device_us > 0")  # fmt: skip
    for executor in ("all", "aten", "inductor", "nvfuser"):
        own = [row for row in pairs if executor in ("all", row[0])]
        line = page.locator(f"[data-executor={executor}]")
        assert shown(page, f"[data-executor={executor}] td") == [
            pytest.approx(median(abs(p / d - 1) for _, d, p, _ in own))
        ]
        assert line.locator("td").first.inner_text() == str(len(own))
        within = sum(abs(math.log(d / p)) <= 1.6449 * spread for _, d, p, spread in own) / len(own)
        assert f"{within * 100:.1f} %" in line.inner_text()
    ((failed,),) = sql(files[0], "SELECT count(*) FROM measurement WHERE status <> 'ok' AND executor = 'nvfuser'")
    assert page.locator("[data-executor=nvfuser] td").last.inner_text() == str(failed)
    plans = sql(files[0], "SELECT json_extract(r.value, '$.predicted_us'), json_extract(r.value, '$.wall_us') FROM plan, json_each(evidence, '$.raced') AS r")  # fmt: skip
    off = median(abs(predicted / wall - 1) for predicted, wall in plans if predicted and wall)
    assert any(value == pytest.approx(off) for value in shown(page, ".card .big"))
    ((audited,),) = sql(files[0], "SELECT sum(audited * audit_within) / sum(audited) FROM run")
    assert any(value == pytest.approx(audited) for value in shown(page, ".card .big"))
    assert page.locator(".plot[data-drawn=yes]").count() == 4
    assert opened.axe() == []


def test_the_filters_reach_the_model(server: Server, files: tuple[Path, Path]) -> None:
    text = httpx.get(f"{server.url}/model?torch=2.12.0").text
    ((number,),) = sql(files[0], "SELECT count(*) FROM measurement JOIN environment ON environment.id = environment_id WHERE torch = '2.12.0' AND status = 'ok'")  # fmt: skip
    assert f"median of {number};" in text


def test_runs(server: Server, files: tuple[Path, Path], open_page: Callable[..., Any]) -> None:
    opened = open_page(f"{server.url}/run")
    page = opened.page
    counts = sql(files[0], "SELECT (SELECT count(*) FROM measurement WHERE run_id = run.id) FROM run")
    assert sorted(shown(page, ".runs td")) == sorted(float(count) for (count,) in counts)
    assert page.locator(".runs tbody tr").first.locator(".badge").inner_text() == "running"
    assert "silent for" in page.locator(".runs tbody tr").first.inner_text()
    assert opened.axe() == []
    page.get_by_role("link", name="BERT, graph 0").first.press("Enter")
    opened.drawn()
    assert "finished" in page.locator(".lead").inner_text()
    assert opened.axe() == []


def test_runs_of_several_machines_are_told_apart(
    tmp_path: Path, served: Callable[..., Any], open_page: Callable[..., Any]
) -> None:
    store = store_at(tmp_path / "tuning.db")
    for number, (host, state) in enumerate((("node-b", "finished"), ("node-a", "running"), ("node-b", "interrupted"), ("<b>c</b>", "finished"))):  # fmt: skip
        now = clock.now()
        store.add_run(
            Run(
                key_of(number),
                HERE,
                "quick",
                state=state,
                host=host,
                started_at=now,
                changed_at=now,
                key=f"{number}" * 32,
            )
        )
    store.close()
    opened = open_page(f"{served(tmp_path / 'tuning.db').url}/run")
    rows = [row.locator("th, td").all_inner_texts()[:6] for row in opened.page.locator(".machines tbody tr").all()]
    assert rows == [
        ["node-a", "NVIDIA H200", "1", "0", "0", "0"],
        ["<b>c</b>", "NVIDIA H200", "0", "1", "0", "0"],
        ["node-b", "NVIDIA H200", "0", "1", "1", "0"],
    ]
    assert opened.axe() == []


def test_a_run_that_writes_now_is_followed(tmp_path: Path, served: Callable[..., Any], open_page: Callable[..., Any]) -> None:  # fmt: skip
    path = tmp_path / "tuning.db"
    store = store_at(path)
    now = clock.now()
    run = Run(key_of(1), HERE, "quick", started_at=now, changed_at=now, key="7" * 32)
    store.add_run(run)
    opened = open_page(f"{served(path).url}/run?key={run.key}")
    page = opened.page
    expect(page.locator(".pulse")).to_be_visible()
    assert "captures the program" in page.locator("main").inner_text()
    for number in range(3):
        store.add_measurement(RELU, measurement(executor=("aten", "inductor", "nvfuser")[number], device_us=30.0 / (number + 1), run=run.key, measured_at=clock.now()))  # fmt: skip
    expect(page.locator(".card .big[data-value='3']")).to_be_visible()
    assert "3.00×" in page.locator(".cards").inner_text(), "30 µs in ATen, 10 under the fastest"
    store.add_run(replace(run, state="finished", changed_at=clock.now()))
    expect(page.locator(".lead .badge")).to_have_text("finished")
    opened.requested.clear()
    page.wait_for_timeout(2500)
    assert opened.requested == [], "a run that is over is not asked for again"
    store.close()


def test_lookups(server: Server, files: tuple[Path, Path], open_page: Callable[..., Any]) -> None:
    opened = open_page(f"{server.url}/lookups")
    page = opened.page
    opened.drawn()
    counts = dict(sql(files[0], "SELECT event, sum(count) FROM counter GROUP BY event"))
    misses = {event: number for event, number in counts.items() if event.startswith("plan misses")}
    assert page.locator("[data-event='plan hits']").inner_text() == str(counts["plan hits"])
    assert page.locator("[data-event='plan misses']").inner_text() == str(sum(misses.values()))
    assert page.locator("[data-event=fallbacks]").inner_text() == str(counts["regions fallen back"])
    assert shown(page, ".misses td") == sorted(map(float, misses.values()), reverse=True)
    found = counts["plan hits"] + counts["plan stale hits"]
    assert shown(page, ".lead .big") == [pytest.approx(found / (found + sum(misses.values())))]
    assert "fuseplan tune" in page.locator(".misses").inner_text()
    assert opened.axe() == []


@pytest.mark.parametrize("name", ["compare", "compare?kind=databases", "compare?kind=runs", "model", "run", "lookups"])
def test_an_empty_database_says_what_to_do(empty: Server, open_page: Callable[..., Any], name: str) -> None:
    page = open_page(f"{empty.url}/{name}").page
    notice = page.locator("main .notice").first.inner_text()
    assert "fuseplan" in notice
    assert page.locator(".plot, table").count() == 0


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("empty") / "tuning.db"
    store = store_at(path)
    store.add_program(key_of(1))
    store.close()
    with serving(path) as started:
        yield started


def test_the_exported_file_has_these_pages(files: tuple[Path, Path], tmp_path: Path, open_page: Callable[..., Any]) -> None:  # fmt: skip
    from fuseplan.tuning_db.dashboard.serve import dashboard

    path = tmp_path / "report.html"
    dashboard(files[0], export=path)
    opened = open_page(path.as_uri())
    page = opened.page
    for fragment, selector in (
        (f"program-{key_of(1)}", ".gain .big"), ("compare", ".compared"), ("model", ".errors"), ("run", ".runs"), ("lookups", ".misses"),
    ):  # fmt: skip
        page.goto(f"{path.as_uri()}#{fragment}")
        expect(page.locator(f"section.view:not([hidden]) {selector}").first).to_be_visible()
        opened.drawn()
    page.goto(f"{path.as_uri()}#program-{key_of(1)}")
    newest = sql(files[0], "SELECT best_default_us / wall_us FROM plan JOIN program ON program.id = program_id WHERE program.key = ? ORDER BY plan.changed_at DESC", key_of(1))  # fmt: skip
    assert shown(page, "section.view:not([hidden]) .gain .big") == [pytest.approx(newest[0][0])]
    assert all(url.startswith(("file:", "data:")) for url in opened.requested)
    assert str(files[0].parent) not in path.read_text()
    blocks = page.locator("script[type='application/json']").evaluate_all("all => all.map(one => one.textContent)")
    assert all(json.loads(block) is not None for block in blocks)
