"""`doctor`: what this machine offers fuseplan, executor by executor, and what would have to change for the rest."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from fuseplan.executors import executors
from fuseplan.tuning_db.layers import places
from fuseplan.tuning_db.shared_state import SharedState

NVFUSER_PYTHONS = ((3, 10), (3, 12))
"""nvFuser's index has builds for these Python versions alone."""
NVFUSER_TORCH = (2, 10)
"""The newest torch that nvFuser's index has a build for, as of March 2026."""

_WITH_ANOTHER_TORCH = "pip install 'torch==2.10.*' nvfuser-cu128-torch210"  # torch 2.10 on PyPI is built for CUDA 12.8


@dataclass(frozen=True)
class ExecutorState:
    """One executor: its version, and why it cannot run here if it cannot."""

    name: str
    version: str
    unavailable: str | None


@dataclass(frozen=True)
class Diagnosis:
    """What `doctor` found."""

    python: str
    torch: str
    cuda: str | None
    gpus: tuple[str, ...]
    triton: str | None
    compiler: str | None
    executors: tuple[ExecutorState, ...]
    nvfuser_install: str | None
    """The line that makes nvFuser work here, where it does not and a GPU is there to run it."""
    shared: SharedState | None = None
    """Plans of an organisation, where FUSEPLAN_SHARED names them."""

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return asdict(self)


def doctor() -> Diagnosis:
    """Return what this machine offers. Tries each executor, which takes some seconds where nvFuser is installed, and asks whoever
    gives the plans of an organisation.

    >>> [state.name for state in doctor().executors]
    ['aten', 'inductor', 'nvfuser']
    """
    states = tuple(ExecutorState(e.name, e.version(), e.available()) for e in executors().values())
    shared = places(os.environ).shared
    nvfuser = next(state for state in states if state.name == "nvfuser")
    return Diagnosis(
        python=platform.python_version(),
        torch=str(torch.__version__),
        cuda=torch.version.cuda,
        gpus=tuple(_gpus()),
        triton=_installed("triton"),
        compiler=next((path for name in ("g++", "clang++") if (path := shutil.which(name))), None),
        executors=states,
        nvfuser_install=None if nvfuser.unavailable is None else _install_line(),
        shared=None if shared is None else SharedState.looked(shared),
    )


def _gpus() -> list[str]:
    found = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        of = torch.cuda.get_device_properties(index)
        memory = of.total_memory / 2**30
        found.append(f"{of.name}, {of.multi_processor_count} SMs, {memory:.0f} GiB, compute {of.major}.{of.minor}")
    return found


def _install_line() -> str | None:
    """nvFuser's packages carry the CUDA and the torch version that they were built for in their names."""
    if not torch.cuda.is_available() or torch.version.cuda is None:
        return None
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    cuda = "130" if int(torch.version.cuda.split(".")[0]) >= 13 else "128"
    if sys.version_info[:2] not in NVFUSER_PYTHONS:
        wanted = " or ".join(f"{a}.{b}" for a, b in NVFUSER_PYTHONS)
        return f"under Python {wanted}: {_WITH_ANOTHER_TORCH}"
    if (major, minor) > NVFUSER_TORCH:
        return _WITH_ANOTHER_TORCH
    return f"pip install nvfuser-cu{cuda}-torch{major}{minor}"


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
