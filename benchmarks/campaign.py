"""Several benchmarks of whole models in one go: for each model one after the other, with what the first has tuned and
compiled there for the next. Results are added to the files of each benchmark, so that it may be done in parts.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.fleet import GRACE_S, Task, run_all, slug
from benchmarks.one_campaign import STEP_GRACE_S
from benchmarks.progress import say
from benchmarks.zoo import EVERY, SHOWN

STEPS = ("active", "models", "ablation", "startup")


def measure(arguments: list[str]) -> None:
    """The chosen steps for the chosen models, both in the order given."""
    parser = argparse.ArgumentParser(prog="scripts/bench campaign", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(EVERY), metavar="NAME", help="may be given again")
    parser.add_argument(
        "--step", action="append", choices=STEPS, metavar="STEP", help=f"of {', '.join(STEPS)}; in this order"
    )
    parser.add_argument("--gpus", type=int, default=1, help="models at a time, each with a GPU of its own")
    parser.add_argument("--within-s", type=float, default=3600.0, help="what all may take; the rest is not begun")
    parser.add_argument("--least-s", type=float, default=120.0, help="with less time left no step is begun")
    parser.add_argument("--folder", type=Path, required=True, help="for databases, caches and logs; may be used again")
    parser.add_argument("--device", default="cuda", help="cpu is for trying it out")
    parser.add_argument("--times", type=float, default=1.0, help="`active` gives both sides so many times the budget")
    parser.add_argument(
        "--launch", action="append", choices=("plain", "cudagraph"), help="`ablation` has both, unless one is given"
    )
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
        tasks.append(Task(name, "benchmarks.one_campaign", out, log, told, chosen.within_s, grace_s=grace_s))

    def done(task: Task, report: dict[str, Any], failed: str) -> None:
        steps = [f"{step} {how}" for step, how in report.get("steps", {}).items()]
        say(f"{task.name}: {'; '.join([*steps, *([failed] if failed else [])])}")

    for task in run_all(tasks, chosen.gpus, chosen.within_s, done):
        say(f"{task.name}: not begun, no time was left")
