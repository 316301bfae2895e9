"""Whether nvFuser fits the torch it meets: found out by running a fusion of one op in a process of its own, once."""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

import torch

from fuseplan.executors.nvfuser.kept import FITS, KnownRegions

_PROBE = """
import torch, nvfuser_direct as nv
fusion = nv.Fusion()
guard = nv.FusionGuard(fusion)
x = nv.define_tensor(shape=[4], contiguity=[True], dtype=nv.DataType.Float)
fusion.add_input(x)
fusion.add_output(nv.ops.neg(x))
del guard
given = torch.arange(4.0, device="cuda")
(result,) = nv.FusionExecutorCache(fusion).execute([given])
assert torch.equal(result, -given), "a fusion of one op gave a wrong result"
"""
_SECONDS = 120
_lock = threading.Lock()


def version() -> str:
    """The version of the nvFuser that would be imported, read without importing it; "none" where there is none."""
    spec = importlib.util.find_spec("nvfuser_direct")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        written = Path(folder) / "version.py"
        found = re.search(r"_version_str\s*=\s*['\"]([^'\"]+)", written.read_text()) if written.is_file() else None
        return found[1] if found else "unknown"
    return "none"


def misfit() -> str | None:
    """None where nvFuser works here, else one line that says why it does not. Found out once, whoever asks at a time."""
    with _lock:
        return _misfit()


@cache
def _misfit() -> str | None:
    if importlib.util.find_spec("nvfuser_direct") is None:
        return "nvFuser is not installed (no module nvfuser_direct)"
    if not torch.cuda.is_available():
        return "there is no CUDA GPU here"
    kept = KnownRegions.here()
    if FITS in kept:
        return None
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"a fusion of one op did not end within {_SECONDS} s"
    except OSError as error:
        return f"a fusion of one op could not be tried: {error}"
    if done.returncode == 0:
        kept.add(FITS)
        return None
    return f"nvFuser {version()} does not fit torch {torch.__version__}: {_why(done)}"


def _why(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode < 0:
        return f"a fusion of one op died of {signal.Signals(-done.returncode).name}"
    lines = [line.strip() for line in done.stderr.splitlines() if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return lines[-1] if lines else f"a fusion of one op ended with status {done.returncode}"
