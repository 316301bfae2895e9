"""All pages in one file that works from a disk without a network: style, scripts, Plotly and data are within it."""

from __future__ import annotations

import gzip
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from markupsafe import Markup

from fuseplan.errors import OptionError
from fuseplan.tuning_db import clock
from fuseplan.tuning_db.dashboard.ask import Ask, NotThere, parse, written
from fuseplan.tuning_db.dashboard.assets import Asset, assets, csp_hash, plotly_styles, scripts
from fuseplan.tuning_db.dashboard.page import Page
from fuseplan.tuning_db.dashboard.pages import PAGES
from fuseplan.tuning_db.dashboard.reader import Reader, readers
from fuseplan.tuning_db.dashboard.render import ExportedLinks, PageFrame, View, section_id
from fuseplan.tuning_db.whole_files import refuse_database, written_whole


def export_file(databases: Sequence[Path], path: Path) -> tuple[int, int]:
    """Write the pages of the first database into one file, the others being there to be compared with: its bytes and sections."""
    refuse_database(path, *databases)
    known = readers(databases)
    reader = next(iter(known.values()))
    wanted = sections(reader)
    text = document(reader, wanted)
    with written_whole(path) as part:
        part.write_bytes(text)
    return len(text), len(wanted)


def sections(reader: Reader) -> dict[str, tuple[Page, Ask]]:
    """Each page that the file holds, by the id of its section."""
    found: dict[str, tuple[Page, Ask]] = {}
    for page in PAGES:
        for params in page.exports(reader, Ask()):
            found[section_id(page.name, params)] = (page, parse(written(params), page.params))
    return found


def document(reader: Reader, wanted: dict[str, tuple[Page, Ask]]) -> bytes:
    """The whole file."""
    views: list[tuple[View, Markup]] = []
    links = ExportedLinks(frozenset(wanted))
    for name, (page, ask) in wanted.items():
        try:
            data = page.load(reader, ask)
        except NotThere:  # deleted since it was listed
            continue
        view = View(page, ask, data, replace(links, section=name), name)
        views.append((view, view.html()))
    files = assets()
    plotly = files["plotly.js"]
    inline = scripts(files)
    frame = PageFrame(PAGES, files, reader.name, tuple(reader.others))
    made = frame.exported(
        views, links, csp=_csp([*inline, plotly], [files["dashboard.css"]], plotly), plotly=_packed(plotly), style=Markup(_within(files["dashboard.css"], "style")),
        icon=files["icon.svg"], scripts=[Markup(_within(asset, "script")) for asset in inline], when=clock.now(),
    )  # fmt: skip
    return made.encode("utf-8", "replace")


def _csp(inline: Sequence[Asset], styles: Sequence[Asset], plotly: Asset) -> str:
    """Nothing may run, and nothing may style, but what stands in the file; nothing is fetched."""
    run = " ".join(csp_hash(asset.content) for asset in inline)
    style = " ".join([*(csp_hash(asset.content) for asset in styles), *plotly_styles(plotly)])
    return (
        f"default-src 'none'; script-src {run}; style-src {style}; img-src data:; base-uri 'none'; form-action 'none'"
    )


def _packed(asset: Asset) -> str:
    """A script that the page unpacks when it needs it: it is nine tenths of the file, and packed less than half as long."""
    return b64encode(gzip.compress(asset.content, mtime=0)).decode("ascii")


def _within(asset: Asset, element: str) -> str:
    """The text of a style or a script as it may stand within its element: then its hash is that of the file."""
    text = asset.text
    if f"</{element}" in text.lower() or "<!--" in text or "\r" in text:
        raise OptionError(f"{asset.name} cannot stand within a page: export with another version of plotly")
    return text
