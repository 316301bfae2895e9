"""The file of rows: a header, graphs, rows, and the cuts of islands, a JSON object a line, compressed at the end.

While a run lasts its lines go to a file beside it, so that nothing is lost with the run; the next run begins with them.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.collect.cuts import choice_of
from benchmarks.collect.tasks import Task
from fuseplan.graph import Graph

FORMAT = 1
Fields = Mapping[str, Any]


class RowFile:
    """The rows of one environment, those that are there already and those that come."""

    def __init__(self, path: Path, header: Fields, *, append: bool) -> None:
        """Rows of an earlier run stay only where they should be appended to; what an interrupted one has left always does."""
        self.path = path
        self.part = path.with_name(f"{path.name}.part")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.lines: list[Fields] = []
        if append and path.exists():
            self.lines += read_lines(path)
        if self.part.exists():
            self.lines += _lines_of(self.part.read_text(encoding="utf-8").splitlines())
        self.header: Fields = header
        self.lines = [one for one in self.lines if "format" not in one]
        self.graphs = {str(one["graph"]) for one in self.lines if "json" in one}
        self.rows = {(one["region"], one["executor"], one["variant"]): one for one in self.lines if "region" in one}
        self._file = self.part.open("a", encoding="utf-8")

    def measured(self) -> set[str]:
        """The regions of which there is any row."""
        return {region for region, *_ in self.rows}

    def graph(self, graph: Graph) -> None:
        """Write a graph down, once."""
        if graph.key not in self.graphs:
            self.graphs.add(graph.key)
            self._write({"graph": graph.key, "json": json.loads(graph.to_json())})

    def row(self, fields: Fields) -> None:
        """Write one row; a choice that has one already keeps it."""
        key = (fields["region"], fields["executor"], fields["variant"])
        if key not in self.rows:
            self.rows[key] = fields
            self._write(fields)

    def cuts(self, tasks: Iterable[Task]) -> None:
        """Write the cuts of islands of which every unit runs under somebody."""
        known = {one["cuts"] for one in self.lines if "cuts" in one}
        run = {region for (region, *_), row in self.rows.items() if row["status"] == "ok"}
        for task in tasks:
            keys = {choice: graph.key for choice, graph in task.regions}
            whole = [
                {"name": cut.name, "base": cut.base, "units": [[c, keys[c]] for c in map(choice_of, cut.units)]}
                for cut in task.cuts
                if all(keys[choice_of(unit)] in run for unit in cut.units)
            ]
            if whole and task.island.key not in known:
                self.graph(task.island)
                self._write({"cuts": task.island.key, "family": task.family, "segmentations": whole})

    def _write(self, fields: Fields) -> None:
        self.lines.append(fields)
        self._file.write(json.dumps(fields, separators=(",", ":"), allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> Path:
        """Compress all lines into the file, and leave no part behind."""
        self._file.close()
        text = "".join(
            json.dumps(one, separators=(",", ":"), allow_nan=False) + "\n" for one in [self.header, *self.lines]
        )
        new = self.path.with_name(f"{self.path.name}.new")
        new.write_bytes(lzma.compress(text.encode(), preset=6))
        new.replace(self.path)
        self.part.unlink()
        return self.path


def read_lines(path: Path) -> list[Fields]:
    """All lines of a file of rows."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return list(_lines_of(file))


def _lines_of(texts: Iterable[str]) -> Iterator[Fields]:
    return (found for found in map(_line, texts) if found is not None)


def _line(text: str) -> Fields | None:
    try:
        found: Fields = json.loads(text)
    except json.JSONDecodeError:
        return None  # the last line of a run that was killed
    return found
