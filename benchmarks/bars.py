"""Bar charts as SVG, beside the line charts of `fuseplan.charts`: groups of bars, and a line at one."""

from __future__ import annotations

from collections.abc import Mapping

from fuseplan.charts import svg_line, svg_text

COLOURS = ("#7a7a7a", "#c9c9c9", "#a5a5a5", "#5f5f5f", "#7fb2d9", "#1b6ca8")
LEFT, ACROSS, BAR, GAP, TOP = 150, 460, 11, 14, 64.0


def bars(title: str, groups: Mapping[str, Mapping[str, float]]) -> str:
    """One SVG file: for each group its bars, from left to right as long as their values, each with its number.

    >>> bars("speed", {"bert": {"eager": 0.5, "tuned": 1.5}}).count("<rect")
    5
    """
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    most = max([1.0, *(value for group in groups.values() for value in group.values())])
    parts = [svg_text(LEFT, 18, title, "start", 13)]
    for i, name in enumerate(names):
        x, y = float(LEFT + (i % 3) * 170), 28.0 + 15 * (i // 3)
        parts += [_bar(x, y, 10, 10, colours[name]), svg_text(x + 14, y + 9, name, "start", 10)]
    y = TOP
    for group, values in groups.items():
        parts.append(svg_text(LEFT - 8, y + BAR * len(values) / 2 + 4, group, "end"))
        for name, value in values.items():
            long = value / most * ACROSS
            parts.append(_bar(LEFT, y, long, BAR - 1, colours[name]))
            parts.append(svg_text(LEFT + long + 4, y + BAR - 2, f"{value:.2f}", "start", 9))
            y += BAR
        y += GAP
    one = LEFT + ACROSS / most
    parts.append(svg_line(one, TOP - 4, one, y - GAP + 4))
    size = f'width="{LEFT + ACROSS + 50}" height="{y:.0f}" font-family="sans-serif"'
    ground = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', ground, *parts, "</svg>\n"])


def _bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:g}" fill="{colour}"/>'
