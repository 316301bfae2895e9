"""A driver that tunes on a Ray cluster, to be killed: ``python ray_driver.py FOLDER ADDRESS`` tunes the traces in FOLDER into its
`driven.sqlite3`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fuseplan.fleet.on_ray import on_ray
from fuseplan.tune import tune
from fuseplan.tuning.progress import Silent
from ray_hosts import QuickHost


def main(folder: Path, address: str) -> None:
    with on_ray(("cpu",), address, host=QuickHost) as fleet:
        print("ready", flush=True)
        tune(
            folder / "traces", db=folder / "driven.sqlite3", on=fleet, device="cpu", progress=Silent(), model="roofline"
        )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
