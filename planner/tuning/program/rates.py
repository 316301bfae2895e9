"""What a GPU can do, as it was measured for a database here: for a day nobody need measure it again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from threading import Lock

from fuseplan.errors import OptionError, StoreError
from fuseplan.log import logger
from fuseplan.models import Machine
from fuseplan.tuning_db import Environment, clock
from fuseplan.tuning_db.whole_files import written_whole

LASTS = timedelta(days=1)
"""What had disturbed the measuring does not say for ever how fast the machine is."""
_WRITING = Lock()


def recalled(folder: Path | None, here: Environment, guess: Machine) -> Machine | None:
    """The machine with the rates that were measured here lately; None where they are not known, or are no rates."""
    if folder is None:
        return None
    path = _file(folder, here)
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        known = (clock.written(datetime.now(timezone.utc) - LASTS), clock.now())
        rates = {str(name): float(rate) for name, rate in kept["rates"].items()}
        if not rates or not clock.is_time(kept["measured_at"]):
            raise ValueError("nothing was measured, or nobody knows when")
        if known[0] <= kept["measured_at"] <= known[1]:
            return guess.calibrated(rates)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, ArithmeticError, RecursionError, LookupError, TypeError, AttributeError, OptionError):
        logger.warning("what is known of this machine is left aside, and measured again: %s is damaged", path)
    return None


def keep(folder: Path | None, here: Environment, rates: Mapping[str, float]) -> None:
    """Write down what was measured. A folder that cannot be written is no reason to stop."""
    if folder is None or not rates:
        return
    try:
        with _WRITING:  # several devices of a kind are measured at the same time
            folder.mkdir(parents=True, exist_ok=True)
            with written_whole(_file(folder, here)) as part:
                part.write_text(json.dumps({"measured_at": clock.now(), "rates": dict(rates)}), encoding="utf-8")
    except (OSError, StoreError) as error:
        logger.warning("what this machine can do cannot be kept: %s", error)


def _file(folder: Path, here: Environment) -> Path:
    return folder / f"machine-{here.key}.json"
