"""Addresses of plan files on other machines, as FUSEPLAN_SHARED names them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit, urlunsplit

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PIN = re.compile(r"sha256=([0-9a-fA-F]{64})")
_ODD = re.compile(r"[\s\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Address:
    """Where a plan file is fetched from."""

    url: str
    """Without who asks, and without what pins the content."""
    pinned: str | None = None
    """The SHA-256 that the file must have, as `#sha256=…` says."""
    login: str | None = None
    """Name and password, which no message shows."""
    wrong: str | None = None
    """Why it is no address, where it looks like one; what it says is not shown, since it may hold a password."""

    @staticmethod
    def parse(text: str) -> Address | None:
        """The address that a text is; None where it is the path of a file.

        >>> Address.parse("https://ada:secret@plans.example/all.jsonl.gz").shown, Address.parse("/data/plans.db")
        ('https://plans.example/all.jsonl.gz', None)
        >>> Address.parse("http://[::1/plans").wrong, Address.parse("ftp://plans.example/a").wrong
        ('it is no address', 'it is neither a file nor an http or https address')
        """
        if not _SCHEME.match(text):
            return None
        if not text.lower().startswith(("http://", "https://")):
            return Address("", wrong="it is neither a file nor an http or https address")
        try:
            parts = urlsplit(text)
            _ = parts.port
        except ValueError:
            return Address("", wrong="it is no address")
        if not parts.hostname or _ODD.search(text):
            return Address("", wrong="it is no address")
        pin = _PIN.fullmatch(parts.fragment)
        if parts.fragment and pin is None:
            return Address("", wrong="behind its # is no sha256= with 64 hex digits")
        login, at, host = parts.netloc.rpartition("@")
        url = urlunsplit((parts.scheme, host, parts.path, parts.query, ""))
        return Address(url, pin[1].lower() if pin else None, unquote(login) if at else None)

    @property
    def shown(self) -> str:
        """What messages call it: a query may hold a token."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))

    @property
    def file_name(self) -> str:
        """What the database is called that is made of it."""
        asked = f"{self.url} {self.pinned} {self.login}"
        return f"{hashlib.sha256(asked.encode()).hexdigest()[:24]}.db"
