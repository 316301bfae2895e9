"""Rows that cost models learn from, as files: what ships with fuseplan, and what `scripts/collect` appends to.

A file is JSON lines, packed by xz or not. The first line is the header: the environment of all rows, the command and the
commit that measured them. Then, in any order, `{"graph": key, "json": {…}}` gives a region once, before its first row, and
every other line is one row:

    {"region": key, "family": "bert-1x128", "island": key, "choice": "0-4,7", "executor": "inductor",
     "variant": "default", "status": "ok", "device_us": 12.5, "host_us": 20.1, "peak_bytes": 1024}

`island` is what the region was cut out of; rows of equal island are alternatives and parts of one decision. `choice` are
the numbers of the region's ops within the island, those computed again after a `+`: with them, cuts of an island can be
put together from its rows and compared. Times are missing from rows whose status is not `ok`.
"""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from fuseplan.errors import GraphError, OptionError
from fuseplan.graph import Graph

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

    @property
    def ok(self) -> bool:
        """Whether there are times."""
        return self.status == "ok" and 0 < self.device_us < math.inf and 0 <= self.host_us < math.inf


@dataclass(frozen=True)
class Rows:
    """The rows of one environment, with the graphs of their regions."""

    header: Mapping[str, Any]
    rows: tuple[Measured, ...]
    graphs: Mapping[str, Graph] = field(repr=False)

    @property
    def device(self) -> str:
        """What was measured on: the product name of a GPU or a CPU."""
        place = self.header.get("environment", {})
        return str(place.get("gpu") or place.get("cpu") or place.get("device") or "cpu")


def packaged() -> tuple[Path, ...]:
    """The files that ship with fuseplan, sorted by name."""
    return tuple(sorted((*FOLDER.glob("*.jsonl.xz"), *FOLDER.glob("*.jsonl"))))


def read_rows(path: Path) -> Rows:
    """All rows of one file. Raises OptionError where it is not such a file; says which line."""
    header: dict[str, Any] = {}
    rows: list[Measured] = []
    graphs: dict[str, Graph] = {}
    try:
        with _open(path) as lines:
            for number, line in enumerate(lines, 1):
                try:
                    content = json.loads(line)
                    if number == 1:
                        header = _header(content)
                    elif "graph" in content:
                        graphs[content["graph"]] = _graph(content["json"])
                    else:
                        rows.append(_row(content))
                except (KeyError, TypeError, ValueError, GraphError) as error:
                    raise OptionError(f"{path}, line {number}: not a row: {error}") from error
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise OptionError(f"{path} cannot be read: {error}") from error
    if missing := sorted({row.region for row in rows} - graphs.keys()):
        raise OptionError(f"{path}: {len(missing)} regions have rows but no graph, the first is {missing[0]}")
    return Rows(header, tuple(rows), graphs)


def write_rows(path: Path, rows: Rows) -> None:
    """Write a file at once; the same rows give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(line + "\n" for line in _lines(rows)).encode()
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(lzma.compress(text, preset=9) if path.suffix == ".xz" else text)
    part.replace(path)


def choice_ops(choice: str) -> tuple[frozenset[int], frozenset[int]] | None:
    """The ops of a choice, and those that it computes again; None where it is some other name.

    >>> choice_ops("0-2,7+9") == (frozenset({0, 1, 2, 7}), frozenset({9}))
    True
    >>> choice_ops("whole") is None
    True
    """
    own, _, again = choice.partition("+")
    try:
        return frozenset(_numbers(own)), frozenset(_numbers(again))
    except ValueError:
        return None


def choice_name(ops: Iterable[int], recompute: Iterable[int] = ()) -> str:
    """How a set of ops of an island is written.

    >>> choice_name([7, 0, 1, 2], [9])
    '0-2,7+9'
    """
    again = _runs(recompute)
    return f"{_runs(ops)}+{again}" if again else _runs(ops)


def _numbers(text: str) -> Iterator[int]:
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _runs(ops: Iterable[int]) -> str:
    found: list[list[int]] = []
    for op in sorted(ops):
        if found and found[-1][1] == op - 1:
            found[-1][1] = op
        else:
            found.append([op, op])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in found)


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
    names = ("region", "family", "island", "choice", "executor", "variant", "status")
    times = (math.inf if content.get(name) is None else float(content[name]) for name in ("device_us", "host_us"))
    return Measured(*(str(content[name]) for name in names), *times, content.get("peak_bytes"))


def _lines(rows: Rows) -> Iterator[str]:
    yield _compact({"format": FORMAT, **rows.header})
    given: set[str] = set()
    for row in rows.rows:
        if row.region not in given:
            given.add(row.region)
            yield _compact({"graph": row.region, "json": json.loads(rows.graphs[row.region].to_json())})
        content = {name: getattr(row, name) for name in Measured.__slots__}
        yield _compact({name: one for name, one in content.items() if one is not None and one != math.inf})


def _compact(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False)
