"""The folder of a recording: one file for each program, written at once and whole, so that a killed run keeps what it met."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from fuseplan.capture.trace.calls import larger
from fuseplan.capture.trace.format import Trace
from fuseplan.errors import GraphError, OptionError

_NAME, _SIZES = 60, 40
"""Characters of a file's name for what the program is called, and for its sizes."""


def check_folder(folder: Path) -> None:
    """OptionError where nothing can be written there. The folder itself is left to the first trace: many may check at once."""
    try:
        with TemporaryDirectory(prefix=".fuseplan-", dir=_nearest(folder)):
            pass
    except OSError as error:
        raise OptionError(f"nothing can be recorded in {folder}: {error.strerror or error}") from None


def _nearest(folder: Path) -> Path:
    """The folder, else the first above it that is there."""
    for place in (folder, *folder.parents):
        with suppress(FileNotFoundError):
            os.stat(place)
            return place
    return folder


def keep(folder: Path, trace: Trace) -> Path:
    """Write a trace to its file. What an earlier run, or another process, counted there stays where it is more."""
    file = folder / file_name(trace)
    before = known(file)
    if before is not None and before.key == trace.key:
        trace = replace(trace, calls=larger(trace.calls, before.calls))
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        unfinished.write_text(trace.to_text(), encoding="utf-8")
        os.replace(unfinished, file)
    finally:
        unfinished.unlink(missing_ok=True)
    return file


def file_name(trace: Trace) -> str:
    """What the file of a trace is called: its name, the beginning of its key, and the sizes it was first seen with.

    >>> file_name(Trace("0123456789abcdef", "train.Block", {"symbols": [{"name": "s0", "hint": 48}]}))
    'train.Block-0123456789ab-48.json'
    """
    name = re.sub(r"[^\w.]+", "-", trace.name, flags=re.ASCII).strip("-.")[:_NAME] or "program"
    sizes = "x".join(str(symbol["hint"]) for symbol in trace.fields["symbols"])
    if len(sizes) > _SIZES:
        sizes = hashlib.sha256(sizes.encode()).hexdigest()[:12]
    return f"{name}-{trace.key[:12]}{sizes and f'-{sizes}'}.json"


def known(file: Path) -> Trace | None:
    """The trace of a file; None where there is none that can be read."""
    try:
        return Trace.from_json(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, GraphError):
        return None
