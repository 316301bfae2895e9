"""What stands before every page: who may ask, for what, and how. A refusal is one line that holds nothing of the request."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fuseplan.tuning_db.dashboard.ask import MOST_BYTES, Refused

COOKIE = "fuseplan"
LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
METHODS = ("GET", "HEAD")
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
)
_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9_]([a-z0-9._-]{0,252}))(:\d{1,5})?")


def csp(styles: Iterable[str]) -> str:
    """The Content-Security-Policy of a served page: scripts are files of ours, and no style stands in a page."""
    style = " ".join(("style-src 'self'", *styles))
    return "; ".join((
        "default-src 'none'", "script-src 'self'", style, "img-src 'self' data:", "connect-src 'self'",
        "base-uri 'none'", "form-action 'self'", "frame-ancestors 'none'",
    ))  # fmt: skip


class Guard:
    """Middleware: GET alone, from hosts that we are, by pages that are ours, and with the token where there is one."""

    def __init__(
        self, app: ASGIApp, *, hosts: Iterable[str] = LOOPBACK, token: str | None = None, styles: Iterable[str] = ()
    ) -> None:
        """`styles` are the hashes of inline styles that are ours."""
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._token = token
        self._headers = (*HEADERS, (b"content-security-policy", csp(styles).encode()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in self._headers}
                kept = [(name, value) for name, value in message.get("headers", ()) if name.lower() not in own]
                message = {**message, "headers": [*kept, *self._headers]}
            await send(message)

        try:
            answer = self._answer(scope)
        except Refused as refused:
            allow = {"Allow": ", ".join(METHODS)} if refused.status == 405 else None
            answer = PlainTextResponse(refused.text + "\n", refused.status, allow)
        await (answer or self._app)(scope, receive, guarded)

    def _answer(self, scope: Scope) -> Response | None:
        """None where the request may pass; a redirect that sets the cookie; or Refused."""
        headers: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value.decode("latin-1"))
        host = _host(headers)
        if re.sub(r":\d+$", "", host) not in self._hosts:
            raise Refused(400, "this server does not go by that name")
        if scope["method"] not in METHODS:
            raise Refused(405, f"only {' and '.join(METHODS)} are answered")
        if headers.get(b"content-length", ["0"]) != ["0"] or b"transfer-encoding" in headers:
            raise Refused(400, "a request has no body here")
        if not _from_here(headers, host):
            raise Refused(403, "a page from elsewhere may not ask for this")
        if len(scope["query_string"]) > MOST_BYTES:
            raise Refused(414, "the query string is too long")
        return self._admit(scope, headers) if self._token is not None else None

    def _admit(self, scope: Scope, headers: dict[bytes, list[str]]) -> Response | None:
        assert self._token is not None
        given = _cookies(headers).get(COOKIE)
        if given is not None and _equal(given, self._token):
            return None
        if any(_equal(value, f"Bearer {self._token}") for value in headers.get(b"authorization", ())):
            return None
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), errors="replace")
        if not any(name == "token" and _equal(value, self._token) for name, value in pairs):
            raise Refused(401, "this dashboard is opened with the link that fuseplan dashboard has printed")
        # The token leaves the address at once: it would stand in the history, and in what somebody copies.
        rest = urlencode([(name, value) for name, value in pairs if name != "token"])
        path = scope["path"] if re.fullmatch(r"/[a-z.]*", scope["path"]) else "/"
        answer = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
        answer.set_cookie(COOKIE, self._token, httponly=True, samesite="strict", path="/")
        return answer


def _host(headers: dict[bytes, list[str]]) -> str:
    found = headers.get(b"host", [])
    if len(found) != 1 or not _HOST.fullmatch(found[0].lower()):
        raise Refused(400, "this server does not go by that name")
    return found[0].lower()


def _from_here(headers: dict[bytes, list[str]], host: str) -> bool:
    """Whether a page of ours asks, or a person: a link that somebody follows may stand anywhere."""
    if any(origin not in (f"http://{host}", f"https://{host}") for origin in headers.get(b"origin", ())):
        return False
    site = headers.get(b"sec-fetch-site", ["none"])
    followed = headers.get(b"sec-fetch-mode") == ["navigate"] and headers.get(b"sec-fetch-dest") == ["document"]
    return site in (["none"], ["same-origin"]) or followed


def _cookies(headers: dict[bytes, list[str]]) -> dict[str, str]:
    try:
        found = SimpleCookie("; ".join(headers.get(b"cookie", ())))
    except CookieError:
        return {}
    return {name: morsel.value for name, morsel in found.items()}


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))
