"""One executor has one colour: in the drawings of graphs, and wherever else the dashboard names it."""

from __future__ import annotations

import re

import pytest

from fuseplan.drawing import COLORS, OTHER_COLOR
from fuseplan.tuning_db.dashboard.assets import FOLDER


@pytest.mark.parametrize(
    ("name", "colors"), [*((k, v) for k, v in COLORS.items() if k != "eager"), ("other", OTHER_COLOR)]
)
def test_colours_are_those_of_the_drawings(name: str, colors: tuple[str, str]) -> None:
    light, *dark = re.findall(rf"--{name}: (#[0-9a-f]{{6}})", (FOLDER / "dashboard.css").read_text())
    assert (light, set(dark)) == (colors[0], {colors[1]})


def test_eager_is_aten() -> None:
    assert COLORS["eager"] == COLORS["aten"]
