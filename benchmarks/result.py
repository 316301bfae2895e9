"""The result files: every figure stands with the command that measured it and what it was measured on."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = (
    "torch", "triton", "numpy", "transformers", "timm", "lightning-thunder",
    *(f"nvfuser-cu{cuda}-torch{torch}" for cuda in (130, 128) for torch in (210, 211)),
)  # fmt: skip


def write_result(name: str, arguments: Sequence[str], results: Any, file: str = "") -> Path:
    """Write what benchmark `name` measured to benchmarks/results/, under its own name or that of a `file`, and return the file.

    A figure of a CPU must not stand in the place of one of a GPU, nor that of one kind of GPU in the place of another's.
    """
    machine = environment()
    path = result_file(file or name)
    content = {
        "command": shlex.join(["scripts/bench", name, *arguments]),
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "environment": machine,
        "results": results,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    return write_json(path, content)


@contextmanager
def alone() -> Iterator[None]:
    """While it lasts, no other process reads and writes results: what one adds, another must not take away."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    folder = os.open(RESULTS, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def write_json(path: Path, content: Any) -> Path:
    """Write a file at once or not at all: whoever is interrupted leaves the one that was there."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    part.replace(path)
    return path


def result_file(name: str, suffix: str = "json") -> Path:
    """Where the results of a benchmark are on this kind of machine: NAME.json of a CPU, NAME.gpu.json of the kind of GPU that was
    measured first, and of each other kind a file that has the kind in its name.
    """
    gpu = _gpu()
    if not gpu:
        return RESULTS / f"{name}.{suffix}"
    first = RESULTS / f"{name}.gpu.json"
    kind = kind_of(gpu["gpu"])
    if first.exists() and kind_of(read_json(first)["environment"]["gpu"]) != kind:
        return RESULTS / f"{name}.{kind}.gpu.{suffix}"
    return RESULTS / f"{name}.gpu.{suffix}"


def kind_of(gpu: str) -> str:
    """The kind of a GPU, as a part of a file's name, from what a result file says of it: its name and its driver.

    >>> kind_of("NVIDIA H100 80GB HBM3, 580.159.04")
    'nvidia-h100-80gb-hbm3'
    """
    return slug(gpu.partition(",")[0])


def slug(name: str) -> str:
    """A name as part of a file's.

    >>> slug("bert 32x128")
    'bert-32x128'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def read_json(path: Path) -> Any:
    """What a file of JSON holds."""
    return json.loads(path.read_text(encoding="utf-8"))


def earlier_results(name: str) -> dict[str, Any]:
    """What an earlier run of a benchmark has written here; nothing where there was none."""
    path = result_file(name)
    found: Any = read_json(path)["results"] if path.exists() else {}
    return found if isinstance(found, dict) else {}


def environment() -> dict[str, Any]:
    """The machine and the versions that a measurement is true for."""
    from fuseplan.measure.pool import cores  # not above: it brings torch, which who runs a task has no use for

    found: dict[str, Any] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": cores(),
        "packages": {name: number for name in PACKAGES if (number := _version(name))},
    }
    found.update(_gpu())
    return found


@cache
def commit() -> str:
    """The commit measured, with a + where the working tree differs from it: that which was asked for first, since a benchmark may run
    while somebody works on.
    """
    said = os.environ.get("FUSEPLAN_COMMIT")
    if said:  # of a copy of the tree on another machine, which has no history, or another one
        return said
    try:
        # Result files are what a benchmark writes: one alone does not make the code another.
        described = _output("git", "-C", str(ROOT), "status", "--porcelain", "--", ".", ":!benchmarks/results")
        return _output("git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD") + ("+" if described else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown: not in a git checkout; FUSEPLAN_COMMIT may say of which commit this is a copy"


def _gpu() -> dict[str, Any]:
    query = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    try:
        lines = _output(*query).splitlines()
    except (OSError, subprocess.CalledProcessError):
        return {}
    return {"gpu": lines[0], "gpus": len(lines)} if lines else {}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
