"""Run by scripts/screenshots: drives Chromium over a real server of the dashboard and keeps what it shows."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Page, expect, sync_playwright

SERVE = (sys.executable, "-c", "from fuseplan.cli import main; main()", "dashboard", "--port", "0")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars")
WIDTH, HEIGHT = 1280, 860


def main() -> None:
    """Take the overview, the programs, one program, and two environments or runs side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("db", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("program", nargs="?", default="")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    browser = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    if browser is None:
        raise SystemExit("this needs Chromium: apt-get install chromium")
    with served(asked.db) as url, sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=browser, headless=True, args=list(FLAGS))
        for scheme in ("light", "dark"):
            page = started.new_context(
                viewport={"width": WIDTH, "height": HEIGHT},
                color_scheme="dark" if scheme == "dark" else "light",
                device_scale_factor=1.5,
            ).new_page()
            for name, target in targets(page, url, asked.program).items():
                page.goto(url + target)
                settle(page)
                file = asked.out / f"{name}-{scheme}.png"
                page.screenshot(path=file, full_page=name != "programs", animations="disabled")
                print(file)
        started.close()


def targets(page: Page, url: str, wanted: str) -> dict[str, str]:
    """What to take, by the name of the file."""
    page.goto(f"{url}/programs?q={quote(wanted)}")
    settle(page)
    found = {"overview": "/", "programs": "/programs"}
    link = page.locator("tr[data-place] th a").first
    if link.count():
        found["program"] = (link.get_attribute("href") or "").split("#")[0]
    for kind in ("environments", "runs"):
        page.goto(f"{url}/compare?kind={kind}")
        if page.locator(".cards").count():
            found["compare"] = f"/compare?kind={kind}"
            break
    return found


def settle(page: Page) -> None:
    """Wait until all charts are drawn, and all rows are there."""
    for plot in page.locator(".plot:visible").all():
        plot.scroll_into_view_if_needed()
        expect(plot).to_have_attribute("data-drawn", "yes", timeout=20000)
    if page.locator("[data-table]").count():
        page.locator("[data-table][data-ready=yes]").wait_for()
    page.evaluate("scrollTo(0, 0)")


@contextmanager
def served(path: Path) -> Iterator[str]:
    """The address of a server of this database."""
    process = subprocess.Popen([*SERVE, "--db", str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split(" at ")[1].split(" ")[0].rstrip("/")
    finally:
        process.terminate()
        process.wait(20)


if __name__ == "__main__":
    main()
