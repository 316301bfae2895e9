"""The memory of this machine: all of it, and what is free, within the limit of a container. No torch."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def host_memory() -> int:
    """Bytes that the host has in all, within the limit of a container if there is one."""
    limits = [most for limit, _ in _CGROUPS if (most := _number(limit)) is not None]
    return min((os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *limits))


def free_host_memory() -> int | None:
    """Bytes that the host could still give, within the limit of a container if there is one; None if nobody says."""
    found = [kilobytes(Path("/proc/meminfo"), "MemAvailable")]
    for limit, used in _CGROUPS:
        most, now = _number(limit), _number(used)
        found.append(None if most is None or now is None else max(most - now, 0))
    known = [number for number in found if number is not None]
    return min(known) if known else None


def kilobytes(path: Path, field: str) -> int | None:
    """Bytes that a file such as /proc/meminfo gives a field, in kilobytes; None where it does not."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = (entry.split()[1] for entry in lines if entry.startswith(f"{field}:"))
    number = next(found, None)
    return None if number is None else int(number) * 1024


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError):  # "max" where there is no limit
        return None
