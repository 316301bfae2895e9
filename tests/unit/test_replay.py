"""`scripts/replay`: what it says of a case that is not the one kept, and what two plans have to share to mean the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.replay import kept
from benchmarks.replay.kept import compare, keep


def test_a_case_that_differs_is_printed_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = {"host": "aten", "parts": {"forward ab": ["inductor default: 0 1", "aten default: 2"]}}
    keep("solved", {"a": plan, "b": {"host": "eager"}, "gone": 1}, tmp_path)
    other = {**plan, "parts": {"forward ab": ["inductor default: 0 1 2", "aten default: 2"]}}
    assert compare("solved", {"a": other, "b": {"host": "eager"}}, tmp_path) == 2
    printed = capsys.readouterr().out
    assert 'parts.forward ab[0]: kept "inductor default: 0 1", now "inductor default: 0 1 2"' in printed
    assert "solved: gone" in printed
    assert "solved: b" not in printed


def test_nothing_is_printed_where_nothing_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep("raced", {"a": [1, 2.5]}, tmp_path)
    assert compare("raced", {"a": [1, 2.5]}, tmp_path) == 0
    assert capsys.readouterr().out == ""


def test_what_a_machine_rounds_is_kept_for_its_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep("solved", {"a": 1}, tmp_path)
    assert compare("solved", {"a": 2}, tmp_path) == 1
    monkeypatch.setattr(kept, "digest", lambda: "another kind")
    capsys.readouterr()
    assert compare("solved", {"a": 2}, tmp_path) == 0
    assert "another kind" in capsys.readouterr().out
    keep("raced", {"a": 1}, tmp_path)
    assert compare("raced", {"a": 2}, tmp_path) == 1
