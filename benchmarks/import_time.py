"""How long `import fuseplan` takes, in fresh processes, and how many modules and whether torch it loads."""

from __future__ import annotations

import json
import subprocess
import sys
from statistics import median
from typing import Any

from benchmarks.given import numbers

PROBE = """
import json, sys, time
before = set(sys.modules)
start = time.perf_counter()
import fuseplan
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "modules": len(set(sys.modules) - before), "torch": "torch" in sys.modules}))
"""


def measure(arguments: list[str]) -> dict[str, Any]:
    """The median over some fresh processes."""
    (processes,) = numbers("import_time", __doc__, arguments, processes=31)
    runs = [_probe() for _ in range(processes)]
    seconds = sorted(run["seconds"] for run in runs)
    return {
        "processes": len(runs),
        "median_s": median(seconds),
        "min_s": seconds[0],
        "max_s": seconds[-1],
        "limit_s": 0.15,
        "modules": runs[0]["modules"],
        "imports_torch": any(run["torch"] for run in runs),
    }


def _probe() -> dict[str, Any]:
    ran = subprocess.run([sys.executable, "-c", PROBE], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(ran.stdout)
    return found
