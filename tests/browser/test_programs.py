"""The table of programs in a browser: ten thousand rows, sorted, searched, walked through by keyboard, and downloaded."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from browsing import Server, serving
from dashboards import extremes, many


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = many(tmp_path_factory.mktemp("large") / "tuning.db")
    with serving(path) as started:
        yield started


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = extremes(tmp_path_factory.mktemp("odd") / "tuning.db")
    with serving(path) as started:
        yield started


def ready(opened: Any) -> Any:
    expect(opened.page.locator("[data-table]")).to_have_attribute("data-ready", "yes")
    return opened.page


def shown(page: Any, column: str) -> list[str]:
    """The cells of one column that are in the page, from above."""
    place = page.locator("th[data-column]").evaluate_all(
        "(all, name) => all.findIndex(one => one.dataset.column === name)", column
    )
    cells: list[str] = page.locator("tr[data-place]").evaluate_all(
        "(rows, place) => rows.map(row => row.cells[place].innerText)", place
    )
    return [cell.strip() for cell in cells]


def test_ten_thousand_rows(large: Server, open_page: Callable[..., Any]) -> None:
    opened = open_page(f"{large.url}/programs")
    page = ready(opened)
    assert page.locator("[data-count]").inner_text() == "10,000 of 10,000"
    box = page.locator("[data-table]")
    everything = httpx.get(f"{large.url}/programs.json").json()["rows"]
    for share in (0.37, 1.0, 0.0):
        box.evaluate("(box, share) => { box.scrollTop = share * box.scrollHeight; }", share)
        expect(page.locator(f"tr[data-place='{int(share * 9999)}']")).to_have_count(1)
        rows = page.locator("tr[data-place]")
        assert rows.count() < 100, "only rows in sight are made: that is why it does not stutter"
        first = int(rows.first.get_attribute("data-place"))
        assert rows.first.locator("th").inner_text() == everything[first][0]
    for name, place in (("plan_us", 5), ("program", 0)):
        page.locator(f"[data-sort-by={name}]").click()
        asked = httpx.get(f"{large.url}/programs.json?sort={name}").json()["rows"]
        expect(page.locator(f"th[data-column={name}]")).to_have_attribute(
            "aria-sort", "descending" if name == "plan_us" else "ascending"
        )
        assert page.locator("tr[data-place] th").all_inner_texts()[:20] == [row[0] for row in asked[:20]], name
        assert asked[0][place] is not None
        assert name in page.url
    page.get_by_role("searchbox").fill("model 7, cudagraph")
    matches = [row for row in everything if "7," in row[0] and row[14] == "cudagraph"]
    expect(page.locator("[data-count]")).to_have_text(f"{len(matches)} of 10,000")
    assert opened.axe() == []


def test_numbers_sort_as_numbers_and_nothing_is_last(odd: Server, open_page: Callable[..., Any]) -> None:
    page = ready(open_page(f"{odd.url}/programs?sort=plan_us&order=up"))
    expected = {"up": "asc", "down": "desc"}
    for order in expected:
        asked = httpx.get(f"{odd.url}/programs.json?sort=plan_us&order={order}").json()["rows"]
        assert page.locator("tr[data-place] th").all_inner_texts() == [row[0] for row in asked]
        assert shown(page, "plan_us")[-2:] == ["–", "–"]
        times = [row[5] for row in asked if row[5] is not None]
        assert times == sorted(times, reverse=order == "down")
        page.locator("[data-sort-by=plan_us]").click()
    page.locator("[data-sort-by=program]").click()
    names = page.locator("tr[data-place] th").all_inner_texts()
    assert names.index("numbers 2") < names.index("numbers 10")


def test_the_script_writes_what_the_server_writes(odd: Server, large: Server, open_page: Callable[..., Any]) -> None:
    for server in (odd, large):
        plain = open_page(f"{server.url}/programs", java_script_enabled=False).page
        scripted = ready(open_page(f"{server.url}/programs"))
        read = "rows => rows.slice(0, 30).map(row => [...row.cells].map(cell => cell.textContent.trim()))"
        assert scripted.locator("tr[data-place]").evaluate_all(read) == plain.locator("tbody tr").evaluate_all(read)
        bars = "rects => rects.slice(0, 60).map(rect => [rect.getAttribute('class'), Number(rect.getAttribute('x')), Number(rect.getAttribute('width'))])"
        drawn, served = (page.locator("tbody .bar rect").evaluate_all(bars) for page in (scripted, plain))
        assert [one[0] for one in drawn] == [one[0] for one in served]
        assert [one[1:] for one in drawn] == [pytest.approx(one[1:], abs=0.02) for one in served]


def test_sorting_and_searching_without_scripts(large: Server, open_page: Callable[..., Any]) -> None:
    page = open_page(f"{large.url}/programs", java_script_enabled=False).page
    page.locator("a", has_text="Calls").click()
    assert "sort=calls" in page.url
    asked = httpx.get(f"{large.url}/programs.json?sort=calls").json()["rows"]
    assert page.locator("tbody th").all_inner_texts()[:5] == [row[0] for row in asked[:5]]
    page.get_by_role("link", name="More rows").click()
    assert page.locator("tbody th").all_inner_texts()[:5] == [row[0] for row in asked[100:105]]
    page.get_by_role("searchbox").fill("graph model 12,")
    page.get_by_role("button", name="Search").click()
    expect(page).to_have_url(re.compile("model.*12"))
    assert "sort=calls" in page.url, "the search keeps the order"
    expect(page.locator("tbody th")).to_have_count(100)
    names = page.locator("tbody th").all_inner_texts()
    assert all("model 12," in name for name in names)


def test_what_is_downloaded_is_what_is_shown(odd: Server, open_page: Callable[..., Any]) -> None:
    page = ready(open_page(f"{odd.url}/programs"))
    page.get_by_role("searchbox").fill("tuned")
    page.locator("[data-sort-by=program]").click()
    expect(page.locator("[data-count]")).to_have_text("7 of 10")
    names = page.locator("tr[data-place] th").all_inner_texts()
    files = {}
    for ending in ("csv", "json"):
        with page.expect_download() as started:
            page.locator(f"[data-download={ending}]").click()
        assert started.value.suggested_filename == f"programs.{ending}"
        files[ending] = Path(started.value.path()).read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(files["csv"])))
    data = json.loads(files["json"])
    assert [row["program"] for row in rows] == names == [row[0] for row in data["rows"]]
    place = [column["id"] for column in data["columns"]].index("plan_us")
    assert [float(row["plan_us"]) if row["plan_us"] else None for row in rows] == [row[place] for row in data["rows"]]


def test_the_order_survives_reload_and_back(large: Server, open_page: Callable[..., Any]) -> None:
    page = ready(open_page(f"{large.url}/programs?launch=plain"))
    page.get_by_role("searchbox").fill("model 5")
    page.locator("[data-sort-by=calls]").click()
    first = page.locator("tr[data-place] th").first.inner_text()
    page.locator("[data-sort-by=calls]").click()
    last = page.locator("tr[data-place] th").first.inner_text()
    assert last != first
    page.reload()
    expect(page.locator("[data-table]")).to_have_attribute("data-ready", "yes")
    assert page.locator("tr[data-place] th").first.inner_text() == last
    assert page.get_by_role("searchbox").input_value() == "model 5"
    page.go_back()
    expect(page.locator("tr[data-place] th").first).to_have_text(first)
    assert page.get_by_role("searchbox").input_value() == "model 5"
    assert page.get_by_label("Launch").input_value() == "plain"


def test_the_keyboard_alone(large: Server, open_page: Callable[..., Any]) -> None:
    page = ready(open_page(f"{large.url}/programs"))
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.outerHTML.slice(0, 300)"))
    whole = "\n".join(reached)
    for wanted in ('class="skip"', 'href="/"', 'name="gpu"', 'name="model"', 'name="since"', 'name="q"', 'data-download="csv"',
                   'data-sort-by="program"', 'data-sort-by="key"', "data-table", "/program?key="):  # fmt: skip
        assert wanted in whole, wanted
    page.locator("[data-sort-by=plan_us]").focus()
    page.keyboard.press("Enter")
    expect(page.locator("th[data-column=plan_us]")).to_have_attribute("aria-sort", "descending")
    asked = [row[0] for row in httpx.get(f"{large.url}/programs.json?sort=plan_us").json()["rows"]]
    page.locator("[data-table]").focus()
    for pressed, place in (
        ("ArrowDown", 0),
        ("ArrowDown", 1),
        ("End", 9999),
        ("ArrowUp", 9998),
        ("Home", 0),
        ("ArrowUp", 0),
    ):
        page.keyboard.press(pressed)
        expect(page.locator(f"tr.active[data-place='{place}']")).to_have_count(1)
        assert page.evaluate("document.activeElement.textContent") == asked[place]
        assert page.evaluate(
            "document.activeElement.getBoundingClientRect().top > document.querySelector('thead').getBoundingClientRect().top"
        )
    page.keyboard.press("PageDown")
    assert int(page.locator("tr.active").get_attribute("data-place")) > 5
