"""A real server in a process of its own, and a real Chromium in which nothing may fail unseen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, sync_playwright

from browsing import FLAGS, Server, Watched, chromium, serving


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), headless=True, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture
def served() -> Iterator[Callable[..., Server]]:
    """`served(database, …)` starts a server, which is stopped after the test and must have written no error."""
    with ExitStack() as stack:
        started: list[Server] = []

        def start(*databases: Path, options: tuple[str, ...] = ()) -> Server:
            started.append(stack.enter_context(serving(*databases, options=options)))
            return started[-1]

        yield start
    assert not any(server.errors[0] for server in started), started[0].errors


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
