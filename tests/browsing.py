"""A dashboard in a process of its own, and a page of Chromium that remembers what went wrong in it."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
COMMAND = (sys.executable, "-c", "from fuseplan.cli import main; main()", "dashboard", "--port", "0")


def chromium() -> str:
    """The browser's file. Where there is none the tests fail: one that is skipped tells nobody."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.fail("the browser tests need Chromium: apt-get install chromium", pytrace=False)
    return found


@dataclass
class Server:
    """A dashboard that answers, and what it has written to stderr once it is stopped."""

    url: str
    process: subprocess.Popen[str]
    errors: list[str] = field(default_factory=list)


@contextmanager
def serving(*databases: Path, options: tuple[str, ...] = ()) -> Iterator[Server]:
    """A server of these databases."""
    named = [word for path in databases for word in ("--db", str(path))]
    process = subprocess.Popen([*COMMAND, *named, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    server = Server("", process)
    try:
        line = process.stdout.readline()
        if " at http" not in line:
            process.kill()
            pytest.fail(f"the dashboard did not start: {line}{process.communicate()[1]}")
        server.url = line.split(" at ")[1].split(" ")[0].rstrip("/")
        yield server
    finally:
        process.terminate()
        server.errors.append(process.communicate(timeout=20)[1])


@dataclass
class Watched:
    """A page of the browser that remembers what went wrong in it."""

    page: Page
    problems: list[str]
    requested: list[str]

    def drawn(self) -> None:
        """Look at each chart, and wait until it has been drawn."""
        for plot in self.page.locator(".plot:visible").all():
            plot.scroll_into_view_if_needed()
            expect(plot).to_have_attribute("data-drawn", "yes", timeout=15000)

    def axe(self) -> list[str]:
        """What axe finds that is serious."""
        found = Axe().run(self.page).response["violations"]
        return [
            f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:200]}: {one['nodes'][0].get('failureSummary', '')[:300]}"
            for one in found
            if one["impact"] in ("serious", "critical")
        ]


def sql(file: Path, text: str, *values: object) -> list[tuple[Any, ...]]:
    """What a database says, by SQL of the tests' own."""
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    try:
        return connection.execute(text, values).fetchall()
    finally:
        connection.close()


def shown(page: Page, selector: str) -> list[float]:
    """The numbers behind what is shown."""
    found = page.locator(selector).evaluate_all("all => all.map(one => one.dataset.value)")
    return [float(value) for value in found if value]
