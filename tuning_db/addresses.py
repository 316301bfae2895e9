"""Addresses of plan files on other machines, as FUSEPLAN_SHARED names them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit, urlunsplit


@dataclass(frozen=True)
class Address:
    """Where a plan file is fetched from."""

    url: str
    """Without who asks, and without what pins the content."""
    pinned: str | None = None
    """The SHA-256 that the file must have, as `#sha256=…` says."""
    login: str | None = None
    """Name and password, which no message shows."""

    @staticmethod
    def parse(text: str) -> Address | None:
        """The address that a text is; None where it is the path of a file.

        >>> Address.parse("https://ada:secret@plans.example/all.jsonl.gz").shown, Address.parse("/data/plans.db")
        ('https://plans.example/all.jsonl.gz', None)
        """
        if not text.startswith(("http://", "https://")):
            return None
        parts = urlsplit(text)
        name, _, pin = parts.fragment.partition("=")
        host = parts.netloc.rpartition("@")
        login = unquote(host[0]) if host[1] else None
        return Address(
            urlunsplit((parts.scheme, host[2], parts.path, parts.query, "")),
            pin.lower() if name == "sha256" else None,
            login,
        )

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
