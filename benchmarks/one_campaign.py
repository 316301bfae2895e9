"""All chosen benchmarks of one model, each in a process of its own. `campaign` starts it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from time import monotonic

from benchmarks.fleet import GRACE_S, Report, Task, run_one, slug
from benchmarks.one_active import WITH

STEP_GRACE_S = 2 * GRACE_S
"""A step ends its own processes first."""


def run(task: Task) -> None:
    """How each step ended, and what it took."""
    given, began = task.arguments, monotonic()
    report, steps = Report(task.out), dict[str, str]()
    folder, name = Path(given["folder"]), slug(task.name)
    caches, kept, db = folder / "caches" / name, folder / "kept", folder / f"{name}.db"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(caches)
    own = {
        "active": ["--caches", str(caches), "--keep", str(kept), "--times", str(given["times"])],
        "models": ["--db", str(db)],
        "ablation": ["--db", str(db), *(word for one in given["launches"] for word in ("--launch", one))],
        "startup": ["--db", str(db)],
    }
    for step in given["steps"]:
        left = task.limit_s - (monotonic() - began) - GRACE_S
        if left < given["least_s"]:
            steps[step] = "no time was left for it"
            continue
        tuned = kept / name / f"{WITH}.db"
        if step != "active" and tuned.exists() and not db.exists():
            shutil.copy(tuned, db)
            shutil.copytree(f"{tuned}.tuned", f"{db}.tuned")
        report.at(step)
        at = monotonic()
        common = ["--append", "--only", task.name, "--device", given["device"], "--limit-s", f"{left - GRACE_S:.0f}"]
        logs = ["--logs", str(folder / "logs" / step)]
        command = [sys.executable, "-m", "benchmarks", step, *common, *logs, *own[step]]
        ended = run_one(command, STEP_GRACE_S)
        steps[step] = f"{'done' if ended == 0 else f'ended with {ended}'} in {monotonic() - at:.0f} s"
        report.put(steps=steps)
    report.put(steps=steps, at="", at_side="")
