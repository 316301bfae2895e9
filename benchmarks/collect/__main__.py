"""`scripts/collect`: measure regions, and keep the rows for cost models."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.collect.crew import Crew, Item
from benchmarks.collect.rowfile import FORMAT, RowFile
from benchmarks.collect.tasks import Task, bytes_of, prepare, read_tasks, write_tasks
from fuseplan.graph import Graph
from fuseplan.measure.pool import cores
from fuseplan.models import work_of

ROWS = Path(__file__).resolve().parents[2] / "models" / "rows"
SPARED_S = 15.0
"""Of the time, for what comes after the last measurement."""
CPU_BYTES, CPU_FLOPS = 2**26, 2e9
"""A CPU takes seconds for what a GPU does in no time: what it measures is smaller."""


def main(arguments: Sequence[str]) -> int:
    """Decide what to measure, and measure it."""
    began = monotonic()
    given = _arguments(arguments)
    if given.tasks is not None and given.tasks.exists():
        tasks = read_tasks(given.tasks)
    else:
        where = "cpu" if given.device == "cpu" else "cuda:0"
        most = CPU_BYTES if where == "cpu" else 2**30
        tasks = prepare(where, given.programs, most, cores())
    if given.tasks is not None and not given.tasks.exists():
        write_tasks(tasks, given.tasks)
    items, owners = items_of(tasks)
    print(f"{len(tasks)} islands, {len(items)} regions, after {monotonic() - began:.0f} s", file=sys.stderr)
    if given.prepare_only:
        return 0
    return _measure(given, tasks, items, owners, began)


Owner = tuple[str, str, str]
"""The family, the key of the island, and the choice that a region stands for."""


def _measure(given: Any, tasks: Sequence[Task], items: list[Item], owners: Mapping[str, Owner], began: float) -> int:
    on_gpu = given.device != "cpu"
    hands = given.hands or (max(1, cores() // given.devices - 2) if on_gpu else cores())
    header = _header(given)
    path = given.out or ROWS / f"{_slug(header['environment'])}.jsonl.xz"
    file = RowFile(path, header, append=given.append)
    done = file.measured()
    items = [item for item in items if item.graph.key not in done and (on_gpu or _for_a_cpu(item.graph))]

    def heard(item: Item, rows: Sequence[Mapping[str, Any]]) -> None:
        owner = owners[item.graph.key]
        file.graph(item.graph)
        for row in rows:
            file.row({"region": item.graph.key, "family": owner[0], "island": owner[1], "choice": owner[2], **row})

    crew = Crew(
        "cuda" if on_gpu else "cpu", given.devices, hands, 1 if on_gpu else given.threads, items, heard,
        began + given.within_s - SPARED_S,
    )  # fmt: skip
    for collector in crew.every:
        collector.start()
    file.header = {**header, "machine": _calibrated(given.device)}
    try:
        crew.run()
    except KeyboardInterrupt:
        print("interrupted: what is measured is kept", file=sys.stderr)
    file.cuts(tasks)
    file.close()
    print(_summary(file, path, monotonic() - began))
    return 0


def items_of(tasks: Sequence[Task]) -> tuple[list[Item], dict[str, Owner]]:
    """Each region once, in the order of the tasks, and whose it is."""
    items: dict[str, Item] = {}
    owners: dict[str, Owner] = {}
    for task in tasks:
        for choice, graph in task.regions:
            if graph.key not in items:
                items[graph.key] = Item(len(items), graph)
                owners[graph.key] = (task.family, task.island.key, choice)
    return list(items.values()), owners


def _for_a_cpu(region: Graph) -> bool:
    work = work_of(region)
    return work.bytes_alone <= 8 * CPU_BYTES and bytes_of(region) <= CPU_BYTES and work.flops <= CPU_FLOPS


def _header(given: Any) -> dict[str, Any]:
    import torch

    from benchmarks.result import commit
    from fuseplan.measure.environment import environment

    if given.device == "cpu":
        torch.set_num_threads(given.threads)

    fields = {name: value for name, value in environment(given.device).row().items() if name != "key"}
    return {
        "format": FORMAT,
        "environment": fields,
        "command": f"scripts/collect --device {given.device}"
        + (f" --threads {given.threads}" if given.device == "cpu" else ""),
        "commit": commit(),
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "load": [round(one, 1) for one in os.getloadavg()],
    }


def _calibrated(device: str) -> Mapping[str, float]:
    import torch

    from fuseplan.measure.worker.machine import calibrate

    found = calibrate(torch.device(device))
    if device != "cpu":
        torch.cuda.empty_cache()
    return found


def _slug(environment: Mapping[str, Any]) -> str:
    """The name of an environment's file.

    >>> _slug({"gpu": "NVIDIA H200", "cpu": None})
    'nvidia-h200'
    """
    name = str(environment.get("gpu") or environment.get("cpu") or environment["device"])
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


def _summary(file: RowFile, path: Path, seconds: float) -> str:
    by_status = Counter(row["status"] for row in file.rows.values())
    by_executor = Counter(f"{row['executor']} {row['variant']}" for row in file.rows.values() if row["status"] == "ok")
    families = {row["family"] for row in file.rows.values() if row["status"] == "ok"}
    return "\n".join(
        [
            f"{by_status['ok']} rows of {len(file.measured())} regions of {len(families)} families, in {seconds:.0f} s",
            f"  {dict(by_executor)}",
            f"  {dict(by_status)}",
            f"  {path}: {path.stat().st_size / 1e6:.1f} MB",
        ]
    )


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/collect", description=__doc__)
    parser.add_argument("--device", default=None, help="cuda or cpu; a GPU where there is one")
    parser.add_argument("--devices", type=int, default=1, help="so many GPUs at once, each with its own processes")
    parser.add_argument("--within-s", type=float, default=540.0, help="the seconds that all of it may take")
    parser.add_argument("--hands", type=int, default=0, help="processes that compile, a device; as many as cores")
    parser.add_argument("--threads", type=int, default=cores(), help="of a CPU, what a region runs on")
    parser.add_argument("--programs", type=int, default=20, help="made-up programs of each family")
    parser.add_argument("--append", action="store_true", help="add to the rows that the file has")
    parser.add_argument("--out", type=Path, help="the file of rows, else models/rows/ and the name of the device")
    parser.add_argument("--tasks", type=Path, help="a file of what to measure: read, or written if it is not there")
    parser.add_argument("--prepare-only", action="store_true", help="write --tasks, and measure nothing")
    given = parser.parse_args(arguments)
    if given.device is None:
        import torch

        given.device = "cuda" if torch.cuda.is_available() else "cpu"
    return given


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
