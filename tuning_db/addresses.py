"""What FUSEPLAN_SHARED names: a file, or the address of one on another machine."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
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


@dataclass(frozen=True)
class SharedPlans:
    """Plans of an organisation, wherever they are."""

    named: Path | Address
    made: Path | None
    """The database of our own that is made of them, where they are no database of this machine; None where there is no place for it."""

    @staticmethod
    def of(named: str, folder: Path | None, schema: int) -> SharedPlans:
        """What a text means. What is made of it goes into a folder; another schema, or another pin, is another file.

        >>> SharedPlans.of("/data/all.jsonl", Path("/cache"), 5).made.name
        '5-23d3348984a6d10f23c362a3.db'
        """
        found = Address.parse(named) or Path(named).absolute()
        told = f"{found.url} {found.pinned} {found.login}" if isinstance(found, Address) else str(found)
        name = f"{schema}-{hashlib.sha256(told.encode('utf-8', 'surrogateescape')).hexdigest()[:24]}.db"
        return SharedPlans(found, None if folder is None else folder / name)

    @property
    def shown(self) -> str:
        """What messages call it."""
        return self.named.shown if isinstance(self.named, Address) else str(self.named)
