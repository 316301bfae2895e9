"""What the comparison of searches is replayed on: real programs with their graphs, and times of their regions.

`python -m benchmarks.search_tables` captures the programs on a CPU as a GPU would see them, without times;
`python -m benchmarks.search_tables TUNED.db` adds those that a database holds of their regions.
"""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.result import RESULTS
from fuseplan.graph import Graph

FOLDER = RESULTS / "search_tables"
EXECUTORS = ("inductor", "nvfuser")


@dataclass(frozen=True)
class Table:
    """One program: its graphs by role, which ops an executor takes, and the times that were measured of regions."""

    name: str
    source: str
    """Where the times come from, in words."""
    gpu: str
    graphs: Mapping[str, Graph]
    takes: Mapping[str, Mapping[str, tuple[bool, ...]]]
    """By role, then by executor."""
    times: tuple[tuple[Graph, str, str, float, float], ...] = ()
    """A region, executor and variant, and the device and host µs that they took."""

    def write(self, folder: Path = FOLDER) -> Path:
        """Write the table to a file named after the program."""
        content = {
            "name": self.name,
            "source": self.source,
            "gpu": self.gpu,
            "graphs": {role: graph.to_json() for role, graph in self.graphs.items()},
            "takes": {
                role: {name: [int(t) for t in ops] for name, ops in by.items()} for role, by in self.takes.items()
            },
            "times": [[region.to_json(), *rest] for region, *rest in self.times],
        }
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{re.sub(r'[^A-Za-z0-9.]+', '-', self.name)}.json.gz"
        path.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))
        return path


def read_table(path: Path) -> Table:
    """Read what `Table.write` wrote."""
    content: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    takes = {role: {name: tuple(map(bool, ops)) for name, ops in by.items()} for role, by in content["takes"].items()}
    return Table(
        content["name"],
        content["source"],
        content["gpu"],
        {role: Graph.from_json(text) for role, text in content["graphs"].items()},
        takes,
        tuple((Graph.from_json(text), *rest) for text, *rest in content["times"]),
    )


def tables(folder: Path = FOLDER) -> list[Table]:
    """All tables that are stored, by name."""
    return [read_table(path) for path in sorted(folder.glob("*.json.gz"))]


def from_database(path: Path) -> Iterator[Table]:
    """A table of each program with a name that a tuned database holds, with all times of regions on the device it has most of."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    (device,) = connection.execute(_DEVICE).fetchone()
    times = tuple((Graph.from_json(text), *rest) for text, *rest in connection.execute(_TIMES, {"device": device}))
    programs: dict[str, dict[str, Graph]] = {}
    for name, role, text in connection.execute(_GRAPHS):
        programs.setdefault(name, {})[role] = Graph.from_json(text)
    for name, graphs in programs.items():
        yield Table(name, f"measured on {device}", device, graphs, _takes(graphs), times)
    connection.close()


_DEVICE = """
SELECT coalesce(e.gpu, e.cpu) AS device FROM measurement JOIN environment e ON e.id = environment_id
GROUP BY device ORDER BY count(*) DESC LIMIT 1
"""
_TIMES = """
SELECT r.json, m.executor, m.variant, avg(m.device_us), avg(m.host_us)
FROM measurement m JOIN region r ON r.id = m.region_id JOIN environment e ON e.id = m.environment_id
WHERE m.status = 'ok' AND coalesce(e.gpu, e.cpu) = :device GROUP BY r.id, m.executor, m.variant ORDER BY r.key, m.executor, m.variant
"""
_GRAPHS = """
SELECT p.name, pg.role, g.json FROM program p JOIN program_graph pg ON pg.program_id = p.id JOIN graph g ON g.id = pg.graph_id
WHERE p.name IS NOT NULL ORDER BY p.name, pg.role
"""


def captured(name: str, model: Any, inputs: dict[str, Any], train: bool, gpu: str = "NVIDIA H200") -> Table:
    """Run a model once on the CPU, and return its graphs as they would be on `gpu`, without any times."""
    import torch

    from benchmarks.zoo import step_of
    from fuseplan.backend import programs_of
    from fuseplan.explain import compiled_by

    compiled = torch.compile(model, backend="fuseplan", options={"plan": "aten", "attention": "proven"})
    step_of(compiled, model, inputs, train)()
    programs = programs_of(compiled_by(compiled))  # the loss may be a program of its own
    program = max(programs, key=lambda one: sum(len(record.graph.ops) for record in one.graphs))
    texts = {record.role: record.graph.to_json().replace('"cpu"', '"cuda:0"') for record in program.graphs}
    graphs = {role: Graph.from_json(text) for role, text in texts.items()}
    return Table(name, "made: captured on a CPU, times from the roofline", gpu, graphs, _takes(graphs))


def _takes(graphs: Mapping[str, Graph]) -> dict[str, dict[str, tuple[bool, ...]]]:
    from fuseplan.executors import executors

    every = executors()
    return {
        role: {name: tuple(every[name].supports(op, graph) is None for op in graph.ops) for name in EXECUTORS}
        for role, graph in graphs.items()
    }


def main(arguments: list[str]) -> None:
    """Make the tables, captured here or out of a database."""
    for table in from_database(Path(arguments[0])) if arguments else _three():
        print(table.write(), {role: len(graph.ops) for role, graph in table.graphs.items()}, len(table.times))


def _three() -> Iterator[Table]:
    """Three programs with two or three of their equal layers: more of them would add nothing to search."""
    import torch

    from benchmarks.zoo import bert, gpt2, llama

    cases = {
        "bert 8x128": (partial(bert, num_hidden_layers=3), (8, 128), 30522, False),
        "gpt2 2x256 train": (partial(gpt2, n_layer=2), (2, 256), 50257, True),
        "llama 1x16": (partial(llama, num_hidden_layers=3), (1, 16), 32000, False),
    }
    for name, (build, shape, vocabulary, train) in cases.items():
        torch.manual_seed(0)
        ids = torch.randint(0, vocabulary, shape)
        inputs = {"input_ids": ids, **({"labels": ids} if train else {})}
        yield captured(name, build().to(torch.bfloat16).train(train), inputs, train)


if __name__ == "__main__":
    main(sys.argv[1:])
