"""What README and docs/ show runs: the Python blocks of a page one after the other, as a reader would type them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from checks.project import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
OWN = {"libraries.md", "serving.md", "thunder.md"}
"""Pages whose code has a test of its own, which gives it what it speaks of: test_libraries, test_serve, test_thunder."""
WITH_CODE = [page for page in PAGES if page.name not in OWN and BLOCK.search(page.read_text(encoding="utf-8"))]


def test_the_readme_shows_code() -> None:
    assert ROOT / "README.md" in WITH_CODE


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "__main__"}
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start(1))
        # Blank lines in front, so that a traceback points at the line of the page.
        exec(compile("\n" * line + match.group(1), str(page), "exec"), names)
