"""`scripts/bench dashboard [PROGRAMS [MEASUREMENTS]]`: how soon its first page is seen, what the server takes, and fifty at once."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any
from urllib.request import urlopen

from playwright.sync_api import Browser, sync_playwright

from benchmarks.given import numbers
from benchmarks.lookup import HERE, fill, program, schema_digest
from benchmarks.result import ROOT
from fuseplan.plan import CarveOuts, Plan
from fuseplan.segment import Region, Segmentation
from fuseplan.segment.moves import Move
from fuseplan.tuning_db import DefaultTiming, Repeats, StoredPlan
from fuseplan.tuning_db.columns import Row
from fuseplan.tuning_db.records import trace_key
from fuseplan.tuning_db.schema import DEFAULT_TIMING, PLAN, PROGRAM, TRACE
from fuseplan.tuning_db.tables import Table

SERVE = (sys.executable, "-c", "from fuseplan.cli import main; main()", "dashboard", "--port", "0", "--db")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage")
AT = "2026-11-{:02}T{:02}:{:02}:00.000Z"
STARTS = 5
PAGES = ("/", "/programs", "/programs.json", "/?launch=cudagraph", "/programs?sort=plan_us&q=model+7")


def measure(arguments: list[str]) -> dict[str, Any]:
    """With so many programs and measurements."""
    programs, measurements = numbers("dashboard", __doc__, arguments, programs=10_000, measurements=1_000_000)
    path = ROOT / "build" / f"dashboard-{schema_digest()}-{programs}-{measurements}.db"
    if not path.exists():
        draw = random.Random(3)
        fill(path, programs, lambda number: _program_rows(number, draw), measurements)
    load = os.getloadavg()[0]  # others on the machine make all of it slower
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_chromium(), headless=True, args=list(FLAGS))
        cold = [_first_page(browser, path) for _ in range(STARTS)]
        with served(path) as server:
            _visit(browser, server.url, "/")
            warm = [_visit(browser, server.url, "/") for _ in range(STARTS)]
            table = _table(browser, server.url)
            answers = _at_once(server.url, 50)
            memory = server.peak_mib()
        browser.close()
    return {
        "programs": programs,
        "measurements": measurements,
        "load_average_before": round(load, 2),
        "file_bytes": path.stat().st_size,
        "first_paint_s": {"after the start of the server": _summary(cold), "later": _summary(warm), "limit": 1.5},
        "table_of_all_programs_s": table,
        "fifty_at_once": {**answers, "limit": "all answered"},
        "server_peak_mib": memory,
        "server_limit_mib": 300,
    }


def _program_rows(number: int, draw: random.Random) -> list[tuple[Table, Row]]:
    """A program with its calls, three defaults of ten repeats each, and a plan of 24 regions."""
    key, at = program(number), AT.format(1 + number % 28, number % 24, number % 60)
    regions = tuple(Region((3 * i, 3 * i + 1, 3 * i + 2), "nvfuser" if i % 2 else "inductor") for i in range(24))
    launch = "cudagraph" if number % 3 == 0 else "plain"
    cut = Plan("aten", carve_outs=(CarveOuts("inference", key, Segmentation(regions)),), launch=launch)
    walls = {name: draw.uniform(150, 900) for name in ("eager", "inductor", "nvfuser-greedy")}
    best = min(walls, key=walls.__getitem__)
    faster = number % 7 / 10
    stored = StoredPlan(
        key, HERE, cut, status="tuned" if faster else "default", wall_us=walls[best] / (1 + faster), best_default=best,
        best_default_us=walls[best], noise_us=draw.uniform(0.1, 5), moves=(Move("peel-head", region=3, change_us=-4.0),), changed_at=at,
    )  # fmt: skip
    timings = [
        DefaultTiming(key, HERE, name, launch, wall_us=wall, device_us=wall, host_us=9.5, measured_at=at,
                      repeats=Repeats(wall=tuple(wall + i / 8 for i in range(10))))
        for name, wall in walls.items()
    ]  # fmt: skip
    trace: Row = {
        "key": trace_key(key, ""), "program": key, "sizes": "", "json": "{}", "calls": draw.randrange(100_000), "changed_at": at,
    }  # fmt: skip
    named: Row = {"key": key, "name": f"model {number % 50}, graph {number // 50}", "changed_at": at}
    return [(PROGRAM, named), (TRACE, trace), *((DEFAULT_TIMING, one.row()) for one in timings), (PLAN, stored.row())]


@dataclass
class _Server:
    url: str
    process: subprocess.Popen[str]

    def peak_mib(self) -> float:
        """The most memory that it ever held."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8").splitlines()
        return round(int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024, 1)


@contextmanager
def served(path: Path) -> Iterator[_Server]:
    """The real server in a process of its own."""
    process = subprocess.Popen([*SERVE, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield _Server(process.stdout.readline().split(" at ")[1].split(" ")[0].rstrip("/"), process)
    finally:
        process.terminate()
        process.wait(20)


def _first_page(browser: Browser, path: Path) -> float:
    """Seconds until the overview is painted by a browser and a server that know nothing of it yet."""
    with served(path) as server:
        return _visit(browser, server.url, "/")


def _visit(browser: Browser, url: str, target: str) -> float:
    """Seconds to the first contentful paint, as the browser counts them."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(url + target)
    painted = None
    while painted is None:
        painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null")
    shown = page.locator(".card .sub").first.inner_text()
    context.close()
    if "plans" not in shown:
        raise SystemExit(f"the overview shows {shown!r}")
    return float(painted) / 1e3


def _table(browser: Browser, url: str) -> dict[str, float]:
    """Seconds until all programs can be sorted and searched, and that either takes."""
    context = browser.new_context()
    page = context.new_page()
    start = perf_counter()
    page.goto(f"{url}/programs")
    page.locator("[data-table][data-ready=yes]").wait_for()
    ready = perf_counter() - start
    clock = """async (act) => {
      const start = performance.now();
      if (act === "sort") document.querySelector("[data-sort-by=program]").click();
      else { const box = document.querySelector("[data-table]"); box.scrollTop = 150000; box.dispatchEvent(new Event("scroll")); }
      await new Promise(requestAnimationFrame);
      await new Promise(done => setTimeout(done));
      return (performance.now() - start) / 1000;
    }"""
    found = {
        "ready": ready,
        "sort": float(page.evaluate(clock, "sort")),
        "scroll": float(page.evaluate(clock, "scroll")),
    }
    context.close()
    return found


def _at_once(url: str, count: int) -> dict[str, float]:
    """So many requests at the same time."""

    def ask(number: int) -> float:
        start = perf_counter()
        with urlopen(url + PAGES[number % len(PAGES)], timeout=60) as answer:
            if answer.status != 200 or not answer.read():  # urllib raises for most of them
                raise SystemExit("a request was not answered")
        return perf_counter() - start

    start = perf_counter()
    with ThreadPoolExecutor(count) as pool:
        times = list(pool.map(ask, range(count)))
    return {"answered": len(times), "all_s": perf_counter() - start, "median_s": median(times), "max_s": max(times)}


def _summary(times: list[float]) -> dict[str, float]:
    return {"median": median(times), "max": max(times)}


def _chromium() -> str:
    found = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    if found is None:
        raise SystemExit("this benchmark needs Chromium: apt-get install chromium")
    return found


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1:]), indent=2))
