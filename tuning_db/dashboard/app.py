"""The served dashboard as an ASGI application: pages, assets, downloads. What stands before them is in `guard`."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from fuseplan.tuning_db.dashboard import plan_file
from fuseplan.tuning_db.dashboard.ask import Ask, NotThere, Param, Refused, parse
from fuseplan.tuning_db.dashboard.assets import Asset, assets, plotly_styles
from fuseplan.tuning_db.dashboard.download import HasTable, download
from fuseplan.tuning_db.dashboard.guard import LOOPBACK, Guard
from fuseplan.tuning_db.dashboard.kept import KeptAnswers
from fuseplan.tuning_db.dashboard.page import Page
from fuseplan.tuning_db.dashboard.pages import DOWNLOADS, PAGES
from fuseplan.tuning_db.dashboard.plan_file import KeptPlanFile, is_known
from fuseplan.tuning_db.dashboard.queries.filters import choices
from fuseplan.tuning_db.dashboard.reader import Reader, readers, trouble
from fuseplan.tuning_db.dashboard.render import PageFrame, Served, View
from fuseplan.tuning_db.files import Unusable

_Endpoint = Callable[[Request], Awaitable[Response]]


def create_app(
    databases: Iterable[Path], *, token: str | None = None, hosts: Iterable[str] = LOOPBACK, ahead: bool = False
) -> ASGIApp:
    """The application for these files. `hosts` are the names that it answers to; with a `token`, only to who knows it.
    `ahead` reads what the first page shows before somebody asks for it.

    >>> callable(create_app([Path("tuning.db")]))
    True
    """
    files = assets()
    site = _Site(readers(databases), files)
    if ahead:
        threading.Thread(target=site.look_ahead, daemon=True).start()
    app = Starlette(routes=site.routes(), exception_handlers={404: _nothing, 405: _nothing, Exception: _failed})
    app.router.redirect_slashes = False
    return Guard(
        app, hosts=hosts, token=token, styles=plotly_styles(files["plotly.js"])
    )  # outermost: its headers stand on what fails, too


_KEPT_S = 10.0
_EXPORTERS = 4
"""Threads that wait for an export, or make one: the others are for pages."""


@dataclass(frozen=True)
class _Answer:
    body: bytes
    type: str
    name: str = ""


class _Site:
    def __init__(self, known: Mapping[str, Reader], files: Mapping[str, Asset]) -> None:
        self._readers = known
        self._assets = files
        self._kept = KeptAnswers(32)
        self._plan_files = {name: KeptPlanFile(reader) for name, reader in known.items()}
        self._exporters = CapacityLimiter(_EXPORTERS)

    def routes(self) -> list[Route]:
        found = [Route(page.path, self._endpoint(page)) for page in PAGES]
        found.append(Route(plan_file.PATH, self._plans))
        found += [
            Route(f"/{page.name}.{ending}", self._endpoint(page, ending))
            for page in DOWNLOADS
            for ending in ("csv", "json")
        ]
        return found + [Route(asset.path, _fixed(asset)) for asset in self._assets.values()]

    def look_ahead(self) -> None:
        """Read what the first page shows, while a browser is still starting."""
        with suppress(Refused):
            self._load(PAGES[0], Ask(), self._reader(Ask()), "")

    def _endpoint(self, page: Page, ending: str = "") -> _Endpoint:
        async def answer(request: Request) -> Response:
            try:
                ask = _asked(request, page.params)
                reader = self._reader(ask)
                found = await run_in_threadpool(self._load, page, ask, reader, ending)
            except Refused as refused:
                return PlainTextResponse(refused.text + "\n", refused.status)
            headers = {"cache-control": "no-store"}
            if found.name:
                headers["content-disposition"] = f'attachment; filename="{found.name}"'
            return Response(found.body, media_type=found.type, headers=headers)

        return answer

    async def _plans(self, request: Request) -> Response:
        """The whole database, for the machines of an organisation."""
        try:
            ask = _asked(request, ())
            if ask.filters.any():
                raise Refused(400, "the file of plans has all of them: nothing narrows it")
            kept = self._plan_files[self._reader(ask).name]
            found = await to_thread.run_sync(kept.now, limiter=self._exporters)
        except Refused as refused:
            return PlainTextResponse(refused.text + "\n", refused.status)
        except Unusable as problem:
            return PlainTextResponse(trouble(problem) + "\n", 409)
        except OSError:
            return PlainTextResponse("this machine has no room to write the file\n", 503)
        headers = {"etag": found.etag, "cache-control": "private, no-cache"}
        if is_known(found.etag, request.headers.get("if-none-match", "")):
            return Response(status_code=304, headers=headers)
        headers["content-length"] = str(found.size)
        headers["content-disposition"] = f'attachment; filename="{plan_file.PATH[1:]}"'
        if request.method == "HEAD":
            return Response(media_type="application/gzip", headers=headers)
        return StreamingResponse(found.chunks(), media_type="application/gzip", headers=headers)

    def _reader(self, ask: Ask) -> Reader:
        if ask["db"]:
            if ask["db"] not in self._readers:
                raise NotThere("there is no such database")
            return self._readers[ask["db"]]
        return next(iter(self._readers.values()))

    def _load(self, page: Page, ask: Ask, reader: Reader, ending: str) -> _Answer:
        if ending or page.live:  # long, and asked for once; or true of this moment alone
            return self._make(page, ask, reader, ending)
        # Some pages tell how long ago something was: none is older than this.
        tokens = (int(time.monotonic() / _KEPT_S), *(one.token() for one in self._readers.values()))
        key = (page.name, tuple(sorted(ask.values.items())))
        return self._kept.get(key, tokens, lambda: self._make(page, ask, reader, ending))

    def _make(self, page: Page, ask: Ask, reader: Reader, ending: str) -> _Answer:
        frame = PageFrame(PAGES, self._assets, reader.name, tuple(self._readers))
        links = Served(ask.common())
        try:
            data = page.load(reader, ask)
            if ending:
                assert isinstance(data, HasTable), page.name
                return _Answer(*download(data, ending), f"{page.name}.{ending}")
            offered = reader.remembered("choices", choices)
        except Unusable as problem:
            if ending:
                raise Refused(409, trouble(problem)) from None
            return _Answer(frame.message("This database cannot be shown", trouble(problem), links, ask).encode(), _HTML)
        frame = PageFrame(PAGES, self._assets, reader.name, tuple(self._readers), offered)
        return _Answer(frame.served(View(page, ask, data, links)).encode("utf-8", "replace"), _HTML)


_HTML = "text/html; charset=utf-8"


def _asked(request: Request, params: Iterable[Param]) -> Ask:
    """What a request asks for; Refused where that is not understood."""
    if request.scope["raw_path"] != request.scope["path"].encode():  # one spelling of each path
        raise NotThere
    return parse(request.scope["query_string"].decode("latin-1"), params)


def _fixed(asset: Asset) -> _Endpoint:
    async def answer(request: Request) -> Response:
        if request.scope["query_string"]:
            return PlainTextResponse("there is no such page\n", 404)
        headers = {"cache-control": "public, max-age=31536000, immutable"}
        return Response(asset.content, media_type=asset.type, headers=headers)

    return answer


async def _nothing(request: Request, error: Exception) -> Response:
    return PlainTextResponse("there is no such page\n", 404)


async def _failed(request: Request, error: Exception) -> Response:
    return HTMLResponse("<!doctype html><title>fuseplan</title><p>This page failed: see the terminal.", 500)
