"""What went wrong, as a status of the database and one line that may be stored and shown: no paths, no second line."""

from __future__ import annotations

import re

import torch

from fuseplan.errors import ExecutorError, FuseplanError, GraphError, PlanError, UnsupportedError

COMPILE = "compile-error"
RUN = "error"
"""The two stages at which something fails, as the status that this is."""
MAX_DETAIL = 400

_NO_MEMORY = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|bad_alloc|alloc(ation)? failed", re.IGNORECASE
)
_PATH = re.compile(r"(?<![\w:/.])(?:[A-Za-z]:)?(?:[/\\]+[^\s/\\:'\"(),;<>]+){2,}[/\\]?")


class DeviceLostError(FuseplanError):
    """The device does nothing any more in this process, after what a kernel did to it."""


def check_device(error: BaseException) -> None:
    """Raise DeviceLostError if `error` was the last of this process's GPU: a bad access poisons all that comes after."""
    if not torch.cuda.is_initialized():
        return
    try:
        torch.cuda.synchronize()
    except RuntimeError as lost:
        raise DeviceLostError(line(str(lost))) from error


def failure(error: BaseException, stage: str) -> tuple[str, str]:
    """Return the status and the line for what was raised at a stage.

    >>> failure(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), RUN)[0]
    'out-of-memory'
    >>> failure(ValueError("no /home/me/models/x.so here\\nmore"), COMPILE)
    ('compile-error', 'ValueError: no x.so here')
    """
    return _status(error, stage), line(_text(error))


def line(text: str) -> str:
    """The first line of a text, with nothing of a path but its last part.

    >>> line("/usr/lib/x86/libfoo.so.1: cannot open")
    'libfoo.so.1: cannot open'
    """
    lines = [part.strip() for part in text.splitlines() if part.strip()]
    bare = _PATH.sub(lambda match: re.split(r"[/\\]+", match[0].rstrip("/\\"))[-1], lines[0] if lines else "")
    return bare[:MAX_DETAIL]


def _status(error: BaseException, stage: str) -> str:
    chain = list(_chain(error))
    if any(isinstance(e, (MemoryError, torch.OutOfMemoryError)) or _NO_MEMORY.search(str(e)) for e in chain):
        return "out-of-memory"
    if any(isinstance(e, (UnsupportedError, PlanError, GraphError)) for e in chain):
        return "refused"
    if any(isinstance(e, ExecutorError) for e in chain):
        return COMPILE
    return stage


def _chain(error: BaseException) -> list[BaseException]:
    """The error and what it came from: compilers wrap what they meet."""
    found: list[BaseException] = []
    while error not in found and len(found) < 20:
        found.append(error)
        inner = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__
        if inner is None:
            break
        error = inner
    return found


def _text(error: BaseException) -> str:
    said = str(error).strip()
    if isinstance(error, FuseplanError) and said:
        return said
    inner = getattr(error, "inner_exception", None)  # torch says which backend failed, and of what only further down
    if isinstance(inner, BaseException):
        return _text(inner)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
