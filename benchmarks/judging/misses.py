"""Rows of misses: one small program in one precision, and all faults that have a place in it. All should be called wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.fleet import Report, Task
from benchmarks.judging.faults import FAULTS
from benchmarks.judging.judges import SEEDS, Expectation, Said, judges
from benchmarks.judging.planting import Fault, OpFault, Results, differ, effect, faulty
from benchmarks.judging.programs import PROGRAMS
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.load import Loaded, load_trace
from fuseplan.tuning.traces import traces_of

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CALLS = (0, 1, 0, 1)
"""The seeds of the inputs of the calls that a plan is vetted by."""
NOTHING = 2.0**-24
"""Half a unit in the last place of float32, as a share of the largest value: what moves nothing further in double precision,
such as a factor of a gradient that is nothing but rounding, is no fault.
"""


@dataclass(frozen=True)
class Target:
    """One program in one precision."""

    program: str
    dtype: str

    @property
    def name(self) -> str:
        return f"{self.program} {self.dtype}"

    def trace(self) -> Trace:
        """The program as captured; the largest, where it is several."""
        program = PROGRAMS[self.program]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module, inputs = program.build()
        module = module.train(program.train).to(DTYPES[self.dtype])
        inputs = {
            key: value.detach().to(DTYPES[self.dtype]).requires_grad_(value.requires_grad)
            if value.is_floating_point()
            else value
            for key, value in inputs.items()
        }
        with torch.set_grad_enabled(program.train):
            traces = traces_of(module, name=self.name, **inputs)
        torch._dynamo.reset()
        return max(traces, key=lambda trace: len(trace.fields["nodes"]))


def every() -> dict[str, Target]:
    """All programs, in all precisions."""
    found = [Target(program, dtype) for program in PROGRAMS for dtype in DTYPES]
    return {one.name: one for one in found}


def shown() -> list[str]:
    """All of them."""
    return list(every())


@dataclass(frozen=True)
class Ground:
    """A program that is ready for faults: as it is, in double precision if it runs in that, and what is right."""

    loaded: Loaded
    right: Mapping[int, Results]
    double: Loaded | None
    exact: Mapping[int, Results]

    @staticmethod
    def of(trace: Trace) -> Ground:
        loaded = load_trace(trace, "cpu")
        double = load_trace(trace.in_double(), "cpu")
        return Ground(loaded, _runs(loaded), double, _runs(double))

    def effect(self, fault: Fault) -> float:
        """How far a fault moves the exact results."""
        if self.double is None:
            return math.nan
        found = faulty(self.double, fault, CALLS[:2], self.exact)
        return (
            0.0
            if found is None
            else max(effect(one, self.exact[seed], self.right[seed]) for one, seed in zip(found, CALLS, strict=False))
        )


def _runs(loaded: Loaded) -> dict[int, Results]:
    return {seed: loaded.run(seed=seed) for seed in SEEDS}


def run(task: Task) -> None:
    """One program: which faults each judge lets pass."""
    torch.set_num_threads(1)
    report = Report(task.out)
    report.at("loading")
    ground = Ground.of(every()[task.name].trace())
    expectations = {name: judge(ground.loaded, SEEDS) for name, judge in judges().items()}
    report.put(
        right={
            name: said(expectation, [ground.right[seed] for seed in SEEDS])["problem"]
            for name, expectation in expectations.items()
        }
    )
    faults: dict[str, Any] = {}
    for name, fault in FAULTS.items():
        report.at(f"fault: {name}")
        found = attempt(ground, fault, expectations)
        if found is not None:
            faults[name] = found
    report.put(faults=faults, at="", at_side="")


def attempt(ground: Ground, fault: Fault, expectations: Mapping[str, Expectation]) -> dict[str, Any] | None:
    """What the judges say of a program with a fault in it; None where the fault changes nothing."""
    calls = CALLS[:2] if isinstance(fault, OpFault) else CALLS
    try:
        runs = faulty(ground.loaded, fault, calls, ground.right)
        if runs is None or not any(differ(one, ground.right[seed]) for one, seed in zip(runs, calls, strict=True)):
            return None
        moved = ground.effect(fault)
    except (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError) as error:
        return {"raises": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    if moved < NOTHING:
        return {"effect": moved}
    return {"effect": _short(moved), **{name: _brief(said(one, runs)) for name, one in expectations.items()}}


def _brief(told: dict[str, Any]) -> dict[str, Any]:
    """What a row needs of a fault: where it was caught, nothing else."""
    return {"caught": True} if told["caught"] else {key: value for key, value in told.items() if key != "problem"}


def said(expectation: Expectation, runs: Sequence[Results]) -> dict[str, Any]:
    """Whether any of the runs was called wrong; where none was, how far off they were beside what eager is by itself."""
    told = [
        expectation.judge(one, seed, "eager", same_numbers=True) for one, seed in zip(runs, CALLS, strict=False)
    ]  # what a fault is planted into is eager: it draws what eager draws
    problems = [one.problem for one in told if one.problem is not None]
    if problems:
        return {"caught": True, "problem": problems[0]}
    ratio, where = max(_ratios(told), default=(None, None))
    largest = {} if ratio is None else {"ratio": _short(ratio), "of": where}
    return {"caught": False, "problem": None, **largest}


def _ratios(told: Sequence[Said]) -> Iterator[tuple[float, str]]:
    for one in told:
        for finding in one.evidence:
            if finding.natural:
                yield finding.error / finding.natural, f"{finding.name}, {finding.measure}"
            elif finding.error:
                yield math.inf, f"{finding.name}, {finding.measure}"


def results_of(rows: Mapping[str, Any]) -> dict[str, Any]:
    """The rows in the order of the programs, below what they come to for each judge."""
    rows = {name: rows[name] for name in every() if name in rows}
    names = [name for name in ("expect", "today") if any(name in row.get("right", {}) for row in rows.values())]
    planted = {fault for row in rows.values() for fault, found in row.get("faults", {}).items() if "effect" in found}
    summary = {
        "programs": len({every()[name].program for name in rows}),
        "faults": len(planted),
        "failed": [name for name, row in rows.items() if "failed" in row],
        "right called wrong": {
            judge: {name: why for name, row in rows.items() if (why := row.get("right", {}).get(judge))}
            for judge in names
        },
        **{judge: {dtype: _counts(rows, dtype, judge) for dtype in DTYPES} for judge in names},
    }
    return {"summary": summary, "rows": rows}


def _counts(rows: Mapping[str, Any], dtype: str, judge: str) -> dict[str, Any]:
    """How many pairs of a program and a fault there are in one precision, how many are caught, and what is missed."""
    pairs = [
        (f"{every()[name].program}: {fault}", found[judge])
        for name, row in rows.items()
        if every()[name].dtype == dtype
        for fault, found in row.get("faults", {}).items()
        if judge in found
    ]
    missed = {name: told for name, told in pairs if not told["caught"]}
    return {
        "pairs": len(pairs),
        "caught": len(pairs) - len(missed),
        "share": round(1 - len(missed) / len(pairs), 4) if pairs else None,
        "largest ratio of what is missed": max(
            (float(told["ratio"]) for told in missed.values() if "ratio" in told), default=None
        ),
        "missed": {name: told.get("ratio") for name, told in missed.items()},
    }


def line(row: Mapping[str, Any]) -> str:
    """One row in a few words."""
    if "failed" in row:
        return str(row["failed"])
    found = row["faults"].values()
    parts = []
    for judge, problem in row["right"].items():
        told = [one[judge] for one in found if judge in one]
        parts.append(
            f"{judge}: {sum(one['caught'] for one in told)} of {len(told)}"
            + (f", right called wrong: {problem}" if problem else "")
        )
    return "; ".join(parts)


def _short(value: float) -> float | str:
    return float(f"{value:.3g}") if math.isfinite(value) else str(value)
