"""The model that ships: fitted on the packaged rows of the machine most like the one at hand, once, and kept in a cache.

What is kept are plain arrays under the hash of all that went into them. Nothing is pickled, and nothing has to be there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any

from fuseplan.errors import OptionError
from fuseplan.log import logger
from fuseplan.models import features, heads, learners
from fuseplan.models.fitting import fit_heads
from fuseplan.models.heads import Heads
from fuseplan.models.learned import Learned
from fuseplan.models.machine import Machine
from fuseplan.models.model import CostModel, Row
from fuseplan.models.roofline import Roofline
from fuseplan.models.rows import Rows, device_name, packaged, read_header, read_rows
from fuseplan.models.table import work_of
from fuseplan.models.work import Work

_READING = Lock()
"""Held while a model is read or fitted. Threads that tune for several devices ask at once: the second finds what the first has kept, and
Python 3.11 may raise a SystemError where two threads parse at once, as numpy does for each table that it reads."""
_CODE = ("conformal", "facts", "features", "fit", "fitting", "flops", "heads", "kinds", "learners", "machine", "support", "table",
         "terms", "traits", "trees", "work")  # fmt: skip
"""The modules that a fit depends on: a change of one is another fit."""


def planner_model(machine: Machine, folder: Path | None = None, files: Sequence[Path] | None = None) -> CostModel:
    """The best model there is for a machine: learned where rows of its kind ship with fuseplan, else the roofline.

    `folder` is where fits are kept, `fuseplan model fit`'s too, which comes first; without one, each process fits for itself.

    >>> type(planner_model(Machine.guess("NVIDIA H200"), files=())).__name__
    'Roofline'
    """
    with _READING:
        own = None if folder is None else _kept(own_fit(folder, machine))
        path = rows_for(machine, packaged() if files is None else files)
        found = own or (None if path is None else shipped_heads(path, folder))
    return Roofline(machine) if found is None else Learned(replace(found, machine=machine))


def rows_for(machine: Machine, files: Sequence[Path]) -> Path | None:
    """The file measured on this product, else on the same type of device; None if there is none."""
    products = {path: device_of(path) for path in files}
    like = [path for path, (_, device) in products.items() if device == machine.device]
    return next((path for path in like if products[path][0] == machine.name), like[0] if like else None)


def device_of(path: Path) -> tuple[str, str]:
    """The product that a file was measured on, and its type."""
    machine = machine_of(read_header(path))
    return machine.name, machine.device


def shipped_heads(path: Path, folder: Path | None = None) -> Heads | None:
    """What the rows of a file teach; None where they are too few, or unreadable."""
    kept = None if folder is None else folder / f"{fit_key(path)}.npz"
    if kept is not None and (before := _kept(kept)) is not None:
        return before
    found = _fitted(path, fit_key(path))
    if found is None:
        return None
    if kept is not None:
        keep(found, kept)
    return found


@cache
def _fitted(path: Path, key: str) -> Heads | None:
    """The fit on the rows of a file; once in a process, as it takes seconds and some have no folder to keep it in."""
    try:
        rows = read_rows(path)
        known, groups = model_rows(rows)
        return fit_heads(known, machine_of(rows.header), groups)
    except OptionError as error:
        logger.warning("no model is learnt from %s: %s", path, error)
        return None


def own_fit(folder: Path, machine: Machine) -> Path:
    """Where `fuseplan model fit` keeps what it learnt of a product."""
    return folder / f"own-{hashlib.sha256(machine.name.encode()).hexdigest()[:16]}.npz"


def _kept(path: Path) -> Heads | None:
    if not path.exists():
        return None
    try:
        return Heads.load(path.read_bytes())
    except (OSError, OptionError) as error:
        logger.warning("the model in %s is left aside: %s", path, error)
        return None


def keep(found: Heads, path: Path) -> str | None:
    """Write a fit, all or nothing; a folder that cannot be written is no reason to stop. Returns why it is not kept."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(found.dump())
        part.replace(path)
    except OSError as error:
        logger.warning("the fitted model cannot be kept: %s", error)
        return str(error)
    return None


def fit_key(path: Path) -> str:
    """The hash of all that a fit depends on."""
    text = hashlib.sha256(path.read_bytes())
    text.update(f"{heads.FORMAT} {features.VERSION} {learners.CHOSEN} {version('scikit-learn')}".encode())
    for name in _CODE:
        text.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return text.hexdigest()[:32]


def machine_of(header: Mapping[str, Any]) -> Machine:
    """The machine that rows were measured on, as far as it was calibrated.

    >>> machine_of({"environment": {"gpu": "NVIDIA H200"}, "machine": {"bandwidth_gbs": 4100.0}}).bandwidth_gbs
    4100.0
    """
    rates = header.get("machine") or {}
    return Machine.guess(device_name(header)).calibrated({str(name): float(rate) for name, rate in rates.items()})


def model_rows(rows: Rows) -> tuple[list[Row], list[str]]:
    """Rows as models learn from them, and the island of each."""
    works: dict[str, Work] = {}
    found = []
    for row in rows.rows:
        if row.region not in works:
            works[row.region] = work_of(rows.graphs[row.region])
        times = (row.device_us, row.host_us)
        found.append(Row(works[row.region], row.executor, row.variant, *times, row.status))
    return found, [row.island for row in rows.rows]
