"""One process of the soak: writes or reads until it is told to stop, and tells on its output what it has done."""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path

from fuseplan.tuning_db import Miss
from stored import HERE, PROGRAM, RELU, measurement, plan, question, store_at

FINE = {"no such program", "no such region"}
"""A reader may come before the first writer."""


def write(path: Path, name: str, until: float) -> None:
    """Write measurements, and now and then a plan; print each as soon as the store says that it is kept."""
    store = store_at(path)
    number = 0
    while time.time() < until:
        number += 1
        if store.add_measurement(RELU, measurement(variant=f"{name} {number}")):
            print(f"{name} {number}", flush=True)
        else:
            print("not kept", flush=True)
        if number % 10 == 0:
            store.add_plan(plan(wall_us=float(number), changed_at=f"2026-11-20T12:00:{number % 60:02}.000Z"))


def read(path: Path, until: float) -> None:
    """Look up; print what is no answer."""
    store = store_at(path)
    count = 0
    while time.time() < until:
        for found in (
            store.find_plan(question()),
            store.find_measurements(RELU.key, HERE) if count % 50 == 0 else None,
            store.find_default_timings(PROGRAM, HERE) if count % 50 == 0 else None,
        ):
            if isinstance(found, Miss) and found.reason not in FINE:
                print(f"wrong: {found.reason}: {found.detail}", flush=True)
        count += 1
    print(f"read {count}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]), sys.argv[3], float(sys.argv[4]))
    else:
        read(Path(sys.argv[2]), float(sys.argv[4]))
