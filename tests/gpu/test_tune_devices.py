"""Two GPUs of one host tune together: real workers, real times, one database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fuseplan
from fuseplan.measure.environment import environment
from fuseplan.tuning.traces import traces_of
from fuseplan.tuning_db import Places, Store

pytestmark = [
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="it takes two GPUs"),
    pytest.mark.timeout(900),
]


class Layers(nn.Module):
    """Programs of different lengths, of the same regions."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = nn.functional.gelu(layer(x)) * 2 + x
        return x


def written(folder: Path) -> Path:
    folder.mkdir()
    for count in (1, 2, 3, 4):
        with torch.no_grad():
            (trace,) = traces_of(Layers(count).cuda(), torch.randn(512, 256, device="cuda"), name=f"{count} layers")
        (folder / f"{count}.json").write_text(trace.to_text())
    return folder


def test_programs_are_shared_out_and_regions_measured_once(tmp_path: Path) -> None:
    if environment("cuda:0") != environment("cuda:1"):
        pytest.skip("the two GPUs are not alike")
    database, traces = tmp_path / "db.sqlite3", written(tmp_path / "traces")
    command = [sys.executable, "-c", "from fuseplan.cli import main; main()", "tune", str(traces), "--json"]
    command += ["--device", "cuda:0,cuda:1", "--db", str(database)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert ran.returncode == 0, ran.stderr
    print(ran.stderr)
    found = json.loads(ran.stdout)
    assert [one["name"] for one in found] == ["1 layers", "2 layers", "3 layers", "4 layers"]
    assert {one["status"] for one in found} <= {"tuned", "default"}
    store = Store(Places(database))

    def ask(sql: str) -> list[tuple[object, ...]]:
        return store.file.read(lambda connection: connection.execute(sql).fetchall())

    assert ask("SELECT count(*) FROM environment") == [(1,)]
    twice = "SELECT region_id, executor, variant FROM measurement GROUP BY 1, 2, 3 HAVING count(*) > 1"
    assert ask(twice) == []
    spans = ask("SELECT started_at, changed_at FROM run ORDER BY started_at")
    assert len(spans) == 4
    assert any(str(later[0]) < str(one[1]) for one, later in pairwise(spans)), "one after the other"
    store.close()


def test_a_plan_tuned_on_the_second_gpu_is_found_on_the_first(tmp_path: Path) -> None:
    database = tmp_path / "db.sqlite3"
    model, x = Layers(1).cuda(), torch.randn(512, 256, device="cuda")
    with torch.no_grad():
        traces = traces_of(model, x, name="layer")
    (first,) = fuseplan.tune(traces, device="cuda:1", db=database)
    (again,) = fuseplan.tune(traces, device="cuda:0", db=database)
    assert first.status in ("tuned", "default")
    if environment("cuda:0") == environment("cuda:1"):
        assert (again.plan, again.measured) == (first.plan, 0)
