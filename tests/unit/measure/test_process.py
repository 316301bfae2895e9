"""A worker that cannot be started says why."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fuseplan.errors import ExecutorError
from fuseplan.measure import process
from fuseplan.measure.jobs import Rest, Setup

NO_MEMORY = """import os, signal, sys
sys.stdin.readline()
sys.stderr.write('''Traceback (most recent call last):
  File "worker.py", line 1, in <module>
torch.AcceleratorError: CUDA error: out of memory
Search for `cudaErrorMemoryAllocation' in the manual for more information.
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.

''')
sys.stderr.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
CHAINED = """import sys
sys.stdin.readline()
try:
    raise KeyError("first")
except KeyError:
    raise StopIteration("second")
"""
NO_MODULE = "import sys; sys.exit('no module of that name')"


@pytest.mark.parametrize(
    ("script", "told"),
    [
        pytest.param(NO_MEMORY, "AcceleratorError: CUDA error: out of memory$", id="advice behind the error"),
        pytest.param(CHAINED, "exited with 1: StopIteration: second$", id="an error after another"),
        pytest.param(NO_MODULE, "exited with 1: no module of that name$", id="no traceback"),
        pytest.param("import sys; sys.exit(3)", "exited with 3$", id="nothing"),
    ],
)
def test_a_worker_that_does_not_start_says_what_has_happened(
    script: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "worker.py").write_text(script)
    monkeypatch.setattr(process, "_standing", None)
    monkeypatch.setattr(process, "_STEM", (sys.executable, "-c", "raise SystemExit('it cannot be imported')"))
    monkeypatch.setattr(process, "_COMMAND", (sys.executable, str(tmp_path / "worker.py")))
    worker = process.WorkerProcess(Setup("cpu"), 30.0)
    try:
        with pytest.raises(ExecutorError, match=told):
            worker.ask(Rest(), 30.0)
    finally:
        worker.end()
