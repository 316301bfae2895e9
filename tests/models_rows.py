"""A part of the rows that ship, and heads fitted on rows that are made up: what several tests learn from."""

from __future__ import annotations

import json
import lzma
import math
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from fuseplan.models import AnchorWork, Machine, Row, Work
from fuseplan.models.fitting import fit_heads
from fuseplan.models.heads import Heads
from fuseplan.models.rows import FORMAT, Measured, Rows, packaged
from fuseplan.models.work import RegionTraits

H200 = Machine.guess("NVIDIA H200")
EXECUTORS = ("aten", "inductor", "nvfuser")


def shipped_file() -> Path:
    """The rows of an H200."""
    (path,) = [path for path in packaged() if "h200" in path.name]
    return path


def write_part(path: Path, families: tuple[str, ...], most: int) -> Path:
    """At most so many rows of each of some families, with their graphs and the islands that they make up."""
    with lzma.open(shipped_file(), "rt", encoding="utf-8") as file:
        header, *lines = [json.loads(line) for line in file]
    taken = dict.fromkeys(families, 0)
    rows = []
    for line in lines:
        family = line.get("family")
        if "region" in line and family in taken and taken[family] < most:
            taken[family] += 1
            rows.append(line)
    regions = {row["region"] for row in rows}
    graphs = [line for line in lines if line.get("graph") in regions]
    islands = []
    for line in lines:
        if "cuts" in line and line["family"] in taken:
            whole = [cut for cut in line["segmentations"] if all(key in regions for _, key in cut["units"])]
            if whole:
                islands.append({**line, "segmentations": whole})
    text = "".join(json.dumps(line) + "\n" for line in (header, *graphs, *rows, *islands))
    path.write_bytes(lzma.compress(text.encode(), preset=0))
    return path


def made_up_work(chance: random.Random, largest: float = 24.0) -> Work:
    """A pointwise region, a norm or a matmul of any size."""
    elements = int(2 ** chance.uniform(10, largest))
    ops, sums = chance.randint(1, 8), chance.random() < 0.4
    anchors = (AnchorWork("matmul", "bfloat16", elements * 512, 6 * elements),) if chance.random() < 0.15 else ()
    moved = elements * chance.choice([4, 8, 12])
    classes = (ops - sums, *(0,) * 3, int(sums), *(0,) * 8)
    return Work(
        ops=ops, inputs=chance.randint(1, 4), outputs=chance.randint(1, 3), bytes_in=moved, bytes_out=moved // 2,
        bytes_alone=2 * moved * ops, kernels=1, kernels_alone=ops, pointwise=elements * ops, anchors=anchors,
        reduced=elements * sums, traits=RegionTraits(classes=classes, largest=elements, inner=1024, item=4, touched=2 * moved,
        depth=ops, width=1, live=1, sum_length=1024 * sums, sums=elements // 1024 * sums),
    )  # fmt: skip


def time_of(work: Work, executor: str) -> float:
    """A machine with habits of its own: Inductor is slow at sums, nvFuser at few bytes."""
    moved = work.bytes_alone if executor == "aten" else work.bytes_moved
    least = {"aten": 2.2 * work.kernels_alone, "inductor": 2.4, "nvfuser": 3.1}[executor]
    matmul = sum(anchor.flops / 700e6 for anchor in work.anchors)
    factor = 1.5 if executor == "inductor" and work.reduced else 1.0
    return least + factor * moved / 3500e3 + matmul


def made_up_rows(count: int, seed: int = 0, noise: float = 0.05, slower: float = 1.0) -> list[Row]:
    """Rows of that machine, three of each region; nvFuser fails at matmuls."""
    chance = random.Random(seed)
    rows: list[Row] = []
    while len(rows) < count:
        work = made_up_work(chance)
        for executor in EXECUTORS:
            if executor == "nvfuser" and work.anchors:
                rows.append(Row(work, executor, "default", math.inf, math.inf, "error"))
                continue
            time = slower * time_of(work, executor) * math.exp(chance.gauss(0, noise))
            rows.append(Row(work, executor, "default", time, 10.0 + 2 * work.inputs))
    return rows


@cache
def made_up_heads() -> Heads:
    """What 360 such rows teach."""
    return fit_heads(made_up_rows(360), H200)


def write_rows(path: Path, rows: Rows) -> None:
    """Write a file at once; the same rows give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(line + "\n" for line in _lines(rows)).encode()
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(lzma.compress(text, preset=9) if path.suffix == ".xz" else text)
    part.replace(path)


def _lines(rows: Rows) -> Iterator[str]:
    yield _compact({"format": FORMAT, **rows.header})
    given: set[str] = set()
    for row in rows.rows:
        if row.region not in given:
            given.add(row.region)
            yield _compact({"graph": row.region, "json": json.loads(rows.graphs[row.region].to_json())})
        content = {name: getattr(row, name) for name in Measured.__slots__}
        yield _compact({name: one for name, one in content.items() if one is not None and one != math.inf})
    for island in rows.islands:
        cuts = [{"name": cut.name, "base": cut.base, "units": list(map(list, cut.units))} for cut in island.cuts]
        yield _compact({"cuts": island.key, "family": island.family, "segmentations": cuts})


def _compact(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False)
