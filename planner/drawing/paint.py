"""A picture as SVG text: no script, nothing from elsewhere, and colours that follow the reader's light or dark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from xml.sax.saxutils import escape, quoteattr

from fuseplan.drawing.layout import OUTSIDE, Layout, Point, layered
from fuseplan.drawing.picture import Arrow, Picture, Rectangle
from fuseplan.drawing.style import color_word, colors, style
from fuseplan.graph.words import counted

_PAD = 12.0
_HEAD = 18.0
_LINE = 14.0
_LETTER = 6.7
_MARGIN = 16.0


@dataclass
class _Placed:
    """A box with its size, and where those inside it stand, counted from its corner."""

    box: Rectangle
    width: float
    height: float
    inside: list[_Placed]
    layout: Layout
    corner: Point = (0.0, 0.0)

    @cached_property
    def number(self) -> dict[int, int]:
        """The place of each of those inside."""
        return {id(child): number for number, child in enumerate(self.inside)}

    @property
    def origin(self) -> Point:
        """Where what is inside begins."""
        x, y = self.corner
        return x + _PAD, y + _HEAD + _LINE * (len(self.box.lines) - 1) + 4


def paint(shown: Picture, title: str, facts: str) -> str:
    """The picture as one SVG document."""
    legend = list(_legend(shown))
    root = _sized(Rectangle("root", inside=shown.boxes), shown.arrows)
    where: dict[int, list[_Placed]] = {}
    _settle(root, (_MARGIN - _PAD, 66 - _HEAD + _LINE - 4), [], where)
    width = max(root.width - 2 * _PAD, _LETTER * max(len(title), len(facts)), _legend_width(legend)) + 2 * _MARGIN
    height = 66 + root.layout.height + _MARGIN
    named = _said(title or "graph")
    size = f'width="{width:.0f}" height="{height:.0f}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="fuseplan-drawing" role="img" aria-label={quoteattr(named)}'
        f' {size} viewBox="0 0 {width:.0f} {height:.0f}" font-family="system-ui, sans-serif" font-size="12">'
    )
    out = [
        head,
        f"<style>{style()}</style>",
        f'<rect class="paper" {size} fill="#ffffff"/>',
        f'<text x="{_MARGIN:g}" y="24" font-size="15" font-weight="600">{_text(title)}</text>',
        f'<text class="small" x="{_MARGIN:g}" y="42">{_text(facts)}</text>',
        *_swatches(legend),
        *(line for placed in root.inside for line in _hulls(placed)),
        *_arrows(shown.arrows, where),
        *(line for placed in root.inside for line in _leaves(placed)),
        "</svg>",
    ]
    return "\n".join(out) + "\n"


def _sized(box: Rectangle, arrows: Sequence[Arrow]) -> _Placed:
    """A box and all within it, each with its size: those that hold others are laid out from the inside."""
    if not box.inside:
        widest = max((len(line) for line in box.lines), default=0)
        return _Placed(box, widest * _LETTER + 18, _LINE * max(1, len(box.lines)) + 8, [], Layout())
    within = {id(leaf): number for number, child in enumerate(box.inside) for leaf in _leaf_boxes(child)}
    ends = [(arrow, within.get(id(arrow.first), OUTSIDE), within.get(id(arrow.last), OUTSIDE)) for arrow in arrows]
    touching: list[list[Arrow]] = [[] for _ in box.inside]
    for arrow, first, last in ends:
        for number in {first, last} - {OUTSIDE}:
            touching[number].append(arrow)
    placed = [_sized(child, own) for child, own in zip(box.inside, touching, strict=True)]
    between = {(first, last) for _, first, last in ends if first != last}
    layout = layered([(one.width, one.height) for one in placed], between)
    head = _HEAD + _LINE * (len(box.lines) - 1) + 4
    width = max(layout.width, max((len(line) for line in box.lines), default=0) * _LETTER) + 2 * _PAD
    return _Placed(box, width, layout.height + head + _PAD, placed, layout)


def _leaf_boxes(box: Rectangle) -> Iterator[Rectangle]:
    if not box.inside:
        yield box
    for child in box.inside:
        yield from _leaf_boxes(child)


def _settle(placed: _Placed, corner: Point, path: list[_Placed], where: dict[int, list[_Placed]]) -> None:
    """Give each box its corner in the picture, and remember the way to each that holds no others."""
    placed.corner = corner
    x, y = placed.origin
    where[id(placed.box)] = [*path, placed]
    for child, (dx, dy) in zip(placed.inside, placed.layout.corners, strict=True):
        _settle(child, (x + dx, y + dy), [*path, placed], where)


def _arrows(arrows: Sequence[Arrow], where: Mapping[int, list[_Placed]]) -> Iterator[str]:
    tips = []
    for arrow in arrows:
        points = _route(where[id(arrow.first)], where[id(arrow.last)])
        path = f"M{points[0][0]:.0f} {points[0][1]:.0f}"
        for (x, y), (to_x, to_y) in pairwise(points):
            middle = (y + to_y) / 2
            path += f"C{x:.0f} {middle:.0f} {to_x:.0f} {middle:.0f} {to_x:.0f} {to_y:.0f}"
        x, y = points[-1]
        tips.append(f"M{x:.0f} {y:.0f}l-3 -6h6z")
        yield (f'<path class="arrow" fill="none" stroke="#8c959f" d="{path}"><title>{_text(arrow.hint)}</title></path>')
    if tips:
        yield f'<path class="tips" fill="#8c959f" d="{"".join(tips)}"/>'


def _route(start: list[_Placed], end: list[_Placed]) -> list[Point]:
    """From the bottom of one box to the top of another, past the boxes in between and those beside either."""
    depth = next(i for i, (one, other) in enumerate(zip(start, end, strict=False)) if one is not other)
    out = [_bends(start[i], start[i + 1], None) for i in reversed(range(depth, len(start) - 1))]
    into = [_bends(end[i], None, end[i + 1]) for i in range(depth, len(end) - 1)]
    across = _bends(start[depth - 1], start[depth], end[depth])
    (left, top), (to_left, to_top) = start[-1].corner, end[-1].corner
    begin = (left + start[-1].width / 2, top + start[-1].height)
    middle = [point for bends in (*out, across, *into) for point in bends]
    return [begin, *middle, (to_left + end[-1].width / 2, to_top)]


def _bends(common: _Placed, first: _Placed | None, last: _Placed | None) -> list[Point]:
    """Where an arrow passes within one box, from one of those in it to another; None is outside."""
    x, y = common.origin
    numbers = (OUTSIDE if one is None else common.number[id(one)] for one in (first, last))
    return [(x + dx, y + dy) for dx, dy in common.layout.bends.get((next(numbers), next(numbers)), ())]


def _hulls(placed: _Placed) -> Iterator[str]:
    """What holds others, from the outside."""
    box = placed.box
    if not box.inside:
        return
    x, y = placed.corner
    number = "" if box.number is None else f' data-region="{box.number}"'
    color = _color(box.executor)
    fill = (
        f'fill="{color}" fill-opacity="0.1" stroke="{color}"'
        if box.kind == "region"
        else 'fill="none" stroke="#59636e"'
    )
    dashes = (
        ' stroke-dasharray="5 4"' if box.kind == "repeat" else ' stroke-dasharray="1 3"' if box.kind == "island" else ""
    )
    yield f'<g class="{_classes(box)}"{number}><title>{_text(box.hint)}</title>'
    yield (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{placed.width:.1f}" height="{placed.height:.1f}" rx="9" {fill}{dashes}/>'
    )
    for row, line in enumerate(box.lines):
        strong = ' font-weight="600"' if row == 0 else ""
        yield f'<text x="{x + _PAD:.1f}" y="{y + 15 + row * _LINE:.1f}"{strong}>{_text(line)}</text>'
    yield "</g>"
    for child in placed.inside:
        yield from _hulls(child)


def _leaves(placed: _Placed) -> Iterator[str]:
    """What holds no others."""
    box = placed.box
    for child in placed.inside:
        yield from _leaves(child)
    if box.inside:
        return
    x, y = placed.corner
    middle = x + placed.width / 2
    dashes = ' stroke-dasharray="3 2"' if "again" in box.kind else ""
    round_ = placed.height / 2 if box.kind == "end" else 3
    fill = ' fill="#fff3d6"' if box.kind == "anchor" else ' fill="#ffffff"'
    yield f'<g class="{_classes(box)}"><title>{_text(box.hint)}</title>'
    yield (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{placed.width:.1f}" height="{placed.height:.1f}" rx="{round_:g}"'
        f'{fill} stroke="#8c959f"{dashes}/>'
    )
    for row, line in enumerate(box.lines):
        style = "" if row == 0 else ' class="small" font-size="10.5"'
        yield f'<text x="{middle:.1f}" y="{y + 15 + row * _LINE:.1f}" text-anchor="middle"{style}>{_text(line)}</text>'
    yield "</g>"


def _legend(shown: Picture) -> Iterator[tuple[str, str, str]]:
    """Class, executor and text of each swatch."""
    for executor, times in sorted((name, times) for name, times in shown.counts.items() if name and times):
        yield "region", executor, f"{executor}: {counted(times, 'region')}"
    if shown.alone:
        yield "alone", "aten", f"alone under ATen: {shown.alone}"
    kinds = {leaf.kind for box in shown.boxes for leaf in _leaf_boxes(box)}
    if "anchor" in kinds:
        yield "anchor", "", f"anchor: {shown.counts['']}"
    if any("again" in kind for kind in kinds):
        yield "again", "", "computed once more"
    if any(box.kind == "repeat" for box in shown.boxes):
        yield "repeat", "", "drawn once"
    if any(box.kind == "island" or child.kind == "island" for box in shown.boxes for child in box.inside):
        yield "island", "", "island: may be fused"


def _legend_width(legend: Sequence[tuple[str, str, str]]) -> float:
    return sum(len(text) * _LETTER + 40 for _, _, text in legend)


def _swatches(legend: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    x = _MARGIN
    for kind, executor, text in legend:
        own = (
            f'fill="{_color(executor)}"'
            if kind == "region"
            else 'fill="#fff3d6"'
            if kind == "anchor"
            else 'fill="none"'
        )
        dashes = {
            "again": ' stroke-dasharray="3 2"',
            "repeat": ' stroke-dasharray="5 4"',
            "island": ' stroke-dasharray="1 3"',
        }
        by = f"{'swatch' if kind == 'region' else kind} by-{color_word(executor)}" if executor else kind
        yield (
            f'<g class="{by}"><rect x="{x:.1f}" y="50" width="14" height="10" rx="2" {own} stroke="#8c959f"'
            f"{dashes.get(kind, '')}/></g>"
            f'<text class="small" x="{x + 20:.1f}" y="59">{_text(text)}</text>'
        )
        x += len(text) * _LETTER + 40


def _classes(box: Rectangle) -> str:
    return f"{box.kind} by-{color_word(box.executor)}" if box.executor else box.kind


def _color(executor: str) -> str:
    return colors()[color_word(executor)][0]


def _said(text: str) -> str:
    """Text that XML may hold: names may come from others."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _text(text: str) -> str:
    return escape(_said(text))
