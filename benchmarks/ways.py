"""What each way of each kind of rewrite gains by itself over torch.compile's default, and each bundle of settings over what is preferred
of rewrites: on the models that they touch, each checked first, all in one race.

A way earns its place where it gains 2 % beyond the noise on two models, or on two sizes of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.harness import LAUNCHES, Rows, measure_models, model_options, print_lines

EARNED = 1.02
"""So many times as fast is a gain."""


def measure(arguments: list[str]) -> Rows:
    """All chosen models, each in a process of its own."""
    given = model_options("ways", __doc__)
    given.add_argument("--launch", choices=LAUNCHES, help="of the races (default: cudagraph, on a CPU plain)")
    given.add_argument("--way", action="append", default=[], help="only ways that begin so; may be given again")
    chosen = given.parse_args(arguments)
    launch = chosen.launch or ("plain" if chosen.device == "cpu" else "cudagraph")
    rows = Rows("ways", arguments, results_of, keep=chosen.append)
    return measure_models(rows, chosen, "one_ways", print_rows, launch=launch, ways=chosen.way)


def results_of(rows: Mapping[str, Any]) -> dict[str, Any]:
    """The rows, and of each way on which models it gains, and on which it loses.

    >>> gain = {"ratio": 0.9, "low": 0.9, "high": 0.9, "beyond noise": False}
    >>> rows = {"a": {"programs": [{"gains": {"matmul padded": gain}}]}, "b": {"failed": "at the start"}}
    >>> results_of(rows)["summary"]
    {'matmul padded': {'gains': ['a'], 'loses': []}}
    """
    found: dict[str, dict[str, list[str]]] = {}
    for model, _, way, gain in _gains(rows):
        row = found.setdefault(way, {"gains": [], "loses": []})
        if gain["high"] * EARNED <= 1.0 and model not in row["gains"]:
            row["gains"].append(model)
        if gain["beyond noise"] and model not in row["loses"]:
            row["loses"].append(model)
    return {"summary": found, "models": dict(rows)}


def print_rows(rows: Mapping[str, Any]) -> None:
    """One line a model, program and way."""
    headings = ("model", "program", "way", "× as fast", "from", "to", "what failed")
    print_lines("what each way gains", headings, _lines(rows), ("model", "way", "what failed"))


def _lines(rows: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for model, program, way, gain in _gains(rows):
        yield model, program, way, *(f"{1 / gain[key]:.3f}" for key in ("ratio", "high", "low")), "-"
    for model, row in rows.items():
        failed = [row["failed"]] if "failed" in row else []
        for program in row.get("programs", []):
            failed += [f"{name}: {why}" for name, why in program.get("failures", {}).items()]
        for one in failed:
            yield model, "-", "-", "-", "-", "-", one


def _gains(rows: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    for model, row in rows.items():
        for program in row.get("programs", []):
            for way, gain in program.get("gains", {}).items():
                yield model, program.get("program", "")[:8], way, gain
