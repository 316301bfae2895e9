"""Rows of OpInfo: some ops of PyTorch's own tests in one dtype, each forward and backward, under torch.compile and host `aten`.

All of that is right, unless it is shown to be a fault. The sample is fixed: the first ops in an order by the hash of name and dtype, which is
the same on every machine; of each op and direction one of the first five inputs, chosen in the same way. `tests/opinfo` runs them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.fleet import Report, Task
from benchmarks.result import ROOT

DTYPES = ("float32", "bfloat16")
OPS = 4
"""In a row."""
ROWS = 40
"""Of each dtype that there are; of these the first are shown."""
SHOWN = 15


def every() -> dict[str, tuple[str, int]]:
    """All rows: the dtype, and where in the order of ops it begins."""
    return {f"{dtype} {i * OPS + 1} to {(i + 1) * OPS}": (dtype, i * OPS) for i in range(ROWS) for dtype in DTYPES}


def shown() -> list[str]:
    """The first ones of each dtype."""
    return list(every())[: SHOWN * len(DTYPES)]


def run(task: Task) -> None:
    """Judge the ops of a row; what ends the process is a case that says so."""
    report = Report(task.out)
    dtype, first = every()[task.name]
    path = os.pathsep.join(filter(None, [str(ROOT / "tests"), str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path, "TORCHINDUCTOR_CACHE_DIR": task.arguments["cache"]}
    command = [sys.executable, "-m", "opinfo.judged", dtype, str(first), str(first + OPS)]
    cases: dict[str, Any] = {}
    at = ""
    with subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line_ in process.stdout:
            told = json.loads(line_) if line_.startswith("{") else {}
            if "at" in told:
                at = told["at"]
                report.at(at)
            elif "case" in told:
                cases[told.pop("case")] = told
                report.put(cases=cases)
    if process.returncode:
        cases[at] = {"left out": f"the process ended with {process.returncode}"}
    report.put(cases=cases, at="", at_side="")


def results_of(rows: Mapping[str, Any]) -> dict[str, Any]:
    """The rows in their order, below what they come to."""
    rows = {name: rows[name] for name in every() if name in rows}
    summary = {dtype: _counts({n: row for n, row in rows.items() if every()[n][0] == dtype}) for dtype in DTYPES}
    failed = [name for name, row in rows.items() if "failed" in row]
    return {"summary": {"failed": failed, **summary}, "rows": rows}


def _counts(rows: Mapping[str, Any]) -> dict[str, Any]:
    """How many cases were judged in one dtype, which side was called wrong, and what was left out."""
    cases = {name: case for row in rows.values() for name, case in row.get("cases", {}).items()}
    judged = {name: case for name, case in cases.items() if "sides" in case}
    shares = sorted(one["share"] for case in judged.values() for one in case["sides"].values() if "share" in one)
    return {
        "ops": len({name.split("|")[0] for name in cases}),
        "cases": len(judged),
        "backward": sum(name.endswith("backward") for name in judged),
        "left out": len(cases) - len(judged),
        "share, median": shares[len(shares) // 2] if shares else None,
        "called wrong": dict(_with("problem", judged)),
        "raises": dict(_with("raises", judged)),
    }


def _with(key: str, cases: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, case in cases.items():
        for side, one in case["sides"].items():
            if one.get(key):
                yield f"{name}, {side}", one[key]


def line(row: Mapping[str, Any]) -> str:
    """One row in a few words."""
    if "failed" in row:
        return str(row["failed"])
    told = _counts({"": row})
    return f"{told['cases']} cases judged, {told['left out']} left out; called wrong: {told['called wrong'] or 'none'}; {told['raises'] or ''}"
