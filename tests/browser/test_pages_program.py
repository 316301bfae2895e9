"""The page of a program in a browser: its numbers are SQL's, its drawings are there, and nothing in it can run."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from browsing import Server, serving, shown, sql
from fuseplan.judge.output import JudgedOutput
from fuseplan.segment.moves import Move
from fuseplan.tuning_db import Drift, Evidence, Raced, RegionEvidence, StoredPlan
from fuseplan.tuning_db.evidence import MissedEvidence, SiteEvidence, WayEvidence
from fuseplan.tuning_db.profile_evidence import GapEvidence, ProfileEvidence
from stored import HERE, INDUCTOR, store_at
from tuned_samples import add_program, key_of

HOSTILE = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1> \u05d0\u05d1\u05d2 🙂 " + "x" * 280


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, tuned_database: Path) -> Path:
    path = Path(shutil.copy(tuned_database, tmp_path_factory.mktemp("sample")))
    store = store_at(path)
    add_program(store, 7, "Huge", layers=170, gain=1.3)
    raced = (
        Raced(HOSTILE[:390], True, wall_us=20.0, walls=(20.0, 21.0)),
        Raced("{{ 7 * 7 }}", wall_us=10.0, walls=(10.0,)),
        Raced(
            "gone",
            status="wrong",
            detail=HOSTILE[:390],
            how=HOSTILE[:390],
            outputs=(JudgedOutput(HOSTILE[:390], HOSTILE[:390], 1e308, 0.0, 0.0),),
        ),
    )
    regions = (RegionEvidence("inference", 0, HOSTILE[:64], "a<b>c", HOSTILE[:64], device_us=1e13, model="m"),)
    ways = (
        WayEvidence("as-is", 20.0), WayEvidence("auto+causal", 10.0), WayEvidence("math"),
        WayEvidence("flash", refused=HOSTILE[:390]), WayEvidence("cudnn", refused=HOSTILE[:390]),
    )  # fmt: skip
    sites = (
        SiteEvidence("attention", (0, 1, 2), HOSTILE[:390], "auto+causal", ways),
        SiteEvidence("{{ 7 * 7 }}", (4,)),
    )
    missed = (MissedEvidence("written-attention", HOSTILE[:390], 3, "softmax_1"),)
    gaps = (
        GapEvidence("backward", HOSTILE[:390], (HOSTILE[:390],), 12, 500.0, 200.0, "memory"),
        GapEvidence("forward", "mm", ("extern_kernels.mm",), 1, 300.0, 300.5, "arithmetic"),
    )
    profile = ProfileEvidence("inductor", 1000.0, 200.0, (HOSTILE[:390],), gaps)
    odd = StoredPlan(
        key_of(8), HERE, INDUCTOR, status="tuned", wall_us=10.0, best_default=HOSTILE[:90], best_default_us=20.0,
        moves=(Move("note", role="forward", change_us=-1.0, words=HOSTILE), Move("run", region=1, executor=HOSTILE)) * 2, evidence=Evidence(raced, regions, sites=sites, missed=missed, profile=profile),
    )  # fmt: skip
    store.add_program(key_of(8), HOSTILE)
    store.add_plan(odd)
    for day, speedup in enumerate((1.5, 1.25, 1.0, 0.8)):
        store.add_drift(
            Drift(
                key_of(8), HERE, odd.key, 400 * day, 16, 100.0 / speedup, 100.0, speedup, 0.02,
                "faster" if speedup > 1.02 else "slower" if speedup < 0.98 else "same", int(speedup < 1), measured_at=f"2026-11-2{day}T12:00:00.000Z",
            )
        )  # fmt: skip
    store.add_program(key_of(9), None)
    store.add_plan(StoredPlan(key_of(9), HERE, INDUCTOR, status="unverified"))
    store.add_program(key_of(10), "only captured")
    store.close()
    return path


@pytest.fixture(scope="module")
def server(file: Path) -> Iterator[Server]:
    with serving(file) as started:
        yield started
    assert started.errors == [""]


PLAN = "SELECT {} FROM plan JOIN program ON program.id = program_id WHERE program.key = ? AND plan.changed_at LIKE ? || '%'"


def test_sites_are_shown_with_their_ways_and_what_was_refused(server: Server, open_page: Callable[..., Any]) -> None:
    opened = open_page(f"{server.url}/program?key={key_of(8)}")
    first, second = opened.page.locator("table.sites tbody tr").all()
    expect(first.locator("th")).to_contain_text("attention 0-2")
    expect(second.locator("th")).to_contain_text("{{ 7 * 7 }} 4")
    assert first.locator("td").all_inner_texts()[:2] == ["auto+causal", "auto+causal: 10.0 µs\nas-is: 20.0 µs"]
    expect(first.locator("summary")).to_have_text("1 not tried, 2 refused")
    first.locator("summary").click()
    expect(first.locator("details li").first).to_have_text("not tried: math")
    expect(first.locator("details li").nth(1)).to_contain_text("refused: flash, cudnn, since <script>")
    left = opened.page.get_by_text("no written-attention at softmax_1 and 2 others: <script>")
    expect(left).to_be_visible()
    assert opened.page.evaluate("window.hacked") is None


def test_what_is_left_of_the_time_is_shown_by_what_takes_it(server: Server, open_page: Callable[..., Any]) -> None:
    opened = open_page(f"{server.url}/program?key={key_of(8)}")
    expect(opened.page.get_by_role("heading", name="What is left of 1.00 ms on the device: 300.0 µs")).to_be_visible()
    first, second = opened.page.locator("table.gaps tbody tr").all()
    expect(first.locator("th")).to_contain_text("<script>")
    cells = first.locator("td").all_inner_texts()
    assert [cells[0], *cells[2:]] == ["500.0 µs", "200.0 µs", "300.0 µs 30.0 %", "memory", "backward", "×12"]
    assert second.locator("td").all_inner_texts()[3] == "0.0 µs 0.0 %"
    expect(opened.page.get_by_text("200.0 µs are in kernels of which nobody knows what they compute")).to_be_visible()
    assert opened.page.evaluate("window.hacked") is None


def test_how_fast_the_plan_was_in_production_is_shown_over_time(server: Server, open_page: Callable[..., Any]) -> None:
    opened = open_page(f"{server.url}/program?key={key_of(8)}")
    section = opened.page.get_by_role("region", name="In production").first
    expect(opened.page.get_by_role("heading", name="In production")).to_be_visible()
    opened.drawn()
    section.locator("summary").first.click()
    rows = section.locator("tbody tr").all_inner_texts()
    assert [row.split("\t")[:3] for row in rows] == [
        ["2026-11-23 12:00", "0.80×", "2.0 %"],
        ["2026-11-22 12:00", "1.00×", "2.0 %"],
        ["2026-11-21 12:00", "1.25×", "2.0 %"],
        ["2026-11-20 12:00", "1.50×", "2.0 %"],
    ]


def test_its_numbers_are_those_of_sql(server: Server, file: Path, open_page: Callable[..., Any]) -> None:
    opened = open_page(f"{server.url}/program?key={key_of(1)}&torch=2.11.0")
    page, of = opened.page, (key_of(1), "2026-11-20")
    opened.drawn()
    ((wall, best, key),) = sql(file, PLAN.format("wall_us, best_default_us, plan.key"), *of)
    assert shown(page, ".gain .big") == [pytest.approx(best / wall)]
    assert "1.42×" in page.locator(".gain").inner_text()
    defaults = sql(file, "SELECT wall_us FROM default_timing JOIN program ON program.id = program_id JOIN environment ON environment.id = environment_id WHERE program.key = ? AND torch = '2.11.0'", of[0])  # fmt: skip
    assert sorted(shown(page, ".bars td")) == sorted([wall, *(us for (us,) in defaults)])
    each = "json_each(plan.evidence, '$.{}') AS each"
    raced = sql(file, f"SELECT json_extract(each.value, '$.wall_us') FROM plan, {each.format('raced')} WHERE plan.key = ? ORDER BY 1", key)  # fmt: skip
    assert shown(page, ".lanes td") == [us for (us,) in raced if us is not None]
    regions = sql(file, f"SELECT DISTINCT json_extract(each.value, '$.device_us') FROM plan, {each.format('regions')} WHERE plan.key = ?", key)  # fmt: skip
    assert sorted(shown(page, ".regions td")) == sorted(us for (us,) in regions)
    text = page.locator(".lanes").inner_text()
    assert "output 0 differs from eager" in text
    assert "silent for 60 s" in text
    assert "lost by" in text
    assert text.count("off by 12.5 % of what is allowed") == 5
    wrong = page.locator(".lanes tr", has_text="cut 91e0").locator("details")
    assert wrong.locator("summary").inner_text() == "off by 1,550.0 % of what is allowed"
    wrong.locator("summary").click()
    told = wrong.inner_text()
    assert "output 0: off by 0.31 of 0.02 allowed, by largest; by rounding alone 0.01" in told
    assert "Judged beside a run in float64." in told
    assert page.locator(".moves tbody tr").first.inner_text().split()[:2] == ["−16.8", "µs"]


def test_both_cuts_are_drawn(server: Server, open_page: Callable[..., Any]) -> None:
    opened = open_page(f"{server.url}/program?key={key_of(1)}")
    drawings = opened.page.locator(".pictures img.drawing")
    assert drawings.count() == 2
    for drawing in drawings.all():
        drawing.evaluate("image => image.decode()")
        assert drawing.evaluate("image => image.naturalWidth") > 100
    assert [one.inner_text() for one in opened.page.locator(".pictures figcaption").all()] == ["inductor", "the plan"]


@pytest.mark.parametrize("options", [{"color_scheme": "light"}, {"color_scheme": "dark"}, {"viewport": {"width": 380, "height": 800}}], ids=["light", "dark", "phone"])  # fmt: skip
def test_everybody_can_use_it(server: Server, open_page: Callable[..., Any], options: dict[str, Any]) -> None:
    opened = open_page(f"{server.url}/program?key={key_of(1)}", **options)
    opened.drawn()
    assert opened.axe() == []
    wide = opened.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1], "only tables scroll sideways"


def test_by_keyboard_alone(server: Server, open_page: Callable[..., Any]) -> None:
    page = open_page(f"{server.url}/program?key={key_of(1)}").page
    reached: list[str] = []
    for _ in range(80):
        page.keyboard.press("Tab")
        where = page.evaluate(
            "(document.activeElement.innerText || document.activeElement.ariaLabel || '').trim().slice(0, 60)"
        )
        reached.append(where)
        if where == "The plan as JSON":
            page.keyboard.press("Enter")
            break
    assert any(text.startswith("Copy") for text in reached)
    assert any("better than" in text for text in reached), "what else was tried on a region is behind a summary"
    shown = page.locator("pre")
    expect(shown).to_be_visible()
    assert json.loads(shown.inner_text())["host"] == "aten"


def test_hostile_names_are_text(server: Server, open_page: Callable[..., Any]) -> None:
    opened = open_page(f"{server.url}/program?key={key_of(8)}")
    opened.drawn()
    assert HOSTILE[:60] in opened.page.locator("h1").inner_text()
    assert opened.page.evaluate("window.hacked") is None
    assert opened.page.locator("main script:not([type='application/json']), main img:not(.drawing)").count() == 0
    assert "{{ 7 * 7 }}" in opened.page.locator(".lanes").inner_text()
    assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("number", [9, 10])
def test_little_is_known(server: Server, open_page: Callable[..., Any], number: int) -> None:
    opened = open_page(f"{server.url}/program?key={key_of(number)}")
    assert "fuseplan tune" in opened.page.locator("main").inner_text()
    assert opened.axe() == []


def test_a_graph_of_a_thousand_ops(server: Server, open_page: Callable[..., Any]) -> None:
    opened = open_page(f"{server.url}/program?key={key_of(7)}")
    page = opened.page
    assert "1,020 ops" in page.locator("main").inner_text()
    assert page.locator(".regions tbody tr").count() < 10, "equal regions stand once"
    assert len(page.content()) < 2_000_000
    drawing = page.locator(".pictures img.drawing").last
    drawing.evaluate("image => image.decode()")
    assert drawing.evaluate("image => image.naturalHeight") < 6000, "equal layers are drawn once"


def test_only_what_is_in_the_database_is_answered(server: Server, file: Path) -> None:
    other = sql(file, "SELECT plan.key FROM plan JOIN program ON program.id = program_id WHERE program.key = ?", key_of(2))[0][0]  # fmt: skip
    for query, status in (
        (f"key={'f' * 64}", 404), ("key=1", 400), (f"key={key_of(1)}&plan={other}", 404), (f"key={key_of(1)}&plan={'e' * 32}", 404),
        (f"key={key_of(1)}&plan=../../etc", 400), ("", 404),
    ):  # fmt: skip
        answer = httpx.get(f"{server.url}/program?{query}")
        assert answer.status_code == status, query
        assert str(file.parent) not in answer.text
    assert str(file.parent) not in httpx.get(f"{server.url}/program?key={key_of(1)}").text


def test_every_plan_of_it_can_be_looked_at(server: Server, open_page: Callable[..., Any]) -> None:
    page = open_page(f"{server.url}/program?key={key_of(1)}").page
    before = page.locator(".gain .big").inner_text()
    page.locator("section", has_text="All plans of this program").get_by_role("link").last.click()
    expect(page.locator(".gain .big")).not_to_have_text(before)
    page.go_back()
    expect(page.locator(".gain .big")).to_have_text(before)


def test_a_plan_whose_evidence_is_damaged_is_shown_without(tmp_path: Path, served: Callable[..., Any], open_page: Callable[..., Any]) -> None:  # fmt: skip
    path = tmp_path / "tuning.db"
    store = store_at(path)
    sample = add_program(store, 1, "one")
    store.add_plan(replace(sample.plan, changed_at="2026-11-22T12:00:00.000Z"))
    store.close()
    connection = sqlite3.connect(path)
    connection.execute("""UPDATE plan SET evidence = '{"format":7}', json = 'nothing', moves = ''""")
    connection.execute("UPDATE graph SET json = '[' || json")
    connection.commit()
    connection.close()
    opened = open_page(f"{served(path).url}/program?key={key_of(1)}")
    text = opened.page.locator("main").inner_text()
    assert "cannot be read" in text
    assert "its row is damaged" in text


def test_a_default_that_won_is_drawn_once(server: Server, open_page: Callable[..., Any]) -> None:
    page = open_page(f"{server.url}/program?key={key_of(2)}&torch=2.11.0").page
    assert page.locator(".pictures img.drawing").count() == 1
    assert page.locator(".bars .plan th").inner_text() == "inductor, which runs"
    assert "the default runs" in page.locator(".gain").inner_text()
