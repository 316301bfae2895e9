"""One renderer for the served and the exported page: the same templates, with other links and another frame."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fuseplan import __version__
from fuseplan.tuning_db.dashboard.ask import Ask, written
from fuseplan.tuning_db.dashboard.assets import Asset
from fuseplan.tuning_db.dashboard.charts import Figure, data_block
from fuseplan.tuning_db.dashboard.download import table_data
from fuseplan.tuning_db.dashboard.formats import FILTERS
from fuseplan.tuning_db.dashboard.page import Page
from fuseplan.tuning_db.dashboard.parts import badge, bar, cells, heads, link, table_cell
from fuseplan.tuning_db.dashboard.queries.filters import Filter, told

TEMPLATES = Path(__file__).parent / "templates"


@cache
def templates() -> Environment:
    """All templates: they escape whatever they are given, and fail on a name that is not there."""
    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(FILTERS, versions=told)
    found.globals.update(
        data_block=data_block, drawing=drawing, link=link, bar=bar, badge=badge, heads=heads, cells=cells,
        table_cell=table_cell, page_rows=page_rows,
    )  # fmt: skip
    return found


def page_rows(page: Any) -> Markup:
    """All rows of a table, for the script of an exported page."""
    return data_block(table_data(page.columns, page.rows))


def drawing(svg: str, label: str) -> Markup:
    """A drawing as an image: what is within it can neither run nor reach the page.

    >>> drawing("<svg/>", "a graph")
    Markup('<img class="drawing" alt="a graph" src="data:image/svg+xml;base64,PHN2Zy8+">')
    """
    packed = b64encode(svg.encode("utf-8", "replace")).decode("ascii")
    return Markup('<img class="drawing" alt="{}" src="data:image/svg+xml;base64,{}">').format(label, packed)


@dataclass(frozen=True)
class Served:
    """Links of a page that is served: they carry the database and the filters on."""

    common: Mapping[str, str]
    exported = False

    def url(self, name: str, **params: object) -> str:
        """The path and query string of another page."""
        query = written({**self.common, **{key: str(value) for key, value in params.items() if value is not None}})
        path = "/" if name == "overview" else f"/{name}"
        return f"{path}?{query}" if query else path

    def uid(self, name: str) -> str:
        """An id: there is one page in a document."""
        return name


@dataclass(frozen=True)
class ExportedLinks:
    """Links within an exported file: to its sections, and only to those that it has."""

    sections: Collection[str]
    section: str = ""
    exported = True

    def url(self, name: str, **params: object) -> str:
        """The fragment of a section, or nothing."""
        wanted = section_id(name, {key: str(value) for key, value in params.items() if value is not None})
        return f"#{wanted}" if wanted in self.sections else ""

    def uid(self, name: str) -> str:
        """An id that no other section has."""
        return f"{self.section}--{name}"


def section_id(name: str, params: Mapping[str, str]) -> str:
    """The id of one page in an exported file.

    >>> section_id("program", {"key": "ab12"})
    'program-ab12'
    """
    return "-".join([name, *(params[key] for key in sorted(params) if params[key])])


@dataclass(frozen=True)
class View:
    """One page that is loaded: what its template needs to be shown."""

    page: Page
    ask: Ask
    data: object
    links: Served | ExportedLinks
    id: str = ""

    def unfiltered(self) -> str:
        """Path of this page without filters."""
        own = {name: self.ask[name] for name in (*self.page.own, "db") if self.ask[name]}
        return f"{self.page.path}?{written(own)}" if own else self.page.path

    def html(self) -> Markup:
        """The inside of its <main>."""

        def chart(figure: Figure) -> Markup:
            return Markup(templates().get_template("chart.html").render(figure=figure, uid=self.links.uid))

        found = templates().get_template(self.page.template).render(
            page=self.data, ask=self.ask, url=self.links.url, uid=self.links.uid, exported=self.links.exported, chart=chart
        )  # fmt: skip
        return Markup(found)


@dataclass(frozen=True)
class PageFrame:
    """What stands around the pages."""

    pages: tuple[Page, ...]
    assets: Mapping[str, Asset]
    database: str
    databases: tuple[str, ...]
    choices: Sequence[Filter] = ()

    def served(self, view: View) -> str:
        """One page as a document."""
        return self._render("served.html", view=view, url=view.links.url, ask=view.ask, choices=self.choices)

    def exported(
        self, views: Sequence[tuple[View, Markup]], links: ExportedLinks, *, icon: Asset, **more: object
    ) -> str:  # fmt: skip
        """All pages as one document."""
        packed = b64encode(icon.content).decode("ascii")
        return self._render("exported.html", views=views, url=links.url, icon=packed, **more)

    def message(self, title: str, text: str, links: Served, ask: Ask) -> str:
        """A page that says only this."""
        return self._render("message.html", title=title, text=text, url=links.url, ask=ask)

    def _render(self, name: str, **more: Any) -> str:
        return templates().get_template(name).render(
            pages=self.pages, assets=self.assets, database=self.database, databases=self.databases,
            version=__version__, **more
        )  # fmt: skip
