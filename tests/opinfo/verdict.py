"""One case -> one Row: eager first, then the backend, and aot_eager only where the backend did not do what eager did."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._dynamo.utils import counters

from opinfo.cases import Case, ops
from opinfo.compare import Difference, Rules, difference, same_bits
from opinfo.inputs import widened
from opinfo.outcome import Outcome, attempt, function
from opinfo.written import UNWRITABLE

NO_VALUES = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")


@dataclass(frozen=True)
class Subject:
    """The backend under test."""

    backend: str = "fuseplan"
    plan: str | None = "aten"

    def compile(self, call: Callable[..., Any]) -> Callable[..., Any]:
        options: Any = {"plan": self.plan} if self.plan is not None and self.backend == "fuseplan" else None
        return torch.compile(call, backend=self.backend, options=options, dynamic=False)


AOT_EAGER = Subject("aot_eager", None)


@dataclass(frozen=True)
class Row:
    """The verdict on a case. `aot_eager` says what that backend did: it is run only where the subject did not pass."""

    op: str
    variant: str
    dtype: str
    sample: int
    direction: str
    status: str  # passed, failed, not applicable, crashed
    reason: str = ""
    detail: str = ""
    aot_eager: str = "not run"
    seconds: float = 0.0


def judge(case: Case, sample: Any, subject: Subject, stage: Callable[[str], None], *, both: bool = False) -> Row:
    """Run the case every way that its verdict needs; `stage` is told before each, in case it kills the process."""
    begun = time.perf_counter()
    stage("eager")
    eager = attempt(case, sample, function(case))
    verdict = _not_for_eager(eager) or _judged(case, sample, eager, subject, stage, both)
    return _row(case, *verdict, seconds=time.perf_counter() - begun)


Verdict = tuple[str, str, str, str]  # status, reason, detail, aot_eager


def _row(case: Case, status: str, reason: str, detail: str, aot_eager: str, *, seconds: float) -> Row:
    return Row(
        case.op, case.variant, case.dtype, case.sample, case.direction,
        status, reason, " ".join(detail.split())[:600], aot_eager, round(seconds, 4),
    )  # fmt: skip


def _not_for_eager(eager: Outcome) -> Verdict | None:
    if eager.error is None:
        return None
    kind = eager.error.split(":")[0]
    reason = "no output requires grad" if kind == "NoGradientError" else f"eager raises {kind}"
    return "not applicable", reason, eager.error, "not run"


def _judged(
    case: Case, sample: Any, eager: Outcome, subject: Subject, stage: Callable[[str], None], both: bool
) -> Verdict:
    rules = Rules(_reference(case, sample, eager), values=ops()[case.op].name not in NO_VALUES)
    stage(subject.backend)
    got, graphs = compiled(case, sample, subject)
    found = difference(got, eager, rules)
    if found is not None and UNWRITABLE in found.detail:
        return "not applicable", "the graph cannot be written down", found.detail, "not run"
    if found is None and graphs == 0:
        return _not_compiled(case, sample, stage)
    if found is None and not both:
        return (*_agrees(rules), "not run")
    stage("aot_eager")
    aot = difference(compiled(case, sample, AOT_EAGER)[0], eager, rules)
    aot_says = "passed" if aot is None else f"failed: {aot.kind}"
    if found is None:
        return (*_agrees(rules), aot_says)
    if not same_bits(attempt(case, sample, function(case)), eager):
        return "not applicable", "eager does not repeat itself", str(found), aot_says
    if aot is not None:
        return "not applicable", _both_fail(found, aot), f"{found} / aot_eager {aot}", aot_says
    return "failed", found.kind, str(found), aot_says


def _not_compiled(case: Case, sample: Any, stage: Callable[[str], None]) -> Verdict:
    """Dynamo ran the case in eager: no fault of the backend's, provided that it does the same under aot_eager."""
    why = _break_reason()
    stage("aot_eager")
    _, graphs = compiled(case, sample, AOT_EAGER)
    if graphs:
        return "failed", "not compiled", f"not compiled: {why}; aot_eager compiles it", "passed"
    return "not applicable", f"no graph is compiled: {why}", why, "no graph is compiled"


def _agrees(rules: Rules) -> tuple[str, str, str]:
    if rules.values:
        return "passed", "", ""
    return "not applicable", "uninitialised values (shapes, strides, dtypes and aliasing do agree)", ""


def _both_fail(found: Difference, aot: Difference) -> str:
    same = "the same way" if found.kind == aot.kind else f"by {aot.kind}, the subject by {found.kind}"
    return f"aot_eager fails too, {same}: {_headline(aot)}"


def _headline(found: Difference) -> str:
    """What to count a failure by: for an error its type, else what differs."""
    return found.detail.split(":")[0] if found.kind == "raises" else found.kind


def compiled(case: Case, sample: Any, subject: Subject) -> tuple[Outcome, int]:
    """The outcome under a backend, and how many graphs it compiled."""
    torch._dynamo.reset()
    counters.clear()
    outcome = attempt(case, sample, subject.compile(function(case)))
    return outcome, counters["stats"]["unique_graphs"]


def _break_reason() -> str:
    """Why Dynamo went back to eager; what the backend raises for data-dependent values and shapes is one such reason."""
    told = [*counters["graph_break"], *counters["unimplemented"], "Dynamo skipped the frame"]
    return str(told[0]).splitlines()[0]


def _reference(case: Case, sample: Any, eager: Outcome) -> Callable[[], Outcome | None]:
    """The case in higher precision, run at most once and only if somebody asks; random numbers have no truth."""

    @cache
    def reference() -> Outcome | None:
        return None if eager.random else attempt(case, sample, function(case), widened)

    return reference
