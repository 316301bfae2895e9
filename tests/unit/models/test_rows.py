"""Files of rows: what is written is what is read, what is broken is named, and what ships is enough."""

from __future__ import annotations

import json
import lzma
import math
from collections import Counter
from pathlib import Path

import pytest

from fuseplan.errors import OptionError, StoreError
from fuseplan.models.rows import (
    CutIsland,
    IslandCut,
    Measured,
    Rows,
    device_name,
    packaged,
    read_header,
    read_rows,
)
from fuseplan.models.shipped import machine_of
from fuseplan.tuning_db.training import rows_of
from models_rows import shipped_file, write_rows
from small_graphs import graph, op, tensor
from stored import CPU, GELU, HERE, RELU, measurement, store_at

X = tensor(64, 64)
REGION = graph({"x": X}, op("exp.default", ("%x",), ("y", X)), out="y")
ROW = Measured(REGION.key, "bert-1x128", "island", "0", "inductor", "default", "ok", 2.5, 11.0, 64, 1.25)
HEADER = {"environment": {"gpu": "NVIDIA H200"}, "machine": {"bandwidth_gbs": 4100.0}, "command": "scripts/collect"}


def rows() -> Rows:
    failed = Measured(REGION.key, "bert-1x128", "island", "0", "nvfuser", "default", "error")
    island = CutIsland("island", "bert-1x128", (IslandCut("maximal", "", (("0", REGION.key),)),))
    return Rows({"format": 1, **HEADER}, (ROW, failed), {REGION.key: REGION}, (island,))


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.xz"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    write_rows(tmp_path / name, rows())
    found = read_rows(tmp_path / name)
    assert found == rows()
    assert [row.ok for row in found.rows] == [True, False]
    first = (tmp_path / name).read_bytes()
    write_rows(tmp_path / name, found)
    assert (tmp_path / name).read_bytes() == first


def test_the_header_says_what_was_measured_on(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl.xz", rows())
    header = read_header(tmp_path / "rows.jsonl.xz")
    assert device_name(header) == "NVIDIA H200"
    assert machine_of(header).bandwidth_gbs == 4100.0
    assert machine_of(header).units == 132


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"region": "k"}', "line 5: not a row: KeyError: 'family'"),
        ("nonsense", "line 5: not a row: JSONDecodeError"),
        ("[1, 2]", "line 5: not a row"),
        ('{"graph": "k", "json": {"ops": 3}}', "line 5: not a row"),
        (json.dumps({**dict.fromkeys(("region", "family", "island", "choice", "executor", "variant"), "x"), "status": "ok"}),
         "1 region with rows but no graph, the first is x"),
    ],
)  # fmt: skip
def test_a_broken_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    write_rows(path, Rows(rows().header, rows().rows, rows().graphs))
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(OptionError) as error:
        read_rows(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("content", [b"", b"{}\n", b'{"format": 99}\n', b"\xff\xfe", lzma.compress(b"x")[:20]])
def test_what_is_no_file_of_rows_is_refused(tmp_path: Path, content: bytes) -> None:
    for name in ("rows.jsonl", "rows.jsonl.xz"):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(OptionError):
            read_header(path)
        if content:
            with pytest.raises(OptionError):
                read_rows(path)
    with pytest.raises(OptionError, match="cannot be read"):
        read_rows(tmp_path / "none.jsonl")


def test_the_rows_that_ship_are_many_and_of_every_executor() -> None:
    with lzma.open(shipped_file(), "rt", encoding="utf-8") as file:
        header, *lines = [json.loads(line) for line in file]
    good = [line for line in lines if line.get("status") == "ok"]
    assert header["environment"]["gpu"] == "NVIDIA H200"
    assert len(good) >= 6000
    assert len({line["family"] for line in good}) >= 25
    assert all(count >= 1000 for count in Counter(line["executor"] for line in good).values())
    assert {line["executor"] for line in good} == {"aten", "inductor", "nvfuser"}
    graphs = {line["graph"] for line in lines if "graph" in line}
    assert {line["region"] for line in good} <= graphs
    assert sum(path.stat().st_size for path in packaged()) < 5e6


def test_measurements_of_a_database_are_rows_by_device(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tuned.db")
    good = measurement()
    store.add_measurements(RELU, [good, measurement(executor="aten", status="wrong", device_us=None, host_us=None)])
    store.add_measurements(RELU, [measurement(executor="nvfuser", status="refused", device_us=None, host_us=None)])
    store.add_measurements(GELU, [measurement(GELU, environment=CPU, device_us=40.0)])
    store.close()
    by_device = {device_name(one.header): one for one in rows_of(tmp_path / "tuned.db")}
    gpu = by_device[str(HERE.gpu)]
    assert [(row.executor, row.device_us, row.ok) for row in sorted(gpu.rows, key=lambda row: row.executor)] == [
        ("aten", math.inf, False), ("inductor", 12.5, True)
    ]  # fmt: skip
    assert gpu.graphs == {RELU.key: RELU}
    assert [row.device_us for row in by_device[str(CPU.cpu)].rows] == [40.0]
    with pytest.raises(StoreError):
        rows_of(tmp_path / "none.db")
