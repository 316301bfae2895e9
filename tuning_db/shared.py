"""Plans of a whole organisation, at the address that FUSEPLAN_SHARED names: fetched now and then, checked row by row, and kept as a
database of our own in the cache, which is the layer that is read. Nothing of what was fetched is opened as a database by a look-up.

What cannot be had, or is refused, costs one line: what was fetched before serves, or there are no plans from there.
"""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import threading
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urljoin, urlsplit

from fuseplan.errors import StoreError
from fuseplan.tuning_db.addresses import Address
from fuseplan.tuning_db.files import SQL_ERRORS, Database
from fuseplan.wire import codec

WAIT_S = 5.0
"""A process waits so long, at most, where nothing was fetched yet; else it takes what there is, and the next one gets the new."""
FETCH_S = 120.0
"""In the background a fetch, with the check of what came, may take so long."""
AGE_S = 6 * 3600.0
"""What was looked for so lately is not looked for again: plans of an organisation change once a day."""
RETRY_S = 600.0
"""And where that has failed: who is off-line does not wait at each start."""
MOST_BYTES, MOST_UNPACKED = 256 * 2**20, 2**31
"""A longer file is refused, and one that unpacks to more."""
_CHUNK = 2**16
_REDIRECTS, _LEADS_ON = 5, (301, 302, 303, 307, 308)
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Fetched:
    """What is known of a file that was fetched, kept beside the database that was made of it."""

    address: str = ""
    digest: str = ""
    etag: str = ""
    modified: str = ""
    rows: int = 0
    fetched_at: float = 0.0
    looked_at: float = 0.0
    problem: str = ""
    """What was wrong when it was looked for last."""

    @staticmethod
    def beside(database: Path) -> Fetched:
        """What was kept; nothing where that cannot be read."""
        try:
            return codec.from_json(Fetched, _notes(database).read_bytes())
        except (OSError, codec.CodecError):
            return Fetched()

    def keep(self, database: Path) -> None:
        """Write it there, whole; where that cannot be, it is looked for again."""
        with suppress(OSError):
            part = _notes(database).with_name(f"{database.name}.{os.getpid()}.{threading.get_ident()}.part")
            part.write_text(codec.to_json(self), "utf-8")
            part.replace(_notes(database))

    @property
    def is_due(self) -> bool:
        """Whether to look for another."""
        return not 0 <= time.time() - self.looked_at < (RETRY_S if self.problem else AGE_S)


class RefusedError(StoreError):
    """What came, or did not come, is no plan file that may be used."""


def renew(address: Address, database: Path, say: Callable[[str], None], wait_s: float = WAIT_S) -> None:
    """See to it that the database of an address is there and not old, as far as that can be had in time."""
    if address.wrong is not None:
        say(f"FUSEPLAN_SHARED: {address.wrong}; there are no plans from there")
        return
    there, known = _opens(database), Fetched.beside(database)
    if there and not known.is_due:
        return
    if not there and known.problem and not known.is_due:
        say(f"FUSEPLAN_SHARED, {address.shown}: {known.problem}; there are no plans from there")
        return
    told: list[str] = []
    thread = threading.Thread(target=_renew, args=(address, database, known, told), name="fuseplan shared", daemon=True)
    thread.start()
    if there:
        return  # it serves meanwhile
    thread.join(wait_s)
    if thread.is_alive():
        told.append(f"it did not come within {wait_s:g} s")
        replace(known, address=address.shown, looked_at=time.time(), problem=told[0]).keep(database)
    if told:
        say(f"FUSEPLAN_SHARED, {address.shown}: {told[0]}; there are no plans from there")


def _opens(database: Path) -> bool:
    """Whether what was made of it is there, and whole as far as that shows at once."""
    if not database.exists():
        return False
    opened = Database(database, readonly=True)
    try:
        opened.read(lambda connection: connection.execute("SELECT count(*) FROM plan").fetchone())
    except (StoreError, *SQL_ERRORS):
        return False
    finally:
        opened.close()
    return True


def _renew(address: Address, database: Path, known: Fetched, told: list[str]) -> None:
    """Fetch it, and note what came of that."""
    now = replace(known, address=address.shown, looked_at=time.time(), problem="")
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        found = fetch(address, database, known if _opens(database) else Fetched())
        now = now if found is None else replace(found, address=address.shown, looked_at=now.looked_at)
    except RefusedError as error:
        now = replace(now, problem=str(error))
    except (OSError, HTTPException, StoreError, *SQL_ERRORS, ValueError) as error:
        now = replace(now, problem=f"it cannot be had: {_line(error)}")
    if now.problem:
        told.append(now.problem)
    now.keep(database)


def fetch(address: Address, database: Path, known: Fetched) -> Fetched | None:
    """Make the database of what the address gives now; None where that is what it was. Whatever was there stays until all is checked."""
    until = time.monotonic() + FETCH_S
    with TemporaryDirectory(prefix=f"{database.stem}.", dir=database.parent) as folder:
        fetched, headers = Path(folder) / "fetched", _download(address, known, Path(folder) / "fetched", until)
        if headers is None:
            return None
        digest = headers["digest"]
        if address.pinned is not None and digest != address.pinned:
            raise RefusedError(f"its SHA-256 is {digest}, where {address.pinned} is expected")
        rows = _made_of(_unpacked(fetched, until), Path(folder) / "made.db", until)
        os.replace(Path(folder) / "made.db", database)
    return Fetched("", digest, headers["etag"], headers["modified"], rows, time.time())


def _download(address: Address, known: Fetched, into: Path, until: float) -> Mapping[str, str] | None:
    headers = {"User-Agent": "fuseplan", "Accept-Encoding": "identity"}
    if known.etag:
        headers["If-None-Match"] = known.etag
    elif known.modified:
        headers["If-Modified-Since"] = known.modified
    url, login = address.url, address.login
    for _ in range(_REDIRECTS):
        request = urllib.request.Request(url, headers=headers)
        if login is not None:
            request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
        try:
            with _opener().open(request, timeout=_left(until)) as answer:
                return _received(answer, into, until)
        except urllib.error.HTTPError as error:
            if error.code == 304 and (known.etag or known.modified):
                return None
            if error.code not in _LEADS_ON:
                raise RefusedError(f"the server answers {error.code}") from None
            url, login = _redirected(error, url), None
        except urllib.error.URLError as error:
            raise RefusedError(f"it cannot be had: {_line(error.reason)}") from None
    raise RefusedError(f"it leads on more than {_REDIRECTS} times")


def _received(answer: Any, into: Path, until: float) -> Mapping[str, str]:
    digest, size = hashlib.sha256(), 0
    with into.open("wb") as file:
        while chunk := answer.read1(_CHUNK):
            size += len(chunk)
            if size > MOST_BYTES:
                raise RefusedError(f"it is longer than {MOST_BYTES >> 20} MiB")
            _left(until)
            digest.update(chunk)
            file.write(chunk)
    said = answer.headers
    if not size:
        raise RefusedError("it is empty")
    length = said.get("Content-Length")
    if length is not None and length.isdecimal() and int(length) != size:
        raise RefusedError("the server broke off before its end")
    return {"digest": digest.hexdigest(), "etag": said.get("ETag", ""), "modified": said.get("Last-Modified", "")}


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise RefusedError(f"it did not come within {FETCH_S:g} s")
    return min(left, 30.0)


def _opener() -> urllib.request.OpenerDirector:
    """What asks http and https alone: neither files nor anything else that urllib knows."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(), urllib.request.HTTPHandler(), urllib.request.HTTPSHandler(),
        urllib.request.HTTPErrorProcessor(), urllib.request.HTTPDefaultErrorHandler(),
    ):  # fmt: skip
        opener.add_handler(handler)
    return opener


def _redirected(error: urllib.error.HTTPError, url: str) -> str:
    """Where an answer leads: nowhere that is less safe. What it says beside that is not read."""
    there = urljoin(url, error.headers.get("Location", ""))
    error.close()
    new, old = urlsplit(there).scheme, urlsplit(url).scheme
    if new not in ("http", "https") or (old == "https" and new != "https"):
        raise RefusedError(f"it leads from {old} to {new or 'nowhere'}")
    return there


def _unpacked(file: Path, until: float) -> Path:
    """The rows themselves, where they are packed."""
    with file.open("rb") as packed:
        if packed.read(2) != _GZIP:
            return file
        packed.seek(0)
        out, size, machine = file.with_name("unpacked"), 0, zlib.decompressobj(31)
        with out.open("wb") as rows:
            while chunk := packed.read(_CHUNK):
                data = machine.decompress(chunk, _CHUNK * 16)
                while data or machine.unconsumed_tail:
                    size += len(data)
                    if size > MOST_UNPACKED:
                        raise RefusedError(f"it unpacks to more than {MOST_UNPACKED >> 20} MiB")
                    _left(until)
                    rows.write(data)
                    data = machine.decompress(machine.unconsumed_tail, _CHUNK * 16)
        if not machine.eof:
            raise RefusedError("it is cut short")
        return out


def _made_of(rows: Path, path: Path, until: float) -> int:
    """Put all rows into a new database; RefusedError where one is not as fuseplan writes them."""
    from fuseplan.tuning_db.exchange import import_file  # rarely needed: not worth a look-up's time

    database = Database(path)
    try:
        database.write(lambda connection: None)
        report = import_file(database, rows, trust="replay", within_s=until - time.monotonic())
    except StoreError as error:
        raise RefusedError(str(error).replace(str(rows), "it")) from None
    finally:
        database.close()
    if not report.complete:
        more = f", and {len(report.refused) - 1:,} more" if len(report.refused) > 1 else ""
        raise RefusedError(f"it is damaged, or was changed: {report.refused[0]}{more}")
    return sum(report.taken.values())


def _notes(database: Path) -> Path:
    return database.with_suffix(".json")


def _line(error: object) -> str:
    if isinstance(error, (TimeoutError, socket.timeout)):
        return "the server does not answer"
    if isinstance(error, HTTPException):  # whose words may hold the address
        return f"the server is not understood ({type(error).__name__})"
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
