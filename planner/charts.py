"""Charts of lines and points as SVG, written by hand: results in the docs and of verbs, without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

Points = Sequence[tuple[float, float]]
COLOURS = ("#1b6ca8", "#c8553d", "#5b8e3f", "#8a5a9e", "#7a7a7a")
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 360, 270, 56, 34, 12, 44


@dataclass(frozen=True)
class Panel:
    """One chart: lines by name, and points. A line with `steps` keeps each value until the next; axes may be logarithmic."""

    title: str
    x: str
    y: str
    lines: Mapping[str, Points]
    log_x: bool = False
    log_y: bool = False
    steps: bool = False
    points: Mapping[str, Points] = field(default_factory=dict)
    """Dots by name, in colours after those of the lines."""
    names_left: bool = False
    """Whether the names of lines stand at the left, where lines that rise leave room."""

    def svg(self) -> str:
        """The panel as the inside of an SVG element."""
        every = [*self.lines.values(), *self.points.values()]
        across = _Axis([x for line in every for x, _ in line], self.log_x, LEFT, WIDTH - RIGHT)
        up = _Axis([y for line in every for _, y in line], self.log_y, HEIGHT - BOTTOM, TOP)
        parts = [
            svg_text(WIDTH / 2, 18, self.title, "middle", 13),
            svg_text(WIDTH / 2, HEIGHT - 8, self.x, "middle"),
            f'<g transform="rotate(-90 12 {HEIGHT / 2})">{svg_text(12, HEIGHT / 2, self.y, "middle")}</g>',
        ]
        for tick in across.ticks:
            at = across(tick)
            parts += [svg_line(at, TOP, at, HEIGHT - BOTTOM), svg_text(at, HEIGHT - BOTTOM + 15, f"{tick:g}", "middle")]
        for tick in up.ticks:
            at = up(tick)
            parts += [svg_line(LEFT, at, WIDTH - RIGHT, at), svg_text(LEFT - 5, at + 4, f"{tick:g}", "end")]
        for number, (name, dots) in enumerate(self.points.items(), len(self.lines)):
            colour = COLOURS[number % len(COLOURS)]
            path = "".join(f"M{across(x):.1f} {up(y):.1f}h0" for x, y in dots)
            parts.append(
                f'<path d="{path}" stroke="{colour}" stroke-width="2" stroke-linecap="round" stroke-opacity="0.35"/>'
            )
            parts.append(svg_text(LEFT + 6, TOP + 14 * (number + 1), name, "start", colour=colour))
        for number, (name, line) in enumerate(self.lines.items()):
            colour = COLOURS[number % len(COLOURS)]
            path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in (_stairs(line) if self.steps else line))
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
            at, anchor = (LEFT + 6, "start") if self.names_left else (WIDTH - RIGHT - 4, "end")
            parts.append(svg_text(at, TOP + 14 * (number + 1), name, anchor, colour=colour))
        return "\n".join(parts)


def chart(panels: Sequence[Panel]) -> str:
    """The panels side by side, as one SVG file.

    >>> chart([Panel("growth", "ops", "s", {"chain": [(1, 1), (10, 12)]}, log_x=True)]).startswith("<svg")
    True
    """
    groups = [f'<g transform="translate({i * WIDTH} 0)">\n{panel.svg()}\n</g>' for i, panel in enumerate(panels)]
    size = f'width="{len(panels) * WIDTH}" height="{HEIGHT}" font-family="sans-serif"'
    ground = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', ground, *groups, "</svg>\n"])


class _Axis:
    """Where a value lies between two ends of the picture."""

    def __init__(self, values: Sequence[float], log: bool, start: float, end: float) -> None:
        self._log, self._start, self._end = log, start, end
        known = [value for value in values if value > 0] if log else list(values)
        low, high = min(known, default=1.0), max(known, default=1.0)
        if log:
            low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
            self.ticks = [10.0**power for power in range(round(math.log10(low)), round(math.log10(high)) + 1)]
        else:
            low = min(low, 0.0)
            step = _round_step((high - low) / 4 or 1.0)
            self.ticks = [step * i for i in range(math.floor(low / step), math.floor(high / step) + 1)]
            high = max(high, low + step)
        self._low, self._high = self._scale(low), self._scale(high)

    def __call__(self, value: float) -> float:
        share = (self._scale(value) - self._low) / ((self._high - self._low) or 1.0)
        return self._start + min(1.0, max(0.0, share)) * (self._end - self._start)

    def _scale(self, value: float) -> float:
        return math.log10(max(value, 1e-12)) if self._log else value


def _round_step(about: float) -> float:
    power = 10.0 ** math.floor(math.log10(about))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= about)


def _stairs(line: Points) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for x, y in line:
        if found:
            found.append((x, found[-1][1]))
        found.append((x, y))
    return found


def svg_text(x: float, y: float, text: str, anchor: str, size: int = 11, colour: str = "#333") -> str:
    """One piece of text, anchored at its start, middle or end."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{escape(text)}</text>'


def svg_line(x1: float, y1: float, x2: float, y2: float) -> str:
    """One thin grey line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ddd"/>'
