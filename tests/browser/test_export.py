"""The exported file, opened from the disk: the same numbers as SQL has, the same pages as are served, and no network."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

import dashboards
from browsing import COMMAND
from fuseplan.errors import FuseplanError
from fuseplan.tuning_db.dashboard.ask import Ask
from fuseplan.tuning_db.dashboard.download import download
from fuseplan.tuning_db.dashboard.needed import plotly_js
from fuseplan.tuning_db.dashboard.pages import PAGES, programs
from fuseplan.tuning_db.dashboard.reader import readers
from fuseplan.tuning_db.dashboard.serve import dashboard


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("exported")
    database, file = dashboards.mixed(folder / "tuning.db", 120), folder / "report.html"
    command = [*COMMAND[:4], "--db", str(database), "--export", str(file), "--json"]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert told["bytes"] == file.stat().st_size
    packed = len(base64.b64encode(gzip.compress(plotly_js().read_bytes())))
    assert told["bytes"] < packed + 20_000 * told["sections"], "Plotly is packed, and what stands beside it is small"
    assert told["sections"] >= len([page for page in PAGES if page.nav])
    return database, file


def test_it_shows_what_sql_says(exported: tuple[Path, Path], open_page: Callable[..., Any]) -> None:
    database, file = exported
    opened = open_page(file.as_uri(), offline=True)
    opened.drawn()
    page = opened.page
    connection = sqlite3.connect(database)
    plans = """SELECT *, row_number() OVER (PARTITION BY program_id, environment_id, launch, sizes ORDER BY word IS 'pinned' DESC,
        status <> 'quarantined' AND word IS NOT 'disabled' DESC, status <> 'unverified' DESC, changed_at DESC, key DESC) AS place FROM plan"""
    for word, shown in (
        ("tuned", ".tuned"),
        ("default", ".default"),
        ("unverified", ".unverified"),
        ("pinned", ".pinned"),
    ):
        (times,) = connection.execute(
            f"SELECT count(*) FROM ({plans}) WHERE place = 1 AND coalesce(word, status) = ?", (word,)
        ).fetchone()
        assert page.locator(f".standings {shown} b").inner_text() == f"{times:,}"
    (known,) = connection.execute(
        "SELECT count(DISTINCT program_id) FROM (SELECT program_id FROM plan UNION SELECT program_id FROM default_timing)"
    ).fetchone()
    assert f"{known:,} programs" in page.locator("h2", has_text="of launch").inner_text()
    fastest = f"""SELECT d.program_id, d.environment_id, d.launch, d.sizes, d.name, d.wall_us,
        row_number() OVER (PARTITION BY p.id, d.name ORDER BY d.run_id IS NOT NULL AND d.run_id IS p.run_id DESC, d.measured_at DESC, d.id DESC) AS latest,
        p.id AS plan, p.wall_us AS tuned FROM default_timing AS d JOIN (SELECT * FROM ({plans}) WHERE place = 1) AS p USING (program_id, environment_id, launch, sizes)
        WHERE d.status = 'ok' AND coalesce(p.word, p.status) IN ('tuned', 'default', 'pinned') AND p.wall_us > 0"""
    connection.create_function("ln", 1, math.log)
    for name in ("eager", "inductor", "nvfuser-greedy"):
        (mean, count) = connection.execute(
            f"SELECT avg(ln(wall_us / tuned)), count(*) FROM ({fastest}) WHERE latest = 1 AND name = ?", (name,)
        ).fetchone()
        row = page.locator(f"tr[data-default='{name}']")
        assert float(row.locator("[data-value]").get_attribute("data-value")) == pytest.approx(math.exp(mean))
        assert row.locator("td").nth(6).inner_text() == f"{count:,}"
        assert row.locator(".number").inner_text() == f"{math.exp(mean):.2f}×"
    assert [url for url in opened.requested if not url.startswith(("file:", "data:", "blob:"))] == []


def test_every_section_opens(exported: tuple[Path, Path], open_page: Callable[..., Any]) -> None:
    _, file = exported
    opened = open_page(file.as_uri(), offline=True)
    page = opened.page
    for link in page.locator("header nav a").all():
        link.click()
        expect(link).to_have_attribute("aria-current", "page")
        assert page.locator("section.view:visible").count() == 1
        assert page.locator("section.view:visible h1").count() == 1
        opened.drawn()
    page.go_back()
    assert page.locator("section.view:visible").count() == 1
    inside = page.locator("section.view a[href^='#']").evaluate_all(
        "all => all.filter(one => !document.getElementById(one.hash.slice(1))).length"
    )
    assert inside == 0, "a link to a section that is not there"
    ids = page.evaluate(
        "(() => { const all = [...document.querySelectorAll('[id]')].map(one => one.id); return all.length - new Set(all).size; })()"
    )
    assert ids == 0, "an id stands twice"


def test_the_table_works_from_the_disk(exported: tuple[Path, Path], open_page: Callable[..., Any]) -> None:
    database, file = exported
    page = open_page(f"{file.as_uri()}#programs", offline=True).page
    expect(page.locator("[data-table]")).to_have_attribute("data-ready", "yes")
    page.locator("[data-sort-by=plan_us]").click()
    page.get_by_role("searchbox").fill("model 3")
    asked = programs.load(
        next(iter(readers([database]).values())), Ask({"sort": "plan_us", "order": "down", "q": "model 3"})
    )
    expect(page.locator("[data-count]")).to_have_text(f"{len(asked.rows)} of {asked.total}")
    assert page.locator("tr[data-place] th").all_inner_texts()[:10] == [row[0] for row in asked.rows[:10]]
    for ending in ("csv", "json"):
        with page.expect_download() as started:
            page.locator(f"[data-download={ending}]").click()
        saved = Path(started.value.path()).read_bytes().decode("utf-8")
        served = download(asked, ending)[0].decode("utf-8")
        if ending == "json":
            assert json.loads(saved) == json.loads(served)
        else:
            assert [_numbers(line) for line in saved.splitlines()] == [_numbers(line) for line in served.splitlines()]


def _numbers(line: str) -> list[str]:
    """Cells, with numbers as numbers: 400.0 here is 400 there."""
    return [repr(float(cell)) if re.fullmatch(r"-?\d+(\.\d+)?(e[-+]?\d+)?", cell) else cell for cell in line.split(",")]


def test_it_is_one_file_under_a_policy(exported: tuple[Path, Path]) -> None:
    text = exported[1].read_text(encoding="utf-8")
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)
    assert "unsafe" not in policy
    assert "default-src &#39;none&#39;" in policy
    assert len(re.findall("sha256-", policy)) >= 5
    head = text[: text.index("</main>")]
    assert re.findall(r"""(?:src|href)=["']?(?!#|data:)[^"'>\s]+""", head) == [], "everything is within"
    assert str(exported[0].parent) not in head
    assert len(text) < 12 * 2**20


def test_hostile_names_stay_names(tmp_path: Path, open_page: Callable[..., Any]) -> None:
    database, file = dashboards.hostile(tmp_path / "tuning.db"), tmp_path / "report.html"
    dashboard(database, export=file)
    page = open_page(f"{file.as_uri()}#programs", offline=True).page
    expect(page.locator("[data-table]")).to_have_attribute("data-ready", "yes")
    page.locator("[data-sort-by=calls]").click()
    assert page.evaluate("window.hurt") is None
    assert "<script>window.hurt = 1</script>" in page.locator("tr[data-place] th").all_inner_texts()


@pytest.mark.parametrize("wrong", ["no such folder/report.html", "."])
def test_a_place_that_cannot_be_written(wrong: str, tmp_path: Path) -> None:
    database = dashboards.one_row(tmp_path / "tuning.db")
    with pytest.raises(FuseplanError, match="cannot be written"):
        dashboard(database, export=tmp_path / wrong)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tuning.db"]


@pytest.mark.parametrize("to", ["tuning.db", "link.db", "tuning.db-wal"])
def test_it_never_goes_over_a_database(to: str, tmp_path: Path) -> None:
    first, second = (dashboards.one_row(tmp_path / name) for name in ("first.db", "tuning.db"))
    (tmp_path / "link.db").symlink_to(second)
    before = second.read_bytes()
    command = [*COMMAND[:4], str(first), "--db", "tuning.db", "--export", to]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"Error: {to} is the database itself, or a part of it: name another file to write to\n"
    assert second.read_bytes() == before
    assert not (tmp_path / "tuning.db-wal").exists()


def test_a_database_that_is_not_there(tmp_path: Path) -> None:
    command = [*COMMAND[:4], "--db", str(tmp_path / "none.db"), "--export", str(tmp_path / "report.html")]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr.count("\n") == 1
    assert "none.db" in ran.stderr


def test_without_the_extra() -> None:
    """Whoever has not installed it is told how, in one line."""
    code = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name in ("starlette", "plotly"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Nothing())
from importlib import util
real = util.find_spec
util.find_spec = lambda name, package=None: None if name in ("starlette", "plotly") else real(name, package)
from fuseplan.cli import main
main(["dashboard", "--db", "x.db"])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr == "Error: the dashboard needs starlette, plotly: python -m pip install 'fuseplan[dashboard]'\n"


def test_nothing_of_it_brings_torch() -> None:
    code = "import sys; import fuseplan.tuning_db.dashboard.app, fuseplan.tuning_db.dashboard.export; sys.exit('torch' in sys.modules or 'plotly' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
