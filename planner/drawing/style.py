"""The colours of executors, and the style sheet of drawings: light or dark, as the reader has it."""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

from fuseplan.executors.known import known_executors
from fuseplan.executors.traits import Color

OTHER_COLORS: tuple[Color, ...] = (
    ("#8a3ab9", "#d2a8ff"),
    ("#9a4a00", "#f0a04b"),
    ("#00706e", "#4fd1c5"),
    ("#a8326b", "#ff9ecb"),
)
"""Of executors that have no colour of their own, or that this process has never heard of: one of these, by their name."""


def colors() -> Mapping[str, Color]:
    """The colour of each word that `color_word` gives. Eager is ATen's own operators, too."""
    own = {traits.name: traits.color for traits in known_executors() if traits.color is not None}
    others = {f"other{number}": color for number, color in enumerate(OTHER_COLORS)}
    return {**own, "eager": own["aten"], **others}


def color_word(executor: str) -> str:
    """What an executor's colour is called in style sheets.

    >>> color_word("inductor"), color_word("unheard-of")
    ('inductor', 'other2')
    """
    return executor if executor in colors() else f"other{crc32(executor.encode()) % len(OTHER_COLORS)}"


def variables(theme: int) -> str:
    """The colours as variables of CSS, on a light ground (0) or on a dark one (1)."""
    return "".join(f"--{name}:{pair[theme]};" for name, pair in colors().items())


_LIGHT = {
    "ink": "#1f2328",
    "soft": "#59636e",
    "line": "#8c959f",
    "paper": "#ffffff",
    "anchor": "#fff3d6",
    "edge": "#9a6700",
}
_DARK = {
    "ink": "#e6edf3",
    "soft": "#9da7b3",
    "line": "#768390",
    "paper": "#0d1117",
    "anchor": "#3a2d0c",
    "edge": "#d9a326",
}


def _ground(theme: int) -> str:
    return "".join(f"--{name}:{value};" for name, value in (_DARK if theme else _LIGHT).items()) + variables(theme)


def style() -> str:
    """The style sheet that stands in each drawing. A page with a theme of its own says so with `data-theme` on its root; one
    that forbids style within documents links it.
    """
    return (
        f".fuseplan-drawing{{{_ground(0)}}}"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]) .fuseplan-drawing,"
        f"svg.fuseplan-drawing:root{{{_ground(1)}}}}}"
        f":root[data-theme=dark] .fuseplan-drawing{{{_ground(1)}}}"
        ".fuseplan-drawing{background:var(--paper)}"
        ".fuseplan-drawing text{fill:var(--ink)}.fuseplan-drawing .small{fill:var(--soft)}"
        ".fuseplan-drawing rect{fill:var(--paper);stroke:var(--line)}"
        ".fuseplan-drawing .paper{stroke:none}"
        ".fuseplan-drawing .anchor>rect{fill:var(--anchor);stroke:var(--edge)}"
        ".fuseplan-drawing .arrow{stroke:var(--line)}.fuseplan-drawing .tips{fill:var(--line)}"
        ".fuseplan-drawing .repeat>rect,.fuseplan-drawing .island>rect{fill:none;stroke:var(--soft)}"
        + "".join(
            f".fuseplan-drawing .by-{name}>rect{{stroke:var(--{name})}}"
            f".fuseplan-drawing .region.by-{name}>rect,.fuseplan-drawing .swatch.by-{name}>rect"
            f"{{fill:var(--{name});stroke:var(--{name})}}"
            f".fuseplan-drawing .region.by-{name}>text{{fill:var(--{name})}}"
            for name in colors()
        )
    )
