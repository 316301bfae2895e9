"""A name that a test takes from where it no longer is, is found without running that test."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.borrowed import missing, modules_of_tests


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from cpu.lender import given", []),
        ("from cpu.lender import Given, borrowed, later", []),
        ("from cpu import lender", []),
        ("import cpu.lender", []),
        ("from pathlib import nothing_of_ours", []),
        ("from cpu.lender import gone", ["cpu.lender has no gone"]),
        ("def test():\n    from cpu.lender import inner", ["cpu.lender has no inner"]),
    ],
)
def test_what_is_taken_is_there(tmp_path: Path, source: str, found: list[str]) -> None:
    folder = tmp_path / "tests" / "cpu"
    folder.mkdir(parents=True)
    lender = "from pathlib import Path as borrowed\nif borrowed:\n    later = 1\ndef given():\n    inner = 1\nclass Given: ..."
    (folder / "lender.py").write_text(lender)
    (folder / "test_taker.py").write_text(source)
    modules = modules_of_tests(tmp_path)
    assert [each.split(": ", 1)[1] for each in missing(modules, modules)] == found
