"""A server of plan files that may be slow or hostile, and stores that are to read what it gives."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fuseplan.tuning_db import Hit, Miss, Store
from stored import question


@dataclass
class Served:
    """A server, and what it says."""

    url: str
    body: bytes = b""
    etag: str = ""
    status: int = 200
    location: str = ""
    asked: list[dict[str, str]] = field(default_factory=list)
    slowly_s: float = 0.0
    """Between one byte and the next."""


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[Served]:
    found = Served("")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append({key.lower(): value for key, value in self.headers.items()})
            if found.etag and self.headers.get("If-None-Match") == found.etag:
                self.send_response(304)
                self.end_headers()
                return
            self.send_response(found.status)
            if found.location:
                self.send_header("Location", found.location)
            if found.etag:
                self.send_header("ETag", found.etag)
            self.send_header("Content-Length", str(len(found.body)))
            self.end_headers()
            try:
                if not found.slowly_s:
                    self.wfile.write(found.body)
                for i in range(len(found.body) if found.slowly_s else 0):
                    self.wfile.write(found.body[i : i + 1])
                    time.sleep(found.slowly_s)
            except OSError:
                return

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    found.url = f"http{'' if context is None else 's'}://127.0.0.1:{server.server_address[1]}/plans.jsonl.gz"
    yield found
    server.shutdown()
    server.server_close()


Open = Callable[[object], Store]


def found(store: Store) -> str:
    answer = store.find_plan(question())
    return answer.layer if isinstance(answer, Hit) else f"miss: {answer.reason}"  # type: ignore[union-attr]


def cached(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / ".cache/fuseplan/shared").glob("*.db"))


def refused(open_store: Open, value: object, match: str) -> None:
    """It is said in one line, and the program runs under the default."""
    with pytest.warns(UserWarning, match=match) as heard:
        store = open_store(value)
    (one,) = [str(each.message) for each in heard]
    assert "\n" not in one
    assert one.endswith("there are no plans from there")
    assert isinstance(store.find_plan(question()), Miss)


def settle() -> None:
    for thread in threading.enumerate():
        if thread.name == "fuseplan shared":
            thread.join()


FETCH = """
import sys, time
from fuseplan.tuning_db import Hit, Store
from fuseplan.tuning_db.layers import places
from stored import question
store, until = Store(places({"HOME": sys.argv[1], "FUSEPLAN_SHARED": sys.argv[2]})), time.monotonic() + float(sys.argv[3])
while not isinstance(answer := store.find_plan(question()), Hit) and time.monotonic() < until:
    time.sleep(0.05)
print(type(answer).__name__, flush=True)
"""


def started(tmp_path: Path, url: str, patience_s: float = 60.0) -> subprocess.Popen[str]:
    """A process that looks a plan up until it is there, and says what it got."""
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, str(tmp_path), url, str(patience_s)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
