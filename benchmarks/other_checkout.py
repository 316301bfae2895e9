"""Another checkout of fuseplan, measured beside this one: two versions of one package do not fit in one process.

It is tuned into a database of its own and raced against torch by its own benchmark of whole models. What both races have of
torch's says how far the two may be compared.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.fleet import GRACE_S, Task, read, run_one
from benchmarks.mutation.tree import paths_of
from benchmarks.result import slug

LEAST_S = 240.0
"""With less time left it is not begun: it tunes each launch by itself."""
SIDES = ("eager", "torch.compile", "reduce-overhead", "fuseplan tuned", "fuseplan tuned cudagraph")
"""What every version knows: torch's own, beside which times are compared, and each launch tuned."""


REFUSED = 2
"""What a benchmark ends with that does not know what it is told: of all that, the model may be newer than the checkout."""
KEPT = ("sides", "noise", "rounds", "best_tuned", "best_torch", "gpu")
"""Of its report, what becomes of its row."""


class NotItsOwnError(Exception):
    """The checkout's processes would run other code than its own."""


def measured(task: Task, seconds: float) -> dict[str, Any] | None:
    """The row of a model under the checkout, and its commit; or why there is none; nothing where so many seconds were too few.

    What it has tuned by then it finds again.
    """
    given, checkout, place = task.arguments, Path(task.arguments["against"]), task.out.parent / "against"
    commit, log, limit_s = commit_of(checkout), place / "logs" / f"{slug(task.name)}.json", seconds - 4 * GRACE_S
    try:
        variables = {**variables_of(checkout, place), "FUSEPLAN_COMMIT": commit}
    except (NotItsOwnError, subprocess.CalledProcessError, OSError) as error:
        return {"commit": commit, "failed": str(error)}
    told = {
        "only": task.name, "device": given["device"], "effort": given["effort"], "seconds": given["seconds"],
        "limit-s": round(limit_s), "db": place / f"{slug(task.name)}.db", "logs": log.parent,
    }  # fmt: skip
    sides = [side for side in SIDES if given["device"] != "cpu" or "cudagraph" not in side]
    words = [word for name, value in told.items() for word in (f"--{name}", str(value))]
    words += [word for side in sides for word in ("--side", side)]
    log.unlink(missing_ok=True)
    begun = monotonic()
    ended = run_one([sys.executable, "-m", "benchmarks", "models", *words], 2 * GRACE_S, checkout, variables)
    report = read(log)
    if report.get("best_tuned"):
        return {"commit": commit, **{key: report[key] for key in KEPT if key in report}}
    if monotonic() - begun >= limit_s:
        return None
    if ended == REFUSED and not report:
        return {"commit": commit, "failed": "its benchmark does not know this model"}
    return {"commit": commit, "failed": f"its benchmark ended with {ended}, at: {report.get('at', 'the start')}"}


def commit_of(checkout: Path) -> str:
    """What git says, or, of a copy without a history, or one that git does not read, the name of its folder."""
    if not (checkout / ".git").exists():
        return checkout.name
    command = ("git", "-C", str(checkout), "rev-parse", "--short=12", "HEAD")
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    return ran.stdout.strip() if ran.returncode == 0 else checkout.name


def variables_of(checkout: Path, place: Path) -> dict[str, str]:
    """The environment in which `import fuseplan` means the checkout; NotItsOwnError where it does not."""
    before = os.environ.get("PYTHONPATH", "")
    found = {"PYTHONPATH": os.pathsep.join(filter(None, [*paths_of(checkout, place / "first"), before]))}
    command = [sys.executable, "-c", "import fuseplan.plan; print(fuseplan.plan.__file__)"]
    environment = {**os.environ, **found}
    ran = subprocess.run(command, cwd=checkout, env=environment, check=True, capture_output=True, text=True)
    file = Path(ran.stdout.strip()).resolve()
    if not file.is_relative_to(checkout.resolve()):
        raise NotItsOwnError(f"{checkout} would run {file}")
    return found
