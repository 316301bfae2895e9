"""Rows of random values: one program with dropout, and faults of dropout in it, each under other random numbers than eager's.

A fault is written into the program, so that it can be compiled as well: what torch.compile makes of it is a plan with that fault.
"""

from __future__ import annotations

import copy
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Node

from benchmarks.fleet import Report, Task
from benchmarks.judging.misses import DTYPES
from benchmarks.judging.programs import PROGRAMS
from benchmarks.small_zoo import TRANSFORMERS
from fuseplan.capture.trace.format import Trace
from fuseplan.capture.trace.load import load_trace
from fuseplan.judge.chances import Chances
from fuseplan.judge.expect import expect
from fuseplan.tuning.traces import traces_of

MODELS = ("gpt2", "bert", "bart")
COMPILED = ("dropouts",)
"""Whose faults are compiled besides."""
RATE = 0.2
Dropout = Callable[..., Tensor]


def _other_rate(x: Tensor, p: float = 0.5, *args: Any, **kwargs: Any) -> Tensor:
    return F.dropout(x, p / 2)


def _unscaled(x: Tensor, p: float = 0.5, *args: Any, **kwargs: Any) -> Tensor:
    return F.dropout(x, p) * (1 - p)


def _left_out(x: Tensor, p: float = 0.5, *args: Any, **kwargs: Any) -> Tensor:
    return x


def _other_mask_backward(x: Tensor, p: float = 0.5, *args: Any, **kwargs: Any) -> Tensor:
    backward = F.dropout(x, p)
    return F.dropout(x, p).detach() + (backward - backward.detach())


FAULTS: Mapping[str, Dropout | None] = {
    "dropout at another rate": _other_rate,
    "dropout not scaled": _unscaled,
    "dropout left out": _left_out,
    "another mask in the backward": _other_mask_backward,
    "same dropout mask twice": None,
}
"""What is called instead of the dropout in the middle; the last takes the place of two that are of one size."""


@dataclass(frozen=True)
class Random:
    """One program with dropout in one precision."""

    program: str
    dtype: str

    @property
    def name(self) -> str:
        return f"{self.program} {self.dtype}"

    def trace(self) -> Trace:
        """The program as captured; the largest, where it is several."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            known = self.program in PROGRAMS and self.program not in MODELS
            module, inputs = PROGRAMS[self.program].build() if known else TRANSFORMERS[self.program].build(dropout=RATE)
        module = module.train().to(DTYPES[self.dtype])
        inputs = {key: one.to(DTYPES[self.dtype]) if one.is_floating_point() else one for key, one in inputs.items()}
        traces = traces_of(module, name=self.name, **inputs)
        torch._dynamo.reset()
        return max(traces, key=lambda trace: len(trace.fields["nodes"]))


def every() -> dict[str, Random]:
    """All programs, in all precisions."""
    found = [Random(program, dtype) for program in ("dropouts", *MODELS) for dtype in DTYPES]
    return {one.name: one for one in found}


def shown() -> list[str]:
    """All of them."""
    return list(every())


def run(task: Task) -> None:
    """One program: whether it is called right as it is, and which faults are caught."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = task.arguments["cache"]
    torch.set_num_threads(1)
    report = Report(task.out)
    report.at("capturing")
    chosen = every()[task.name]
    loaded = load_trace(chosen.trace(), "cpu")
    assert isinstance(loaded.module, GraphModule)
    chances = expect(loaded).chances
    assert chances is not None
    sides: dict[str, dict[str, Any]] = {}
    for side in ("eager", *(("torch.compile",) if chosen.program in COMPILED else ())):
        for name, module in (("right", loaded.module), *planted(loaded.module)):
            report.at(name, side)
            call: Callable[..., Any] = module.forward if side == "eager" else torch.compile(module)
            sides.setdefault(side, {})[name] = _said(chances, call)
            torch._dynamo.reset()
            report.put(sides=sides)
    report.put(sides=sides, at="", at_side="")


def _said(chances: Chances, call: Callable[..., Any]) -> str | None:
    try:
        return chances.problem(call)
    except Exception as error:  # noqa: BLE001 -- the failures of compilers are rows
        return f"failed: {traceback.format_exception_only(error)[-1].strip().splitlines()[0][:200]}"


def planted(module: GraphModule) -> Iterator[tuple[str, GraphModule]]:
    """The program with each of the faults that have a place in it."""
    for name, fault in FAULTS.items():
        changed = GraphModule(module, copy.deepcopy(module.graph))
        nodes = [node for node in changed.graph.nodes if node.target is F.dropout]
        if not nodes:
            continue
        if fault is not None:
            nodes[len(nodes) // 2].target = fault
        elif not _same_masks(changed, nodes):
            continue
        changed.recompile()
        yield name, changed


def _same_masks(changed: GraphModule, nodes: list[Node]) -> bool:
    """Every dropout takes the mask that the first one took; only one that has as many elements can."""
    first, *others = nodes
    graph = changed.graph
    with graph.inserting_before(first):
        ones = graph.call_function(torch.ones_like, (first.args[0],))
        mask = graph.call_function(F.dropout, (ones, *first.args[1:]), dict(first.kwargs))
    for node in nodes:
        with graph.inserting_before(node):
            taken = graph.call_function(_masked, (node.args[0], mask, *node.args[1:2]), dict(node.kwargs))
        node.replace_all_uses_with(taken)
        graph.erase_node(node)
    return bool(others)


def _masked(x: Tensor, mask: Tensor, p: float = 0.5, *args: Any, **kwargs: Any) -> Tensor:
    return x * mask if x.shape == mask.shape else F.dropout(x, p)


def results_of(rows: Mapping[str, Any]) -> dict[str, Any]:
    """The rows in the order of the programs, below what they come to in each precision."""
    rows = {name: rows[name] for name in every() if name in rows}
    totals: dict[str, dict[str, Any]] = {}
    for name, row in rows.items():
        found = totals.setdefault(
            every()[name].dtype, {"pairs": 0, "caught": 0, "missed": [], "right called wrong": []}
        )
        for side, told in row.get("sides", {}).items():
            for fault, problem in told.items():
                if fault == "right":
                    found["right called wrong"] += [f"{every()[name].program}, {side}: {problem}"] if problem else []
                    continue
                found["pairs"] += 1
                found["caught"] += problem is not None
                found["missed"] += [] if problem else [f"{every()[name].program}, {side}: {fault}"]
    return {"summary": totals, "rows": rows}


def line(row: Mapping[str, Any]) -> str:
    """One row in a few words."""
    if "failed" in row:
        return str(row["failed"])
    return "; ".join(
        f"{side}: " + ", ".join(f"{name} {'caught' if why else 'passed'}" for name, why in told.items())
        for side, told in row["sides"].items()
    )
