"""`scripts/mutants`: what is changed, which tests are run against it, and that nothing but a copy is."""

from __future__ import annotations

from pathlib import Path

from benchmarks.mutation.sites import drawn, mutants

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
