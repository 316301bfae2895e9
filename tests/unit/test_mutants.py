"""`scripts/mutants`: what is changed, which tests are run against it, and that nothing but a copy is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.mutation.__main__ import Reach, met_by
from benchmarks.mutation.probes import probed, probes, run_at_import, told_by
from benchmarks.mutation.sites import drawn, mutants
from benchmarks.mutation.tree import files_of

SOURCE = '''"""Text."""
def f(a: int | None, b=1):
    if a in b and not a:
        return f"{a + 1}" if a < 2 else [x for x in b if x]
    return True
'''


def test_every_operator_constant_and_condition_is_changed_and_still_parses() -> None:
    found = list(mutants("f.py", SOURCE))
    texts = {one.applied(SOURCE.encode()).decode() for one in found}
    assert {one.kind for one in found} == {"condition", "constant", "operator"}
    assert len(texts) == len(found) == 10
    for text in texts:
        compile(text, "f.py", "exec")
        assert "int | None" in text
        assert 'f"{a + 1}"' in text


def test_the_same_seed_draws_the_same_mutants(tmp_path: Path) -> None:
    (tmp_path / "planner").mkdir()
    (tmp_path / "planner" / "f.py").write_text(SOURCE)
    assert drawn(tmp_path, "planner", 5, 1) == drawn(tmp_path, "planner", 5, 1) != drawn(tmp_path, "planner", 5, 2)
    assert len(set(drawn(tmp_path, "planner", 100, 0))) == 10


def test_a_copy_tells_which_mutants_are_reached(tmp_path: Path) -> None:
    (tmp_path / "planner").mkdir()
    (tmp_path / "planner" / "f.py").write_text(SOURCE)
    chosen = drawn(tmp_path, "planner", 100, 0)
    places = probes(tmp_path, chosen)["planner/f.py"]
    hits: list[int] = []
    scope: dict[str, Any] = {"__reached__": hits.append}
    exec(compile(probed(SOURCE.encode(), places), "f.py", "exec"), scope)
    at_import = {chosen[number].before for number in hits}
    hits.clear()
    assert scope["f"](3, [1]) is True
    assert at_import == {"1"}
    assert {chosen[number].before for number in hits if number >= 0} == {"a in b and not a", "a in b", "True"}


def test_a_mutant_meets_the_tests_that_reach_it_the_quick_ones_first(tmp_path: Path) -> None:
    (tmp_path / "planner").mkdir()
    (tmp_path / "planner" / "f.py").write_text(SOURCE)
    chosen = drawn(tmp_path, "planner", 100, 0)
    (inner,) = (number for number, one in enumerate(chosen) if one.before == "True")
    (default,) = (number for number, one in enumerate(chosen) if one.before == "1" and one.line == 2)
    rows = [
        ("slow", 9.0, False, {inner}),
        ("quick", 1.0, False, {inner}),
        ("fails", 0.5, True, {inner}),
        ("elsewhere", 1.0, False, set()),
    ]
    reached = [Reach(name, seconds, failed, frozenset(hits)) for name, seconds, failed, hits in rows]
    imported = run_at_import(tmp_path, chosen)
    assert met_by(inner, chosen, reached, imported) == ["quick", "slow"]
    assert met_by(default, chosen, reached, imported) == ["quick", "slow"], "it runs at import: all tests of the file"
    (unreached,) = (number for number, one in enumerate(chosen) if one.before == "2")
    assert met_by(unreached, chosen, reached, imported) == []
    both = [number for number, one in enumerate(chosen) if one.before == "a < 2"]
    assert len({told_by(number, chosen) for number in both}) == 1 < len(both), "an operator and a condition"


def test_without_a_history_a_checkout_is_what_is_not_hidden(tmp_path: Path) -> None:
    for name in ("planner/f.py", "planner/__pycache__/f.pyc", "build/out.py", ".venv/g.py", "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert sorted(files_of(tmp_path)) == ["README.md", "planner/f.py"]
