"""Several benchmarks of whole models in one go: for each model one after the other, with what the first has tuned and
compiled there for the next. Results are added to the files of each benchmark, so that it may be done in parts.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.active import WITH
from benchmarks.fleet import GRACE_S, Report, Task, run_all, run_one, slug
from benchmarks.harness import LAUNCHES, options
from benchmarks.progress import say
from benchmarks.zoo import EVERY, SHOWN

STEPS = ("active", "models", "ablation", "startup")
STEP_GRACE_S = 2 * GRACE_S
"""A step ends its own processes first."""


def measure(arguments: list[str]) -> None:
    """The chosen steps for the chosen models, both in the order given."""
    parser = options("campaign", __doc__, EVERY)
    parser.add_argument(
        "--step", action="append", choices=STEPS, metavar="STEP", help=f"of {', '.join(STEPS)}; in this order"
    )
    parser.add_argument("--gpus", type=int, default=1, help="models at a time, each with a GPU of its own")
    parser.add_argument("--within-s", type=float, default=3600.0, help="what all may take; the rest is not begun")
    parser.add_argument("--least-s", type=float, default=120.0, help="with less time left no step is begun")
    parser.add_argument("--folder", type=Path, required=True, help="for databases, caches and logs; may be used again")
    parser.add_argument("--times", type=float, default=1.0, help="`active` gives both sides so many times the budget")
    parser.add_argument("--launch", action="append", choices=LAUNCHES, help="`ablation` has both, unless one is given")
    chosen = parser.parse_args(arguments)
    folder = chosen.folder.absolute()
    told = {
        "steps": chosen.step or list(STEPS),
        "folder": str(folder),
        "device": chosen.device,
        "least_s": chosen.least_s,
        "times": chosen.times,
        "launches": chosen.launch or [],
    }
    tasks = []
    for name in chosen.only or SHOWN:
        out = folder / "logs" / f"{slug(name)}.json"
        log, grace_s = out.with_suffix(".log"), STEP_GRACE_S + GRACE_S
        tasks.append(Task(name, "benchmarks.campaign", out, log, told, chosen.within_s, grace_s=grace_s))

    def done(task: Task, report: dict[str, Any], failed: str) -> None:
        steps = [f"{step} {how}" for step, how in report.get("steps", {}).items()]
        say(f"{task.name}: {'; '.join([*steps, *([failed] if failed else [])])}")

    for task in run_all(tasks, chosen.gpus, chosen.within_s, done):
        say(f"{task.name}: not begun, no time was left")


def run(task: Task) -> None:
    """All chosen benchmarks of one model, each in a process of its own: how each ended, and what it took."""
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
