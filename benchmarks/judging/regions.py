"""Rows of regions: the compiled regions of one small program, as they are, and with faults in them.

What fuses is compiled by Inductor, and all of it by ATen. Faults of ops go into calls of a region that ATen runs, the others into
what the compiled region takes and gives. Nothing that is right may be called wrong, and all faults should be.
"""

from __future__ import annotations

import os
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.fleet import Report, Task
from benchmarks.judging import misses
from benchmarks.judging.cut import graphs_of, regions_of
from benchmarks.judging.faults import FAULTS
from benchmarks.judging.misses import DTYPES, NOTHING, Target
from benchmarks.judging.planting import OpFault, Planted, differ, effect, shared
from benchmarks.judging.programs import PROGRAMS
from benchmarks.judging.region_faults import REGION_FAULTS
from fuseplan.executors import Compiled, executors
from fuseplan.graph import Graph
from fuseplan.judge.expected_region import RUN_ERRORS, ExpectedRegion, seeded
from fuseplan.judge.memory import twin
from fuseplan.judge.regions import SEEDS, CheckResult, check

Results = dict[str, Any]


def every() -> dict[str, Target]:
    """All programs in all precisions."""
    return misses.every()


def shown() -> list[str]:
    """Each program in one precision, each of the three as often as the others."""
    return [Target(program, list(DTYPES)[i % len(DTYPES)]).name for i, program in enumerate(PROGRAMS)]


@dataclass(frozen=True, eq=False)
class Subject:
    """A region, what is expected of it, and how it was compiled."""

    name: str
    expected: ExpectedRegion
    compiled: Mapping[str, Compiled]
    """By executor."""

    def judged(self, compiled: Compiled) -> CheckResult:
        """What the judge says of it, as tuning asks."""
        with torch.no_grad():
            return check(self.expected.given, compiled, expected=self.expected)


def run(task: Task) -> None:
    """One program in one precision: what is said of its regions, with no fault and with each that has a place there."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = task.arguments["cache"]
    torch.set_num_threads(1)
    report = Report(task.out)
    report.at("capturing")
    row: dict[str, Any] = {"regions": 0, "ops": 0, "wrong": {}, "failed regions": {}, "shares": {}, "faults": {}}
    known: set[str] = set()
    for role, graph in graphs_of(every()[task.name].trace()):
        fused, anchors = regions_of(graph)
        for i, region in enumerate([*fused, *anchors]):
            if region.key not in known:
                known.add(region.key)
                report.at(f"{role}, region {i}")
                _take(
                    row,
                    f"{role} {i}, {_spelled(region)}",
                    region,
                    ("inductor", "aten") if i < len(fused) else ("aten",),
                )
                report.put(**row)
    report.put(**row, at="", at_side="")


def _spelled(region: Graph) -> str:
    names = [op.target.split(".")[1] for op in region.ops if not op.is_view]
    return " ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _take(row: dict[str, Any], name: str, region: Graph, sides: Sequence[str]) -> None:
    """Judge one region on all sides, and with all faults."""
    made = {side: _compiled(side, region) for side in sides}
    row["failed regions"] |= {f"{name}, {side}": one for side, one in made.items() if isinstance(one, str)}
    compiled = {side: one for side, one in made.items() if not isinstance(one, str)}
    subject = Subject(name, ExpectedRegion(region), compiled)
    for side, one in compiled.items():
        found = subject.judged(one)
        row["shares"][side] = max(row["shares"].get(side, 0.0), float(f"{found.share:.3g}"))
        if not found.ok:
            row["wrong"][f"{name}, {side}"] = found.reason
    row["regions"] += 1
    row["ops"] += len(region.ops)
    for fault, planted, moved in _planted(subject):
        found = subject.judged(planted)
        told = row["faults"].setdefault(fault, {"pairs": 0, "caught": 0, "missed": {}})
        told["pairs"] += 1
        told["caught"] += not found.ok
        if found.ok:
            ratios = [one.error / one.natural for one in found.outputs if one.natural]
            told["missed"][name] = {"effect": float(f"{moved:.3g}"), "ratio": float(f"{max(ratios, default=0.0):.3g}")}


def _compiled(side: str, region: Graph) -> Compiled | str:
    """The region, or why it does not compile."""
    try:
        return executors()[side].compile(region)
    except Exception as error:  # noqa: BLE001 -- the failures of compilers are rows
        return traceback.format_exception_only(error)[-1].strip()[:200]


def _planted(subject: Subject) -> Iterator[tuple[str, Compiled, float]]:
    """The faults that change what the region gives for the first draw of inputs, each planted; and by how much."""
    first = next(iter(subject.expected.trials((0,))))
    exact, _ = subject.expected.exact(subject.expected.given_numbers(first.inputs, first.eager))
    if "aten" in subject.compiled:
        right = _outputs(subject, subject.compiled["aten"], first.inputs)
        for fault in FAULTS.values():
            if isinstance(fault, OpFault):
                planted = _with_op_fault(subject, fault, right, first.inputs)
                moved = _effect(subject, fault, exact, right, first.inputs) if planted is not None else 0.0
                if planted is not None and moved >= NOTHING:
                    yield fault.name, planted, moved
    for side in ("inductor", "aten"):
        if side in subject.compiled:
            yield from _with_region_faults(subject, subject.compiled[side])
            return


def _outputs(subject: Subject, compiled: Compiled, inputs: Sequence[Any]) -> Results:
    """What a region gives and leaves of copies of inputs, under the random numbers of one seed."""
    given = [twin(value) for value in inputs]
    with seeded(0):
        found = [*compiled(list(given)), *(given[i] for i in subject.expected.written)]
    named = dict(zip(subject.expected.names, found, strict=True))
    return named | {f"input {i}": value for i, value in enumerate(given) if i not in subject.expected.written}


def _with_op_fault(subject: Subject, fault: OpFault, right: Results, inputs: Sequence[Any]) -> Compiled | None:
    """The region under ATen with a call of an op going wrong; None where it has none such, or where that changes nothing."""
    plain = subject.compiled["aten"]
    calls = Planted(fault, -1, active=True)
    with calls:
        _outputs(subject, plain, inputs)
    if not calls.count:
        return None
    at = None if fault.everywhere else calls.count // 2

    def planted(args: list[Any]) -> Sequence[Any]:
        with Planted(fault, at, active=True):
            return plain(args)

    try:
        found = _outputs(subject, planted, inputs)
    except (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError):
        return None  # it has no such place
    return planted if differ(found, right) else None


def _effect(subject: Subject, fault: OpFault, exact: Results | None, right: Results, inputs: Sequence[Any]) -> float:
    """How far a fault moves the exact results; of a random region, those that it has itself."""
    if exact is None or subject.expected.random:
        return float("inf")
    calls = Planted(fault, -1, active=True)
    with calls:
        subject.expected.exact(list(inputs))
    try:
        with Planted(fault, None if fault.everywhere else calls.count // 2, active=True):
            found, _ = subject.expected.exact(list(inputs))
    except RUN_ERRORS:
        return float("inf")
    return float("inf") if found is None else effect(found, exact, right)


def _with_region_faults(subject: Subject, compiled: Compiled) -> Iterator[tuple[str, Compiled, float]]:
    right = _calls(subject, compiled)
    for fault in REGION_FAULTS:
        try:
            moved = max(map(_moved, _calls(subject, fault.planted(compiled)), right), default=0.0)
        except RUN_ERRORS:  # such as an index that is out of bounds then: nobody takes that for a result
            continue
        if moved >= NOTHING:
            yield fault.name, fault.planted(compiled), moved


def _calls(subject: Subject, compiled: Compiled) -> list[Results]:
    """What a region gives at one call after the other, as it is after the last."""
    return [
        _outputs(subject, compiled, trial.inputs) for trial in subject.expected.trials(SEEDS) if trial.error is None
    ]


def _moved(found: Results, right: Results) -> float:
    if not differ(found, right):
        return 0.0
    return float("inf") if shared(found) != shared(right) else effect(_wide(found), _wide(right), right)


def _wide(results: Results) -> Results:
    return {
        name: one.double() if isinstance(one, Tensor) and one.is_floating_point() and one.dtype.itemsize < 4 else one
        for name, one in results.items()
    }


def results_of(rows: Mapping[str, Any]) -> dict[str, Any]:
    """The rows in the order of the programs, below what they come to."""
    rows = {name: rows[name] for name in every() if name in rows}
    good = {name: row for name, row in rows.items() if "failed" not in row}
    summary = {
        "programs": len({every()[name].program for name in rows}),
        "faults": len({fault for row in good.values() for fault in row["faults"]}),
        "failed": [name for name, row in rows.items() if "failed" in row],
        "called wrong": {f"{name}: {one}": why for name, row in good.items() for one, why in row["wrong"].items()},
        **{dtype: _counts({n: row for n, row in good.items() if every()[n].dtype == dtype}) for dtype in DTYPES},
    }
    return {"summary": summary, "rows": rows}


def _counts(rows: Mapping[str, Any]) -> dict[str, Any]:
    """What was judged in one precision, and what of it was missed."""
    counts, ratios = Counter[str](), [0.0]
    for row in rows.values():
        counts.update(regions=row["regions"])
        for told in row["faults"].values():
            counts.update(pairs=told["pairs"], caught=told["caught"])
            ratios += [one["ratio"] for one in told["missed"].values()]
    share = round(counts["caught"] / counts["pairs"], 4) if counts["pairs"] else None
    return {**counts, "share": share, "largest ratio of what is missed": max(ratios)}


def line(row: Mapping[str, Any]) -> str:
    """One row in a few words."""
    if "failed" in row:
        return str(row["failed"])
    pairs, caught = (sum(told[key] for told in row["faults"].values()) for key in ("pairs", "caught"))
    return f"{row['regions']} regions, {caught} of {pairs} faults caught, called wrong: {row['wrong'] or 'none'}"
