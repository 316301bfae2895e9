"""Rows that cost models learn from, as files: what ships with fuseplan, and what `scripts/collect` appends to.

A file is JSON lines, packed by xz or not. The first line is the header: the environment of all rows, the command and the
commit that measured them. Then, in any order, `{"graph": key, "json": {…}}` gives a region once, before its first row, and
every other line is one row:

    {"region": key, "family": "bert-1x128", "island": key, "choice": "0-4,7", "executor": "inductor",
     "variant": "default", "status": "ok", "device_us": 12.5, "host_us": 20.1, "peak_bytes": 1024, "seconds": 1.2}

`island` is what the region was cut out of, and `choice` the numbers of its ops there, those computed again after a `+`.
Times are missing from rows whose status is not `ok`. Lastly, a line for each island says how it was cut, a move from one
way to the next, and what runs then:

    {"cuts": key, "family": "bert-1x128", "segmentations": [
        {"name": "maximal", "base": "", "units": [["0-4,7", key], …]}, {"name": "evict 7", "base": "maximal", …}]}
"""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from fuseplan.errors import GraphError, OptionError
from fuseplan.graph import Graph
from fuseplan.graph.words import counted

FORMAT = 1
FOLDER = Path(__file__).with_name("rows")


@dataclass(frozen=True, slots=True)
class Measured:
    """One region under one executor and variant, and what came of it."""

    region: str
    """The key of its graph."""
    family: str
    island: str
    choice: str
    executor: str
    variant: str
    status: str
    device_us: float = math.inf
    host_us: float = math.inf
    peak_bytes: int | None = None
    seconds: float | None = None
    """What compiling, checking and measuring it took."""

    @property
    def ok(self) -> bool:
        """Whether there are times."""
        return self.status == "ok" and 0 <= self.device_us < math.inf and 0 <= self.host_us < math.inf


@dataclass(frozen=True, slots=True)
class IslandCut:
    """One way to cut an island."""

    name: str
    """The move, and where: `evict 7`."""
    base: str
    """The cut that it was made from by that move, or nothing."""
    units: tuple[tuple[str, str], ...]
    """The choice and the region key of all that runs, in order."""


@dataclass(frozen=True, slots=True)
class CutIsland:
    """One island with ways to cut it."""

    key: str
    family: str
    cuts: tuple[IslandCut, ...]


@dataclass(frozen=True)
class Rows:
    """The rows of one environment, with the graphs of their regions, and the islands that those are cut from."""

    header: Mapping[str, Any]
    rows: tuple[Measured, ...]
    graphs: Mapping[str, Graph] = field(repr=False)
    islands: tuple[CutIsland, ...] = ()


def device_name(header: Mapping[str, Any]) -> str:
    """What rows were measured on: the product name of a GPU or a CPU.

    >>> device_name({"environment": {"gpu": None, "cpu": "AMD EPYC"}})
    'AMD EPYC'
    """
    place = header.get("environment") or {}
    return str(place.get("gpu") or place.get("cpu") or place.get("device") or "cpu")


def packaged() -> tuple[Path, ...]:
    """The files that ship with fuseplan, sorted by name."""
    return tuple(sorted((*FOLDER.glob("*.jsonl.xz"), *FOLDER.glob("*.jsonl"))))


def read_header(path: Path) -> Mapping[str, Any]:
    """The first line of a file alone: what it was measured on. Raises OptionError as `read_rows` does."""
    try:
        with _open(path) as lines:
            return _header(json.loads(next(lines, "null")))
    except (OSError, EOFError, lzma.LZMAError, ValueError) as error:
        raise OptionError(f"{path} is no file of rows: {error}") from error


def counts(path: Path) -> dict[str, Any]:
    """How much there is in a file, without a look at any graph."""
    with _open(path) as lines:
        header, *rest = [json.loads(line) for line in lines]
    rows = [one for one in rest if "region" in one]
    good = [one for one in rows if one["status"] == "ok"]
    return {
        "file": path.name,
        "machine": device_name(header),
        "when": header.get("when"),
        "rows": len(good),
        "failed": len(rows) - len(good),
        "regions": len({one["region"] for one in good}),
        "families": len({one["family"] for one in good}),
        "islands": sum("cuts" in one for one in rest),
    }


def read_rows(path: Path) -> Rows:
    """All rows of one file. Raises OptionError where it is not such a file; says which line."""
    header: dict[str, Any] = {}
    rows: list[Measured] = []
    graphs: dict[str, Graph] = {}
    islands: list[CutIsland] = []
    number = 1
    try:
        with _open(path) as lines:
            for number, line in enumerate(lines, 1):
                content = json.loads(line)
                if number == 1:
                    header = _header(content)
                elif "cuts" in content:
                    islands.append(_island(content))
                elif "graph" in content:
                    graphs[content["graph"]] = _graph(content["json"])
                else:
                    rows.append(_row(content))
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise OptionError(f"{path} cannot be read: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError, GraphError) as error:
        raise OptionError(f"{path}, line {number}: not a row: {type(error).__name__}: {error}") from error
    if missing := sorted({row.region for row in rows} - graphs.keys()):
        raise OptionError(
            f"{path}: {counted(len(missing), 'region')} with rows but no graph, the first is {missing[0]}"
        )
    return Rows(header, tuple(rows), graphs, tuple(islands))


def _open(path: Path) -> IO[str]:
    if path.suffix == ".xz":
        return lzma.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _header(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"the first line must be a header with format {FORMAT}")
    return content


def _graph(content: Any) -> Graph:
    return Graph.from_json(content if isinstance(content, str) else json.dumps(content))


def _row(content: Mapping[str, Any]) -> Measured:
    region, family, island, choice, executor, variant, status = (
        str(content[name]) for name in ("region", "family", "island", "choice", "executor", "variant", "status")
    )
    device_us, host_us = (
        math.inf if content.get(name) is None else float(content[name]) for name in ("device_us", "host_us")
    )
    peak, seconds = content.get("peak_bytes"), content.get("seconds")
    return Measured(region, family, island, choice, executor, variant, status, device_us, host_us, peak, seconds)


def _island(content: Mapping[str, Any]) -> CutIsland:
    cuts = (
        IslandCut(str(cut["name"]), str(cut["base"]), tuple((str(choice), str(key)) for choice, key in cut["units"]))
        for cut in content["segmentations"]
    )
    return CutIsland(str(content["cuts"]), str(content["family"]), tuple(cuts))
