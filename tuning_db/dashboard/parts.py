"""Small pieces of pages that more than one template shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup

from fuseplan.noise import band
from fuseplan.tuning_db.dashboard.formats import FILTERS, NONE, percent, times
from fuseplan.tuning_db.dashboard.table import Cell, ShownColumn

DOUBLINGS = 1.5
"""What fills one half of a bar: 2.8 times as fast, or as slow."""


def link(text: object, href: str, css: str = "") -> Markup:
    """A link, or only its text where there is nothing to link to.

    >>> link("<b>", "/program?key=ab")
    Markup('<a href="/program?key=ab">&lt;b&gt;</a>')
    >>> link("a", "")
    Markup('a')
    """
    if not href:
        return Markup("{}").format(text)
    if css:
        return Markup('<a class="{}" href="{}">{}</a>').format(css, href, text)
    return Markup('<a href="{}">{}</a>').format(href, text)


def bar(ratio: float | None, noise: float | None, verdict: str) -> Markup:
    """A speed-up as a bar to the right of 1×, or to its left; the noise is a band around 1×.

    >>> str(bar(None, None, "none"))
    ''
    """
    if ratio is None:
        return Markup()
    end = _place(ratio)
    half = _place(band(noise)[1]) - 50
    return Markup(
        '<svg class="bar {}" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="band" x="{:.2f}" y="0" width="{:.2f}" height="10"/>'
        '<rect class="fill" x="{:.2f}" y="2" width="{:.2f}" height="6"/>'
        '<rect class="one" x="49.6" y="0" width="0.8" height="10"/></svg>'
    ).format(verdict, 50 - half, 2 * half, min(50.0, end), abs(end - 50))


def _place(ratio: float) -> float:
    """Where a ratio stands on a bar, in percent."""
    doublings = math.log2(ratio) if ratio > 0 else -DOUBLINGS
    return 50 + 50 * min(1.0, max(-1.0, doublings / DOUBLINGS))


def ratio(value: float | None, noise: float | None) -> Markup:
    """A speed-up with its noise.

    >>> ratio(1.5, 0.01)
    Markup('<span class="number" data-value="1.5">1.50×</span> <span class="noise">± 1.0 %</span>')
    """
    if value is None:
        return Markup('<span class="number none">{}</span>').format(NONE)
    told = f"± {percent(noise)}" if noise is not None else "noise unknown"
    return Markup('<span class="number" data-value="{}">{}</span> <span class="noise">{}</span>').format(
        value, times(value), told
    )


def badge(word: str) -> Markup:
    """A verdict or a standing as a coloured word.

    >>> badge("good")
    Markup('<span class="badge good">good</span>')
    """
    return Markup('<span class="badge {}">{}</span>').format(word.split(" ")[0], word)


def histogram(bins: Sequence[int]) -> Markup:
    """A small distribution: what is left of the middle bin is slower. Bins at both ends that hold nothing are left out."""
    used = [place for place, times_ in enumerate(bins) if times_]
    if not used:
        return Markup()
    one = 3 * 8  # three doublings below 1×, eight bins each
    low, high = min(used[0], one - 8), max(used[-1], one + 8)
    most = max(bins)
    bars = [
        Markup('<rect class="{}" x="{}" y="{:.2f}" width="0.85" height="{:.2f}"/>').format(
            "slower" if place < one else "same" if place == one else "faster", place - low, 12 - height, height
        )
        for place in used
        if (height := max(0.6, 12 * bins[place] / most))
    ]
    return Markup(
        '<svg class="histogram" viewBox="0 0 {} 12" preserveAspectRatio="none" aria-hidden="true">{}</svg>'
    ).format(high - low + 1, Markup().join(bars))


def table_cell(
    column: ShownColumn[Any], cell: Cell, row: Sequence[Cell], page: Any, url: Callable[..., str]
) -> Markup:  # fmt: skip
    """One cell of the table of programs, as static/table.js writes it too."""
    kind = column.kind
    if kind == "link":
        inner = Markup("<bdi>{}</bdi>").format(link(cell, url("program", key=row[page.key])))
        return Markup('<th scope="row" class="name pin">{}</th>').format(inner)
    if column.id == "speedup":
        noise, verdict = row[page.noise], row[page.verdict]
        return Markup('<td class="right speedup">{}<span>{}</span></td>').format(
            bar(cell, noise, str(verdict or "none")), times(cell)  # type: ignore[arg-type]
        )  # fmt: skip
    return _cell(column, cell)


def heads(columns: Sequence[ShownColumn[Any]]) -> Markup:
    """The first row of a table."""
    one = Markup('<th scope="col"{}>{}</th>')
    told = (one.format(_RIGHT if column.numeric or column.right else "", column.title) for column in columns)
    return Markup("<thead><tr>{}</tr></thead>").format(Markup().join(told))


def cells(columns: Sequence[ShownColumn[Any]], item: object, url: Callable[..., str]) -> Markup:
    """The cells of one row; the first stands for the row."""
    first, *rest = columns
    name, to = first.value(item), first.to
    if to is not None:
        page, query = to(item)
        name = link(name, url(page, **query))
    told = Markup('<th scope="row"{}><bdi>{}</bdi></th>').format(Markup(' class="name"') if to else "", name)
    return Markup().join([told, *(_cell(column, column.value(item)) for column in rest)])


_RIGHT = Markup(' class="right"')


def _cell(column: ShownColumn[Any], cell: Cell) -> Markup:
    if column.kind == "verdict":
        return Markup("<td>{}</td>").format(badge(str(cell)) if cell else NONE)
    if column.kind == "standing":
        return Markup("<td>{}</td>").format(badge(str(cell)))
    if column.kind == "text":
        return Markup("<td><bdi>{}</bdi></td>").format(NONE if cell is None else cell)
    text = cell if column.kind == "html" else FILTERS[column.kind](cell)
    return Markup("<td{}>{}</td>").format(_RIGHT if column.numeric or column.right else "", text)
