"""Rows of false alarms: one small model, whose results under torch.compile and under host `aten` must be called right."""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from benchmarks.fleet import Report, Task
from benchmarks.judging.earlier import Layout
from benchmarks.judging.judges import SEEDS, Said, judges
from benchmarks.judging.more_models import MORE
from benchmarks.result import slug
from benchmarks.small_zoo import TRANSFORMERS, Entry
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.load import load_trace
from fuseplan.judge.expect import Expectation
from fuseplan.judge.output import WIDER
from fuseplan.judge.spread import MEAN_FACTOR
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.worker.compiling import compile_entry
from fuseplan.plan import Plan
from fuseplan.tuning.traces import traces_of

ENTRIES: Mapping[str, Entry] = {**TRANSFORMERS, **MORE}
DTYPES = ("float32", "bfloat16", "autocast")
SIDES: Mapping[str, tuple[RaceEntry, Layout, float]] = {
    "torch.compile": (RaceEntry("torch.compile", mode="default"), "any", WIDER),
    "aten": (RaceEntry("aten", Plan.named("aten")), "eager", 1.0),
}
"""The entries, how their outputs may lie, and by which factor they may widen what is allowed: as tuning has it."""


@dataclass(frozen=True)
class Configuration:
    """One model in one mode and precision."""

    entry: str
    train: bool
    dtype: str

    @property
    def name(self) -> str:
        return f"{self.entry} {'training' if self.train else 'inference'} {self.dtype}"

    def trace(self) -> Trace:
        """The largest of its programs, as captured."""
        model, inputs = ENTRIES[self.entry].build()
        model.train(self.train)
        if self.dtype == "bfloat16":
            model = model.bfloat16()
            inputs = {key: value.bfloat16() if value.is_floating_point() else value for key, value in inputs.items()}
        gradients = nullcontext() if self.train else torch.no_grad()
        with gradients, self._precision():
            traces = traces_of(model, name=self.name, **inputs)
        torch._dynamo.reset()
        return max(traces, key=lambda trace: len(trace.fields["nodes"]))

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast("cpu", torch.bfloat16) if self.dtype == "autocast" else nullcontext()


def every() -> dict[str, Configuration]:
    """All configurations: of each model those that train if it does, and those that infer."""
    found = [
        Configuration(name, train, dtype)
        for name, entry in ENTRIES.items()
        for train in ((True, False) if entry.trainable else (False,))
        for dtype in DTYPES
    ]
    return {one.name: one for one in found}


def shown() -> list[str]:
    """Of each model one precision in training and another in inference, each of the three as often as the others."""
    names = []
    for i, (name, entry) in enumerate(ENTRIES.items()):
        for k, train in enumerate((entry.trainable, False)):
            names.append(Configuration(name, train, DTYPES[(i + k) % len(DTYPES)]).name)
    return names


def run(task: Task) -> None:
    """One configuration: what each judge says of each side, and how long it takes for that."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = task.arguments["cache"]
    torch.set_num_threads(1)
    report = Report(task.out)
    kept = Path(task.arguments["cache"]).parent / "kept" / f"{slug(task.name)}.pt"
    if not (task.arguments.get("again") and kept.exists()):
        kept.parent.mkdir(parents=True, exist_ok=True)
        torch.save(_made(every()[task.name], report), kept)
    made = torch.load(kept, weights_only=True)
    found: dict[str, dict[int, dict[str, Any]]] = made["found"]
    sides: dict[str, dict[str, Any]] = {side: {"failed": why} for side, why in made["failed"].items()}
    loaded = load_trace(Trace.from_json(made["trace"]), "cpu")
    loaded.run()
    for name, judge in judges().items():
        report.at(f"judging: {name}")
        begin = perf_counter()
        expectation = judge(loaded, SEEDS)
        told = {
            side: [expectation.judge(one, seed, *SIDES[side][1:]) for seed, one in runs.items()]
            for side, runs in found.items()
        }
        seconds = {**report.fields.get("seconds", {}), name: round(perf_counter() - begin, 3)}
        for side, said in told.items():
            sides.setdefault(side, {})[name] = summary(said)
        if isinstance(expectation, Expectation):
            for side, runs in found.items():
                sides[side][name] |= mean_beside_draws(expectation, runs)
        report.put(seconds=seconds, sides=sides, how=expectation.how)
    report.put(nodes=len(loaded.trace.fields["nodes"]), at="", at_side="")


def _made(configuration: Configuration, report: Report) -> dict[str, Any]:
    """What each side computes, by seed, or why it does not; with the trace, all that judging needs."""
    report.at("capturing")
    trace = configuration.trace()
    loaded = load_trace(trace, "cpu")
    found: dict[str, dict[int, dict[str, Any]]] = {}
    failed: dict[str, str] = {}
    for side, (entry, *_) in SIDES.items():
        report.at("running", side)
        try:
            compiled = compile_entry(entry, loaded)
            found[side] = {seed: loaded.run(compiled, seed) for seed in SEEDS}
        except Exception as error:  # noqa: BLE001 -- the failures of compilers are rows
            failed[side] = traceback.format_exception_only(error)[-1].strip()[:300]
        torch._dynamo.reset()
    return {"trace": trace.to_json(), "found": found, "failed": failed}


def summary(said: Sequence[Said]) -> dict[str, Any]:
    """The first problem over all runs, and the largest error as a share of what was allowed."""
    problems = [one.problem for one in said if one.problem is not None]
    found: dict[str, Any] = {"problem": problems[0] if problems else None}
    shares = sorted(_shares(said), reverse=True)
    if shares:
        share, name, measure = shares[0]
        found |= {"share": float(f"{share:.3g}"), "of": name, "measure": measure}
    return found


def mean_beside_draws(expectation: Expectation, runs: Mapping[int, Mapping[str, Any]]) -> dict[str, float]:
    """The largest mean error beside that of the draws, of outputs that are judged by `MEAN_FACTOR`; nothing where there are none."""
    found = [
        mean.error / mean.natural
        for seed, one in runs.items()
        for name, leaf in expectation.leaves[seed].items()
        if leaf.spread is not None and isinstance(one.get(name), torch.Tensor)
        for mean in leaf.spread.measure(one[name], leaf.right)
        if mean.measure == "mean" and mean.natural and math.isclose(mean.allowed, MEAN_FACTOR * mean.natural)
    ]
    return {"mean": float(f"{max(found):.3g}")} if found else {}


def _shares(said: Sequence[Said]) -> Iterator[tuple[float, str, str]]:
    for one in said:
        for finding in one.evidence:
            if finding.allowed:
                yield finding.error / finding.allowed, finding.name, finding.measure
            elif finding.error:
                yield float("inf"), finding.name, finding.measure


def results_of(rows: Mapping[str, Any]) -> dict[str, Any]:
    """The rows in the order of the models, below what they come to."""
    rows = {name: rows[name] for name in every() if name in rows}
    wrong = {name: found for name, row in rows.items() if (found := _wrong(row))}
    told = [row["seconds"] for row in rows.values() if "expect" in row.get("seconds", {})]
    ratios = [seconds["expect"] / seconds["today"] for seconds in told]
    summary = {
        "configurations": len(rows),
        "failed": [name for name, row in rows.items() if "failed" in row],
        "called wrong": wrong,
        "seconds over today's, median": round(median(ratios), 3) if ratios else None,
    }
    return {"summary": summary, "rows": rows}


def _wrong(row: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """By judge and side what each judge holds to be wrong."""
    said = [
        (judge, side, one["problem"])
        for side, found in row.get("sides", {}).items()
        for judge, one in found.items()
        if judge != "failed"
    ]
    return {
        judge: found
        for judge in ("expect", "today")
        if (found := {side: why for j, side, why in said if j == judge and why})
    }


def line(row: Mapping[str, Any]) -> str:
    """One row in a few words."""
    if "failed" in row:
        return str(row["failed"])
    shares = [one["expect"].get("share", 0.0) for one in row["sides"].values() if "expect" in one]
    return f"{_wrong(row) or 'right'}, at most {max(shares, default=0.0):.2g} of what is allowed, {row['seconds']}"
