"""A real server in a process of its own, and a real Chromium in which nothing may fail unseen."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
COMMAND = (sys.executable, "-c", "from fuseplan.cli import main; main()", "dashboard", "--port", "0")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.fail("the browser tests need Chromium: apt-get install chromium", pytrace=False)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, headless=True, args=list(FLAGS))
        yield started
        started.close()


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


@pytest.fixture
def served() -> Iterator[Callable[..., Server]]:
    """`served(database, …)` starts a server, which is stopped after the test and must have written no error."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        started: list[Server] = []

        def start(*databases: Path, options: tuple[str, ...] = ()) -> Server:
            started.append(stack.enter_context(serving(*databases, options=options)))
            return started[-1]

        yield start
    assert not any(server.errors[0] for server in started), started[0].errors


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


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Watched]]:
    """`open_page(url, **options of the context)`: after the test, no error and no failed request may have happened."""
    contexts: list[BrowserContext] = []
    opened: list[Watched] = []

    def watch(url: str, **options: Any) -> Watched:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        context.set_default_timeout(15000)
        page = context.new_page()
        watched = Watched(page, [], [])
        page.on(
            "console", lambda message: message.type in ("error", "warning") and watched.problems.append(message.text)
        )
        page.on("pageerror", lambda error: watched.problems.append(str(error)))
        # A download is no page: the browser says that it left off loading one.
        page.on("requestfailed", lambda request: _aborted(request) or watched.problems.append(f"failed: {request.url}"))
        page.on(
            "response", lambda answer: answer.status >= 400 and watched.problems.append(f"{answer.status} {answer.url}")
        )
        page.on("request", lambda request: watched.requested.append(request.url))
        page.goto(url)
        opened.append(watched)
        return watched

    yield watch
    for context in contexts:
        context.close()
    assert [problem for watched in opened for problem in watched.problems] == []


def _aborted(request: Any) -> bool:
    return "ERR_ABORTED" in (request.failure or "")
