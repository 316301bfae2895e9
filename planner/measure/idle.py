"""Whether a device has nothing to do: who measures beside others measures these, too, and takes their time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import sleep

import torch

from fuseplan.measure.environment import told_by

SAMPLES, APART_S = 4, 0.5
"""A device is idle that is found so each time: steps of a loop leave gaps."""
MOST_OF_GPU, MOST_OF_CPU = 0.05, 0.25
"""The share of its time in which an idle device may be at work."""
_STAT = Path("/proc/stat")


def why_busy(device: str, busy: Callable[[str], float | None] | None = None, apart_s: float = APART_S) -> str | None:
    """Why a device is to be left alone now; None where it is idle. `busy` tells the share of its time in which it works, as that stands;
    what nobody can tell counts as idle.

    >>> why_busy("cpu", lambda device: 0.4, apart_s=0.0)
    'cpu is at work 40% of its time'
    >>> why_busy("cuda:0", lambda device: None, apart_s=0.0) is None
    True
    """
    most = MOST_OF_CPU if device.startswith("cpu") else MOST_OF_GPU
    for number in range(SAMPLES):
        if number:
            sleep(apart_s)
        share = (busy or _busy)(device)
        if share is not None and share > most:
            return f"{device} is at work {share:.0%} of its time"
    return None


def _busy(device: str) -> float | None:
    return _busy_cpu() if device.startswith("cpu") else _busy_gpu(torch.device(device).index or 0)


def _busy_cpu() -> float | None:
    """Of the cores that this process may use, over a moment; by the load of the last minute where the system does not tell."""
    before = _ticks()
    sleep(APART_S)
    after = _ticks()
    if before is None or after is None or after[1] == before[1]:
        return os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else None
    return (after[0] - before[0]) / (after[1] - before[1])


def _ticks() -> tuple[int, int] | None:
    """Those at work, and all."""
    try:
        lines = [line.split() for line in _STAT.read_text("ascii").splitlines() if line.startswith("cpu")]
        numbers = {words[0]: [int(word) for word in words[1:9]] for words in lines}
        mine = [f"cpu{number}" for number in os.sched_getaffinity(0)] if hasattr(os, "sched_getaffinity") else ["cpu"]
        cores = [numbers[name] for name in mine if name in numbers] or [numbers["cpu"]]
    except (OSError, ValueError, KeyError):
        return None
    each = [sum(ticks) for ticks in zip(*cores, strict=True)]
    return sum(each) - sum(each[3:5]), sum(each)  # the fourth waits for nothing, the fifth for disks


def _busy_gpu(index: int) -> float | None:
    """As its driver tells, of whoever uses it."""
    name = str(getattr(torch.cuda.get_device_properties(index), "uuid", "") or "")
    place = f"GPU-{name}" if name and not name.startswith("GPU-") else name or str(index)
    told = told_by("nvidia-smi", f"--id={place}", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")
    return float(told) / 100 if told is not None and told.strip().isdigit() else None
