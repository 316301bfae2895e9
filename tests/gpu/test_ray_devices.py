"""The GPUs of a Ray cluster of this one machine tune together: real Ray, real workers, real times. One that others use is left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from fuseplan.tuning_db import Places, Store
from gpu.test_tune_devices import written

pytest.importorskip("ray")
pytestmark = pytest.mark.timeout(900)

BUSY = """
import torch
x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
print("busy", flush=True)
while True:
    for _ in range(50):
        x @ x
    torch.cuda.synchronize()
"""


@contextmanager
def busy(device: int) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdout=subprocess.PIPE, env=os.environ | {"CUDA_VISIBLE_DEVICES": str(device)}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"busy\n"
        try:
            yield
        finally:
            process.kill()


def tuned(traces: Path, database: Path, *how: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from fuseplan.cli import main; main()", "tune", str(traces), "--json"]
    ran = subprocess.run(
        [*command, "--db", str(database), *how], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    print(ran.stderr)
    return ran


def at_the_same_time(database: Path) -> bool:
    """Whether any two runs were at work together."""
    store = Store(Places(database))
    ask = "SELECT started_at, changed_at FROM run ORDER BY started_at"
    spans = store.file.read(lambda connection: connection.execute(ask).fetchall())
    store.close()
    return any(str(later[0]) < str(one[1]) for one, later in pairwise(spans))


def test_each_gpu_has_an_actor_and_its_plans_are_found_without_ray(tmp_path: Path) -> None:
    database, traces = tmp_path / "db.sqlite3", written(tmp_path / "traces")
    ran = tuned(traces, database, "--on", "ray")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert {one["status"] for one in found} <= {"tuned", "default"}
    assert all(one["wall_us"] for one in found)
    assert at_the_same_time(database) == (torch.cuda.device_count() > 1)
    again = tuned(traces, database, "--device", "cuda:0")
    assert again.returncode == 0, again.stderr
    # to the last digit: nothing was timed anew
    assert [(one["name"], one["plan"], one["wall_us"]) for one in json.loads(again.stdout)] == [
        (one["name"], one["plan"], one["wall_us"]) for one in found
    ]


def test_a_gpu_that_others_use_is_left_out(tmp_path: Path) -> None:
    database, traces = tmp_path / "db.sqlite3", written(tmp_path / "traces")
    last = torch.cuda.device_count() - 1
    with busy(last):
        ran = tuned(traces, database, "--on", "ray")
    assert f"/cuda:{last} is left out: others use it" in ran.stderr
    if last == 0:
        assert ran.returncode != 0
        assert "no device of the cluster can work" in ran.stderr
        assert not ran.stdout
    else:
        assert ran.returncode == 0, ran.stderr
        assert at_the_same_time(database) == (last > 1)
