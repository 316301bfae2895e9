"""A file from a web server: no longer than it may be, within a time that no server can stretch, and from nowhere less safe."""

from __future__ import annotations

import base64
import hashlib
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urljoin, urlsplit

from fuseplan.errors import StoreError
from fuseplan.tuning_db.addresses import Address

MOST_BYTES = 256 * 2**20
"""A longer file is refused."""
_CHUNK = 2**16
_REDIRECTS, _LEADS_ON = 5, (301, 302, 303, 307, 308)


class RefusedError(StoreError):
    """What came, or did not come, is no plan file that may be used."""


@dataclass(frozen=True)
class Download:
    """What came, beside the file itself."""

    digest: str
    etag: str
    modified: str


class Deadline:
    """Cuts its connections off when the time is over: who sends one byte now and then would hold up a read for ever, in the middle
    of headers too. Looking up a name alone has the limits of the system.
    """

    def __init__(self, within_s: float) -> None:
        self._within_s, self._until = within_s, time.monotonic() + within_s
        self._held: list[socket.socket] = []
        self._lock = threading.Lock()
        self._timer = threading.Timer(within_s, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> Deadline:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._lock:
            for held in self._held:
                held.close()
            self._held.clear()

    def left(self) -> float:
        """The seconds that are left; RefusedError where there are none."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise RefusedError(f"it did not come within {self._within_s:g} s")
        return left

    def connect(self, address: tuple[str, int], *given: object) -> socket.socket:
        """What `socket.create_connection` gives, to be cut off in time; more is `given` that is not needed."""
        problem = OSError("its name has no address")
        for *_, place in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
            try:
                found = socket.create_connection((str(place[0]), int(place[1])), self.left())
            except OSError as error:  # the next address may answer
                problem = error
                continue
            with self._lock:
                self._held.append(found.dup())  # TLS takes the socket itself over
            return found
        raise problem

    def _cut(self) -> None:
        with self._lock:
            for held in self._held:
                with suppress(OSError):  # the other side was first
                    held.shutdown(socket.SHUT_RDWR)


def download(address: Address, etag: str, modified: str, into: Path, deadline: Deadline) -> Download | None:
    """Write what an address gives into a file; None where that is still what had this tag, or this date."""
    try:
        return _asked(address, _Asked(etag, modified), into, deadline)
    except (OSError, HTTPException):
        deadline.left()  # which is why, where it is over
        raise


@dataclass(frozen=True)
class _Asked:
    etag: str
    modified: str

    def headers(self) -> dict[str, str]:
        found = {"User-Agent": "fuseplan", "Accept-Encoding": "identity"}
        if self.etag:
            found["If-None-Match"] = self.etag
        elif self.modified:
            found["If-Modified-Since"] = self.modified
        return found


def _asked(address: Address, asked: _Asked, into: Path, deadline: Deadline) -> Download | None:
    url, login, opener = address.url, address.login, _opener(deadline)
    for _ in range(_REDIRECTS):
        request = urllib.request.Request(url, headers=asked.headers())
        if login is not None:
            request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
        try:
            with opener.open(request, timeout=deadline.left()) as answer:
                return _received(answer, into, deadline)
        except urllib.error.HTTPError as error:
            error.close()  # what it says beside its headers is not read
            if error.code == 304 and (asked.etag or asked.modified):
                return None
            if error.code not in _LEADS_ON:
                raise RefusedError(f"the server answers {error.code}") from None
            url, login = _redirected(error, url), None
        except urllib.error.URLError as error:
            deadline.left()
            raise RefusedError(f"it cannot be had: {in_a_line(error.reason)}") from None
    raise RefusedError(f"it leads on more than {_REDIRECTS} times")


def _received(answer: Any, into: Path, deadline: Deadline) -> Download:
    digest, size = hashlib.sha256(), 0
    with into.open("wb") as file:
        while chunk := answer.read1(_CHUNK):
            size += len(chunk)
            if size > MOST_BYTES:
                raise RefusedError(f"it is longer than {MOST_BYTES >> 20} MiB")
            deadline.left()
            digest.update(chunk)
            file.write(chunk)
    deadline.left()  # what was cut off looks as if it had ended
    said = answer.headers
    if not size:
        raise RefusedError("it is empty")
    length = said.get("Content-Length")
    if length is not None and length.isdecimal() and int(length) != size:
        raise RefusedError("the server broke off before its end")
    return Download(digest.hexdigest(), said.get("ETag", ""), said.get("Last-Modified", ""))


class _CutOff(urllib.request.AbstractHTTPHandler):
    """Has connections made by a deadline."""

    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def do_open(self, http_class: Any, req: urllib.request.Request, **arguments: Any) -> HTTPResponse:
        """Ask, as the class above does."""
        return super().do_open(partial(self._made, http_class), req, **arguments)

    def _made(self, http_class: Callable[..., HTTPConnection], *given: Any, **named: Any) -> HTTPConnection:
        found = http_class(*given, **named)
        found._create_connection = self._deadline.connect  # type: ignore[attr-defined]  # before TLS, and before a proxy answers
        return found


class _CutOffHttp(_CutOff, urllib.request.HTTPHandler):
    pass


class _CutOffHttps(_CutOff, urllib.request.HTTPSHandler):
    pass


def _opener(deadline: Deadline) -> urllib.request.OpenerDirector:
    """What asks http and https alone: neither files nor anything else that urllib knows. Cookies are kept from one answer to the next,
    as a dashboard sets one for who has its token.
    """
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(), _CutOffHttp(deadline), _CutOffHttps(deadline), urllib.request.HTTPCookieProcessor(),
        urllib.request.HTTPErrorProcessor(), urllib.request.HTTPDefaultErrorHandler(),
    ):  # fmt: skip
        opener.add_handler(handler)
    return opener


def _redirected(error: urllib.error.HTTPError, url: str) -> str:
    """Where an answer leads: nowhere that is less safe."""
    there = urljoin(url, error.headers.get("Location", ""))
    new, old = urlsplit(there).scheme, urlsplit(url).scheme
    if new not in ("http", "https") or (old == "https" and new != "https"):
        raise RefusedError(f"it leads from {old} to {new or 'nowhere'}")
    return there


def in_a_line(error: object) -> str:
    """What went wrong, in a line that holds nothing of the address."""
    if isinstance(error, TimeoutError):
        return "the server does not answer"
    if isinstance(error, HTTPException):  # whose words may hold the address
        return f"the server is not understood ({type(error).__name__})"
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
