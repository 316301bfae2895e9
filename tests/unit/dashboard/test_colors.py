"""One executor has one colour: in the drawings of graphs, and wherever else the dashboard names it."""

from __future__ import annotations

import re

import pytest

from fuseplan.drawing import color_word, colors
from fuseplan.tuning_db.dashboard.assets import assets

KEPT = {"aten": ("#57606a", "#9aa4af"), "inductor": ("#0a5fc2", "#6cb2ff"), "nvfuser": ("#3f7300", "#8fce3c")}


@pytest.mark.parametrize(("name", "pair"), colors().items())
def test_colours_are_those_of_the_drawings(name: str, pair: tuple[str, str]) -> None:
    style = assets()["dashboard.css"].text
    light, *dark = re.findall(rf"--{name}: ?(#[0-9a-f]{{6}})", style)
    assert (light, set(dark)) == (pair[0], {pair[1]})
    assert f".swatch.by-{name}{{" in style


def test_executors_keep_their_colours() -> None:
    assert {name: colors()[name] for name in KEPT} == KEPT
    assert colors()["eager"] == colors()["aten"]


def test_an_executor_that_nobody_here_has_heard_of_has_one_of_the_other_colours() -> None:
    words = {color_word(f"executor {number}") for number in range(50)}
    assert words == {word for word in colors() if word.startswith("other")}
