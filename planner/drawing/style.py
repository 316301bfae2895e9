"""The colours of drawings, and their style sheet: light or dark, as the reader has it."""

from __future__ import annotations

from collections.abc import Mapping

COLORS: Mapping[str, tuple[str, str]] = {
    "aten": ("#57606a", "#9aa4af"),
    "eager": ("#57606a", "#9aa4af"),
    "inductor": ("#0a5fc2", "#6cb2ff"),
    "nvfuser": ("#3f7300", "#8fce3c"),
}
"""The colour of each executor, on a light ground and on a dark one: enough contrast for text on either."""
OTHER_COLOR = ("#8a3ab9", "#d2a8ff")
"""Of an executor that is not among them."""

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
    words = {**(_DARK if theme else _LIGHT), **{name: pair[theme] for name, pair in COLORS.items()}}
    words["other"] = OTHER_COLOR[theme]
    return "".join(f"--{name}:{value};" for name, value in words.items())


STYLE = (
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
        for name in (*COLORS, "other")
    )
)
"""The style sheet that stands in each drawing. A page with a theme of its own says so with `data-theme` on its root; one
that forbids style within documents links it."""
