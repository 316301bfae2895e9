"""What FUSEPLAN_SHARED costs a look-up: the plans of 10,000 programs in the user's own file, in a file that it names, and fetched from an
address before. All sides take turns, remembered and in a new process.

The server is one of this machine; what fetching and checking take is said beside.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

from benchmarks.given import numbers
from benchmarks.lookup import HERE, fill, program, program_rows
from benchmarks.result import ROOT
from fuseplan.tuning_db import Hit, Query, Store, places
from fuseplan.tuning_db.columns import Row
from fuseplan.tuning_db.exchange import export
from fuseplan.tuning_db.files import Database
from fuseplan.tuning_db.schema import TRACE
from fuseplan.tuning_db.shared_fetch import look
from fuseplan.tuning_db.shared_notes import Fetched
from fuseplan.tuning_db.tables import Table

ROUNDS, OF_A_ROUND = 21, 1000
COLD = f"""
import os, sys, time
from fuseplan.tuning_db import Environment, Hit, Query, Store, places
here, key = {HERE!r}, sys.argv[1]
start, cpu = time.perf_counter(), time.process_time()
store = Store(places(os.environ))
found = store.find_plan(Query(key, here)) if store.unknown(key) is None else None  # as the backend asks
print(time.perf_counter() - start, time.process_time() - cpu)
assert isinstance(found, Hit) and found.layer == sys.argv[2], found
"""


def measure(arguments: list[str]) -> dict[str, Any]:
    """With so many programs."""
    (programs,) = numbers("shared", __doc__, arguments, programs=10_000)
    load = os.getloadavg()[0]  # others on the machine make all of it slower
    (ROOT / "build").mkdir(exist_ok=True)
    with TemporaryDirectory(dir=ROOT / "build") as made:
        folder = Path(made)
        fill(folder / "all.db", programs, _without_traces, 0)
        export(Database(folder / "all.db", readonly=True), folder / "all.jsonl.gz")
        fill(folder / "own.db", 1, lambda number: _without_traces(programs), 0)
        with serving(folder) as url:
            sides = _sides(folder, url)
            fetched = fetch(sides["address, fetched before"])
            sleep(1.1)  # a file that has just changed is looked at more closely
            warm, cold = _warm(sides, programs), _cold(sides, programs)
        size = (folder / "all.jsonl.gz").stat().st_size
    return {
        "programs": programs, "export_bytes": size, "load_before": load, **fetched, "warm_us": warm, "cold_ms": cold,
    }  # fmt: skip


def _without_traces(number: int) -> list[tuple[Table, Row]]:
    return [(table, row) for table, row in program_rows(number) if table is not TRACE]


def _sides(folder: Path, url: str) -> dict[str, dict[str, str]]:
    """The variables of each."""
    own = {"FUSEPLAN_DB": str(folder / "own.db"), "XDG_CACHE_HOME": str(folder / "cache")}
    return {
        "the user's own file": {**own, "FUSEPLAN_DB": str(folder / "all.db")},
        "a file": {**own, "FUSEPLAN_SHARED": str(folder / "all.db")},
        "address, fetched before": {**own, "FUSEPLAN_SHARED": f"{url}/all.jsonl.gz"},
    }


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Any server of files."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def fetch(environ: dict[str, str]) -> dict[str, float]:
    """Fetch what is named: the seconds that took, and its rows."""
    shared, told = places(environ).shared, list[str]()
    assert shared is not None
    assert shared.made is not None
    start = perf_counter()
    look(shared, shared.made, told)
    if told != [""]:
        raise SystemExit(f"it was not fetched: {told}")
    return {"fetched_in_s": perf_counter() - start, "rows": Fetched.beside(shared.made).rows}


def _warm(sides: dict[str, dict[str, str]], programs: int) -> dict[str, dict[str, float]]:
    stores = {side: Store(places(environ)) for side, environ in sides.items()}
    queries = [Query(program(number), HERE) for number in range(min(100, programs))]
    times: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(ROUNDS):
        for side, store in stores.items():
            for i in range(OF_A_ROUND):
                start = perf_counter()
                answer = store.find_plan(queries[i % len(queries)])
                times[side].append((perf_counter() - start) * 1e6)
                if not isinstance(answer, Hit):
                    raise SystemExit(f"a plan that was stored is not found: {answer}")
    return {
        side: _summary(sorted(found)[: -len(queries)]) for side, found in times.items()
    }  # the first of each query is cold


def _cold(sides: dict[str, dict[str, str]], programs: int) -> dict[str, dict[str, float]]:
    times: dict[str, list[float]] = {side: [] for side in sides}
    cpu: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(ROUNDS):
        for side, environ in sides.items():
            layer = "shared" if "FUSEPLAN_SHARED" in environ else "user"
            command = [sys.executable, "-c", COLD, program(number * 7 % programs), layer]
            ran = subprocess.run(
                command, check=True, capture_output=True, text=True, cwd=ROOT, env=os.environ | environ
            )
            times[side].append(float(ran.stdout.split()[0]) * 1e3)
            cpu[side].append(float(ran.stdout.split()[1]) * 1e3)
    return {side: {**_summary(found), "median_cpu": median(cpu[side])} for side, found in times.items()}


def _summary(times: list[float]) -> dict[str, float]:
    return {"median": median(times), "min": min(times), "max": max(times)}
