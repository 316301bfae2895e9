"""The overview in a real browser: it opens without an error, draws its charts, and can be used by everyone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stored import fill, store_at


def test_a_small_database(tmp_path: Path, served: Callable[..., Any], open_page: Callable[..., Any]) -> None:
    path = tmp_path / "tuning.db"
    fill(store_at(path))
    opened = open_page(served(path).url)
    opened.drawn()
    assert opened.page.locator("h1").text_content() == "Did tuning pay?"
    assert opened.page.locator(".plot[data-drawn=yes]").count() == 2
    assert opened.axe() == []
