"""`fuseplan dashboard`: serves the pages until it is stopped, or writes them into one file."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import webbrowser
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from fuseplan.errors import OptionError, StoreError
from fuseplan.tuning_db.dashboard import needed

PORT = 8765
_SHORTEST = 16


@dataclass(frozen=True)
class WrittenFile:
    """What was written, and how much is in it."""

    path: Path
    bytes: int
    sections: int


def _print(link: str) -> None:
    """Library code prints nothing but this, which is what it was called for."""
    sys.stderr.write(f"The dashboard is at {link} (Ctrl-C ends it)\n")
    sys.stderr.flush()


def dashboard(
    db: str | Path | Sequence[str | Path] | None = None, *, port: int = PORT, host: str = "127.0.0.1", open: bool = False,
    export: str | Path | None = None, token: str | None = None, names: Iterable[str] = (),
    tell: Callable[[str], object] = _print,
) -> WrittenFile | None:  # fmt: skip
    """Serve the dashboard of one or more databases until Ctrl-C, or write it into one file that needs no network.

    Without `db` it is the database that tuning writes to. On another `host` than this machine's own, a token is asked for:
    one that is made here, unless `token` names it; the link that is printed holds it. `names` are more names under which
    the machine may be asked for; `tell` hears the link as soon as it answers.

    >>> import fuseplan
    >>> fuseplan.dashboard("tuning.db", export="report.html")  # doctest: +SKIP
    WrittenFile(path=PosixPath('report.html'), bytes=5123456, sections=12)
    """
    needed.require()
    databases = _databases(db)
    if export is not None:
        from fuseplan.tuning_db.dashboard.export import export_file

        return WrittenFile(Path(export), *export_file(databases, Path(export)))
    serve(databases, bound(host, port), token=token, names=names, open=open, tell=tell)
    return None


def serve(
    databases: Sequence[Path], listening: socket.socket, *, token: str | None = None, names: Iterable[str] = (),
    open: bool = False, tell: Callable[[str], object] = _print,
) -> None:  # fmt: skip
    """Answer on a socket until the process is told to stop."""
    import uvicorn

    from fuseplan.tuning_db.dashboard.app import create_app

    host, port = listening.getsockname()[:2]
    if token is not None and len(token) < _SHORTEST:
        raise OptionError(f"a token has at least {_SHORTEST} letters: without one that is named, a good one is made")
    if token is None and not _loopback(host):
        token = secrets.token_urlsafe(24)
    shown = _shown(host)
    link = f"http://{shown}:{port}/" + (f"?token={token}" if token else "")
    if open:
        webbrowser.open(link)
    app = create_app(databases, token=token, hosts=[*_names(host), *names], ahead=True)
    tell(link)
    # No server header, no log of who asks for what; a request line of more than 16 KiB is refused before it is read.
    config = uvicorn.Config(
        app, log_level="error", access_log=False, server_header=False, proxy_headers=False, ws="none", lifespan="off",
        h11_max_incomplete_event_size=16_384, timeout_keep_alive=20, timeout_graceful_shutdown=2,
    )  # fmt: skip
    try:
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        return
    finally:
        listening.close()


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there: port 0 takes any that is free."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, number)
    except (OSError, OverflowError) as error:
        raise OptionError(f"host {host!r} and port {port} are no address: {error}") from None
    try:
        if os.name == "posix":
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(128)
    except OSError as error:
        found.close()
        raise OptionError(
            f"port {port} of {host} cannot be used: {error.strerror or error}; name another with --port"
        ) from None
    return found


def _databases(db: str | Path | Sequence[str | Path] | None) -> list[Path]:
    from fuseplan.tuning_db import Store, places

    named: Sequence[str | Path | None] = [db] if isinstance(db, (str, Path)) else db or [None]
    stores = [Store(places(os.environ, one), reading=True) for one in named]
    troubles = []
    for store in stores:
        try:
            store.required(there=bool(db)).close()
        except StoreError as error:  # noqa: PERF203
            troubles.append(error)
    if len(troubles) == len(stores):  # else there is a page for each that tells what is wrong with it
        raise troubles[0]
    return [path for store in stores if (path := store.file.path) is not None]


def _loopback(host: str) -> bool:
    return ip_address(host.split("%")[0]).is_loopback


def _any(host: str) -> bool:
    return ip_address(host.split("%")[0]).is_unspecified


def _spelled(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _shown(host: str) -> str:
    """What to write into the link: a machine that listens on all of its addresses has none in particular."""
    return socket.gethostname() if _any(host) else _spelled(host)


def _names(host: str) -> list[str]:
    """The names in the Host header that mean this server."""
    names = {"127.0.0.1", "localhost", "[::1]", _spelled(host)}
    if not _loopback(host):
        names |= {socket.gethostname(), socket.getfqdn()}
    if _any(host):
        with suppress(OSError):
            names |= {_spelled(str(found[4][0])) for found in socket.getaddrinfo(socket.gethostname(), None)}
    return sorted(names)
