"""Every page on every kind of database: nothing fails in the browser, and whoever cannot see or use a mouse is no worse off."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

import dashboards
from browsing import Server, serving
from fuseplan.tuning_db.dashboard.pages import PAGES
from stored import fill, store_at

NAMED = [page.path for page in PAGES if page.nav]


def empty(path: Path) -> Path:
    return dashboards.write(path)


def filled(path: Path) -> Path:
    fill(store_at(path))
    return path


def absent(path: Path) -> Path:
    return path


def no_database(path: Path) -> Path:
    path.write_text("this is a text\n" * 1000)
    return path


def of_something_else(path: Path) -> Path:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE plan (id INTEGER PRIMARY KEY)")
    connection.close()
    return path


def damaged(path: Path) -> Path:
    """A file of which every page but the first two is noise."""
    dashboards.mixed(path, 60)
    whole = path.read_bytes()
    noise = b"".join(sha256(bytes([number % 256])).digest() for number in range(len(whole) // 32))
    path.write_bytes(whole[:8192] + noise[8192 : len(whole)])
    return path


def cut_off(path: Path) -> Path:
    dashboards.mixed(path, 60)
    path.write_bytes(path.read_bytes()[:50_000])
    return path


def newer(path: Path) -> Path:
    dashboards.one_row(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE schema SET version = 99")
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    return path


LOW = {"width": 1280, "height": 200}
"""A window in which no chart is in sight, so that Plotly is not fetched: drawing takes longer than all the rest."""
SHOWN = (
    empty,
    filled,
    dashboards.one_row,
    dashboards.all_regressions,
    dashboards.extremes,
    dashboards.hostile,
    dashboards.mixed,
)
REFUSED = (absent, no_database, of_something_else, damaged, cut_off, newer)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """One server of all of them, and their folder: a server for each would take longer than all the rest."""
    folder = tmp_path_factory.mktemp("secret-folder")
    made = [make(folder / f"{make.__name__}.db") for make in (*SHOWN, *REFUSED)]
    before = _contents(folder)
    with serving(*made) as server:
        yield server, folder
    assert server.errors == [""]
    assert _contents(folder) == before, "a file was changed, or one was made beside it"


def _contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (sha256(path.read_bytes()).digest(), path.stat().st_mtime_ns) for path in folder.iterdir()}


def test_every_page_of_every_database(everything: tuple[Server, Path], open_page: Callable[..., Any]) -> None:
    server, _ = everything
    opened = open_page("about:blank", viewport=LOW)
    for make in SHOWN:
        for target in NAMED:
            opened.page.goto(f"{server.url}{target}?db={make.__name__}.db")
            expect(opened.page.locator("h1")).to_have_count(1)
            if make in (dashboards.extremes, dashboards.hostile):
                opened.drawn()
            if target == "/programs":
                expect(opened.page.locator("[data-table]")).to_have_attribute("data-ready", "yes")
            assert opened.page.evaluate("window.hurt") is None
            assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
                f"{target} is wider than the window"
            )
            assert opened.problems == [], (make.__name__, target)
    assert {url.split("/")[2] for url in opened.requested if url.startswith("http")} == {server.url.split("/")[2]}


def test_files_that_cannot_be_shown(everything: tuple[Server, Path], open_page: Callable[..., Any]) -> None:
    server, folder = everything
    opened = open_page("about:blank")
    for make in REFUSED:
        name = f"{make.__name__}.db"
        opened.page.goto(f"{server.url}/?db={name}")
        assert opened.page.locator(".notice").inner_text().startswith(f"{name}: "), name
        assert str(folder) not in opened.page.content()
        refused = httpx.get(f"{server.url}/programs.csv?db={name}")
        assert refused.status_code == 409
        assert folder.name not in refused.text
    assert opened.axe() == []
    opened.page.get_by_role("link", name="mixed.db").click()
    assert opened.page.locator(".cards").count() == 1, "the others are a click away"


@pytest.mark.parametrize("target", ["/", "/programs"])
def test_everyone_can_use_it(target: str, everything: tuple[Server, Path], open_page: Callable[..., Any]) -> None:
    opened = open_page(f"{everything[0].url}{target}?db=all_regressions.db", color_scheme="light")
    opened.drawn()
    assert opened.axe() == []
    opened.page.emulate_media(color_scheme="dark")
    opened.page.set_viewport_size({"width": 360, "height": 780})
    opened.drawn()
    assert opened.axe() == []
    assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it is wider than the screen"


def test_filters_survive_reload_and_back(everything: tuple[Server, Path], open_page: Callable[..., Any]) -> None:
    server, _ = everything
    page = open_page(f"{server.url}/?db=mixed.db", viewport=LOW).page
    whole = page.locator(".card .sub").first.inner_text()
    page.locator("select[name=launch]").select_option("cudagraph")
    expect(page).to_have_url(f"{server.url}/?db=mixed.db&launch=cudagraph")
    page.locator("select[name=model]").select_option("model 3")
    expect(page).to_have_url(f"{server.url}/?db=mixed.db&launch=cudagraph&model=model+3")
    narrowed = page.locator(".card .sub").first.inner_text()
    assert narrowed != whole
    page.reload()
    assert page.locator(".card .sub").first.inner_text() == narrowed
    page.get_by_role("link", name="Programs", exact=True).click()
    assert page.locator("select[name=model]").input_value() == "model 3", "the filters go along to other pages"
    expect(page.locator("[data-table]")).to_have_attribute("data-ready", "yes")
    assert set(page.locator("tr[data-place] td:nth-child(15)").all_inner_texts()) == {"cudagraph"}
    page.go_back()
    assert page.locator(".card .sub").first.inner_text() == narrowed
    page.go_back()
    assert page.locator("select[name=model]").input_value() == ""
    assert page.locator("select[name=launch]").input_value() == "cudagraph"
    page.go_back()
    expect(page.locator("select[name=launch]")).to_have_value("")
    assert page.locator(".card .sub").first.inner_text() == whole
    page.goto(f"{server.url}/?db=mixed.db&model=model+3&since=2026-11-02&until=2026-11-12")
    page.get_by_role("link", name="Clear").click()
    expect(page).to_have_url(f"{server.url}/?db=mixed.db")


def test_filters_without_scripts(everything: tuple[Server, Path], open_page: Callable[..., Any]) -> None:
    server, _ = everything
    page = open_page(f"{server.url}/programs?db=mixed.db&sort=calls", java_script_enabled=False).page
    page.locator("select[name=launch]").select_option("cudagraph")
    page.get_by_role("button", name="Apply").click()
    assert page.locator("select[name=launch]").input_value() == "cudagraph"
    assert page.locator("th[data-column=calls]").get_attribute("aria-sort") == "descending", "the order stays"


def test_the_keyboard_reaches_what_the_overview_has(
    everything: tuple[Server, Path], open_page: Callable[..., Any]
) -> None:
    page = open_page(f"{everything[0].url}/?db=filled.db", viewport=LOW).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    wanted = page.evaluate(
        "[...document.querySelectorAll('a[href], button:not([hidden]), select, input:not([type=hidden]), summary, [tabindex=\"0\"]')].length"
    )
    page.evaluate(
        "document.activeElement.blur(); window.reached = new Set(); addEventListener('focusin', event => reached.add(event.target))"
    )
    page.locator(".skip").focus()
    for _ in range(wanted + 20):
        page.keyboard.press("Tab")
    missed = page.evaluate(
        "[...document.querySelectorAll('a[href], button:not([hidden]), select, input:not([type=hidden]), summary, [tabindex=\"0\"]')]"
        ".filter(one => !reached.has(one) && one.checkVisibility()).map(one => one.outerHTML.slice(0, 120))"
    )
    assert missed == []


def test_light_and_dark_by_hand(everything: tuple[Server, Path], open_page: Callable[..., Any]) -> None:
    opened = open_page(f"{everything[0].url}/?db=one_row.db", color_scheme="light")
    page = opened.page
    opened.drawn()
    back = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(back)
    page.get_by_role("button", name="Show in dark colours").click()
    dark = page.evaluate(back)
    assert dark != light
    page.reload()
    assert page.evaluate(back) == dark
    page.get_by_role("button", name="Show in light colours").click()
    assert page.evaluate(back) == light


WRITER = """
import sys
sys.path[:0] = ["tests"]
from pathlib import Path
import dashboards as d
from fuseplan.tuning_db import Run, StoredPlan, DefaultTiming
from stored import HERE, INDUCTOR, store_at
store = store_at(Path(sys.argv[1]))
run = Run(None, HERE)
assert store.add_run(run)
for number in range(int(sys.argv[2])):
    key = d.key(("written", number))
    done = [store.add_program(key, f"written {number}")]
    for name, wall in (("eager", 30.0), ("inductor", 20.0)):
        done.append(store.add_default_timing(DefaultTiming(key, HERE, name, wall_us=wall, run=run.key)))
    done.append(store.add_plan(StoredPlan(key, HERE, INDUCTOR, wall_us=10.0, noise_us=0.1, run=run.key)))
    assert all(done), "a reader kept a writer out"
    print(number, flush=True)
"""


def test_while_tuning_writes(tmp_path: Path, served: Callable[..., Any], open_page: Callable[..., Any]) -> None:
    """Nobody keeps anybody out: each write is taken while pages are read, and pages show what was written."""
    path = dashboards.mixed(tmp_path / "tuning.db", 50)
    server = served(path)
    opened = open_page(f"{server.url}/programs")
    before = int(httpx.get(f"{server.url}/programs.json?q=written").text.count("written"))
    assert before == 0
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), "60"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    seen = []
    while writer.poll() is None:
        opened.page.reload()
        expect(opened.page.locator("[data-table]")).to_have_attribute("data-ready", "yes")
        seen.append(httpx.get(f"{server.url}/programs.json?q=written").text.count("written"))
    assert writer.returncode == 0
    assert seen == sorted(seen)
    opened.page.goto(f"{server.url}/programs?q=written")
    expect(opened.page.locator("[data-count]")).to_contain_text("60 of")
