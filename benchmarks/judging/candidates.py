"""Rows of candidates: one small model, and results of other right kernels, which are granted nothing for being torch's default.

Without compiling there are many of them: eager with attention by another kernel, and on moved values, for several weights.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.fleet import Report, Task
from benchmarks.judging import alarms
from benchmarks.judging.alarms import Configuration
from fuseplan.backend import fuseplan_backend
from fuseplan.capture.trace.load import Loaded, load_trace
from fuseplan.judge.expect import SEEDS, Expectation, expect
from fuseplan.judge.moved import MovedRun
from fuseplan.judge.programs import judge
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.worker.compiling import compile_entry
from fuseplan.plan import Plan

WEIGHTS = 6
"""Draws of weights, each with all that is not compiled."""
MOVED = 3
"""Runs on moved values, for each of these and each input."""
UNSEEN = 1_000_003
"""Away from the numbers of the runs that the judge makes itself."""
MODELS = (
    "bert", "gpt2", "llama", "qwen2", "mistral", "t5", "vit", "swin", "convnext", "regnet", "layoutlm", "opt", "qwen3", "whisper"
)  # fmt: skip
Results = dict[str, Any]


def every() -> dict[str, Configuration]:
    """Every configuration that trains: there gradients have most to say."""
    return {name: one for name, one in alarms.every().items() if one.train}


def shown() -> list[str]:
    """Some models in bf16, each fourth under autocast besides, and two in float32."""
    autocast = [Configuration(name, True, "autocast").name for name in MODELS[2::4]]
    single = [Configuration(name, True, "float32").name for name in ("gpt2", "qwen2")]
    return [*(Configuration(name, True, "bfloat16").name for name in MODELS), *autocast, *single]


@dataclass
class _Count:
    """How many results were called right and wrong."""

    results: int = 0
    wrong: int = 0
    wrong_at_first: int = 0
    """By the runs alone that are made for every program, without those that are made in doubt."""
    problems: list[str] = field(default_factory=list)

    def judge(self, expectation: Expectation, found: Results, seed: int) -> None:
        self.results += 1
        self.wrong_at_first += judge(found, expectation.leaves[seed], "any").problem is not None
        problem = expectation.judge(found, seed, "any").problem
        if problem is not None:
            self.wrong += 1
            self.problems.append(problem)

    def row(self) -> dict[str, Any]:
        """What a result file has of it."""
        told = {"problem": self.problems[0]} if self.problems else {}
        return {"results": self.results, "wrong": self.wrong, "wrong at first": self.wrong_at_first, **told}


def run(task: Task) -> None:
    """One configuration: how many results of each side are called wrong."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = task.arguments["cache"]
    torch.set_num_threads(1)
    report = Report(task.out)
    report.at("capturing")
    trace = every()[task.name].trace()
    counts: dict[str, _Count] = {}

    def judged(side: str, call: Callable[..., Any] | None, loaded: Loaded, expected: Expectation, within: Any) -> None:
        for seed in SEEDS:
            found = loaded.run(call, seed, within=within(seed))
            counts.setdefault(side, _Count()).judge(expected, found, seed)

    failed: dict[str, str] = {}
    for weights in range(WEIGHTS):
        report.at("judging", f"weights {weights}")
        loaded = load_trace(trace, "cpu", weights)
        for side, call, within in _without_compiling(loaded):
            judged(side, call, loaded, expect(loaded), within)
    loaded = load_trace(trace, "cpu")
    for side, make in _compiled(loaded).items():
        report.at("compiling", side)
        try:
            judged(side, make(), loaded, expect(loaded), lambda seed: None)
        except Exception as error:  # noqa: BLE001 -- the failures of compilers are rows
            failed[side] = traceback.format_exception_only(error)[-1].strip().splitlines()[0][:200]
        torch._dynamo.reset()
    report.put(sides={side: one.row() for side, one in counts.items()}, failed_sides=failed, at="", at_side="")


def _without_compiling(loaded: Loaded) -> Iterator[tuple[str, Callable[..., Any] | None, Callable[[int], Any]]]:
    """Other right ways of eager: their names, what is called, and what is around a run."""
    if _attends(loaded):
        yield "attention in steps", None, lambda seed: sdpa_kernel(SDPBackend.MATH)
    for number in range(MOVED):

        def moved(seed: int, number: int = number) -> MovedRun:
            given = [*loaded.tensors.owned.values()]
            return MovedRun(given, UNSEEN + 100 * seed + number, reordered=number % 2 == 1)

        yield "eager on moved weights", None, moved


def _compiled(loaded: Loaded) -> dict[str, Callable[[], Callable[..., Any]]]:
    found = {"torch.compile": lambda: compile_entry(RaceEntry("torch.compile", mode="default"), loaded)}
    if _attends(loaded):
        options: dict[str, Any] = {"plan": Plan.named("inductor"), "attention": "proven"}
        found["attention kept whole"] = lambda: torch.compile(loaded.module, backend=fuseplan_backend, options=options)
    return found


def _attends(loaded: Loaded) -> bool:
    return "scaled_dot_product_attention" in loaded.trace.to_json()


def results_of(rows: Mapping[str, Any]) -> dict[str, Any]:
    """The rows in the order of the models, below what they come to for each side."""
    rows = {name: rows[name] for name in every() if name in rows}
    sides = [(side, one) for row in rows.values() for side, one in row.get("sides", {}).items()]
    totals = {
        side: {
            key: sum(one[key] for name, one in sides if name == side) for key in ("results", "wrong", "wrong at first")
        }
        for side in dict.fromkeys(side for side, _ in sides)
    }
    return {"summary": {"configurations": len(rows), "sides": totals}, "rows": rows}


def line(row: Mapping[str, Any]) -> str:
    """One row in a few words."""
    if "failed" in row:
        return str(row["failed"])
    return ", ".join(
        f"{side}: {one['wrong']} of {one['results']} wrong ({one['wrong at first']} at first)"
        for side, one in row["sides"].items()
    )
