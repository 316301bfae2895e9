"""DistributedDataParallel around a compiled program: two processes over gloo, gradients as eager's DDP averages them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from plans import SEGMENTED

WORKER = Path(__file__).with_name("ddp_worker.py")
WORLD = 2


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "plans", [(SEGMENTED, "carved"), pytest.param(("eager",), marks=pytest.mark.exhaustive)], ids=" ".join
)
def test_two_processes_train_as_under_eager(plans: tuple[str, ...], tmp_path: Path) -> None:
    """One pair of processes, under one plan after the other: to start them takes as long as to train."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(WORKER)]
    workers = [
        subprocess.Popen(
            [*command, str(rank), str(WORLD), str(tmp_path / "store"), *plans],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(WORLD)
    ]
    try:
        reports = [worker.communicate(timeout=150)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0] * WORLD, "\n".join(reports)
    assert [report.split()[-len(plans) :] for report in reports] == [[*plans]] * WORLD
