"""The recipes of docs/contributing.md name files that exist."""

from __future__ import annotations

import re

import pytest

from checks.project import ROOT

SECTION = (
    (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8").partition("## Recipes\n")[2].partition("\n## ")[0]
)
RECIPES = dict(re.findall(r"^### (.+?)\n(.*?)(?=^### |\Z)", SECTION, re.MULTILINE | re.DOTALL))


def test_there_is_a_recipe_for_what_is_often_added() -> None:
    expected = {"An executor", "A move", "An nvFuser lowering", "A kind of rewrite", "A column of the dashboard"}
    assert expected <= set(RECIPES)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_names_its_files_in_order_and_they_exist(recipe: str) -> None:
    steps = re.findall(r"^(\d+)\. ", RECIPES[recipe], re.MULTILINE)
    assert steps == [str(number) for number in range(1, len(steps) + 1)] != []
    files = re.findall(r"`([\w.-]+(?:/[\w.-]+)+)`", RECIPES[recipe])
    assert len(files) >= 3
    assert [file for file in files if not (ROOT / file).exists()] == []
