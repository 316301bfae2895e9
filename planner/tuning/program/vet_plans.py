"""Jobs that vet whole plans: whether they compile here and compute what eager computes, and what is made of their outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from fuseplan.judge.output import OTHERS, WIDER, Inquiry, Wider, widened_by
from fuseplan.measure.entry import RaceEntry
from fuseplan.measure.far_behind import is_ours
from fuseplan.measure.jobs import FindFault, Job, Outcome, OutcomeRow, VetPlan
from fuseplan.plan import Plan
from fuseplan.tuning.effort import GREEDY_SHARE, JUDGING_SHARE, LEAST_LIMIT_S, PATIENCE_S
from fuseplan.tuning.program.baseline import EAGER, defaults, planned, searches
from fuseplan.tuning.program.budget import Budget
from fuseplan.tuning.program.services import Services

CHECKING, AGAIN = "compiling and checking plans", "checking plans again"
"""What a run says while it does that."""
TORCHS = "inductor"
"""What torch.compile's default is called in a race."""
HOLDS = 0.25
"""The share of a GPU's memory that the graphs of a program may hold unasked. Plans of other launches that race beside need room."""
Rows = dict[str, OutcomeRow]
"""What came of each plan, by its name in the race."""


def checked(
    services: Services, trace: str, entries: Sequence[RaceEntry], rows: Rows, parts_right: int = 0
) -> list[RaceEntry]:
    """Those of `entries` that are right, of plans that somebody has named: none is left out for want of time. Torch.compile's default may
    have been found right in so many parts.
    """
    limits = [None if is_torchs(one) else PATIENCE_S * (GREEDY_SHARE if one.default else 1.0) for one in entries]
    jobs = [
        vet_job(
            trace,
            one,
            rows,
            PATIENCE_S * JUDGING_SHARE,
            limit_s=limit,
            prepares=services.on_gpu,
            parts_right=parts_right,
        )
        for one, limit in zip(entries, limits, strict=True)
    ]

    def heard(job: Job, outcome: Outcome) -> None:
        note_row(services, rows, job, outcome)

    services.carry_out(CHECKING, jobs, heard)
    services.carry_out(AGAIN, wrongly_judged(jobs, rows), heard)
    return right_of(entries, rows)


def begin_default(services: Services, budget: Budget, trace: str, launch: str) -> None:
    """Begin with torch.compile's default, which the flow checks first, while the program is captured: it needs nothing of that, and
    a GPU's host has cores for both.
    """
    first = next(iter(defaults(services.environment, launch, cut_up=False)), EAGER)
    if services.on_gpu and is_inductors(first):
        judged = budget.effort.cuts  # as the flow has it
        services.pool.begin(replace(timed_job(trace, first, {}, budget, None), judges=judged))


def timed_job(
    trace: str, entry: RaceEntry, rows: Rows, budget: Budget, limit_s: float | None, parts_right: int = 0
) -> VetPlan:
    """The job that vets a plan in the time that a budget has for it."""
    job = vet_job(
        trace, entry, rows, budget.judging_left_s, limit_s=limit_s, prepares=budget.prepares, parts_right=parts_right
    )
    job = replace(job, keeps=budget.keeps)
    if not may_go_on(entry, budget):
        return job
    if budget.effort.over_default:
        return replace(job, over_s=budget.effort.wall_s)
    return replace(job, over_s=budget.effort.least_over_s, until_s=budget.left_s)


def patience(default: RaceEntry, budget: Budget) -> float | None:
    """How long a default may keep a worker silent; None: as long as any job."""
    if is_torchs(default):
        return None
    return max(LEAST_LIMIT_S, budget.effort.wall_s * GREEDY_SHARE)


def may_go_on(entry: RaceEntry, budget: Budget) -> bool:
    """Whether what is begun beside torch.compile's default may go on for as long as that takes, and for so long beyond it as the effort has:
    under a large effort, what Inductor compiles as a whole.
    """
    if is_torchs(entry) or budget.effort.over_default:
        return not is_torchs(entry)
    plan = planned(entry)
    whole = not entry.default and plan.host == "inductor" and not plan.carve_outs
    return whole and not searches(entry) and budget.is_beside_default


def vet_job(
    trace: str,
    entry: RaceEntry,
    rows: Rows,
    judging_s: float,
    *,
    limit_s: float | None,
    prepares: bool,
    parts_right: int,
) -> VetPlan:
    """The job that vets a plan, which is granted what is known by now of torch.compile's default."""
    return VetPlan(
        trace, entry, prepares, limit_s=limit_s, judging_s=judging_s, wider=_wider(entry, rows),
        parts_right=parts_right if is_inductors(entry) else 0,
    )  # fmt: skip


def note_row(services: Services, rows: Rows, job: Job, outcome: Outcome) -> str:
    """Keep the row of a plan, and say so where it is out; return its name."""
    assert isinstance(job, VetPlan)
    name = job.entry.name
    row = next(iter(outcome.rows), OutcomeRow(name, outcome.status, outcome.detail))
    rows[name] = row
    if row.status != "ok":
        services.note(f"{name} is out: {row.status}, {row.detail}")
    return name


def wrongly_judged(jobs: Sequence[VetPlan], rows: Rows) -> list[VetPlan]:
    """Those that were found wrong, and to which more is allowed by now: torch.compile's default was not known when they began."""
    return [
        replace(job, wider=wider)
        for job in jobs
        if rows[job.entry.name].status == "wrong" and (wider := _wider(job.entry, rows)) != job.wider
    ]


def _wider(entry: RaceEntry, rows: Rows) -> Wider:
    """How many times further off than what rounding explains the outputs of a plan may be: each as far as torch.compile has it, up
    to a factor, and that one up to the factor.

    >>> from fuseplan.plan import Plan
    >>> _wider(RaceEntry("cut", Plan("aten")), {}), _wider(RaceEntry("inductor", Plan("inductor"), default=True), {}) == {OTHERS: WIDER}
    ({}, True)
    """
    if is_inductors(entry):
        return {OTHERS: WIDER}
    row = rows.get(TORCHS)
    return widened_by(row.outputs) if row is not None and row.status == "ok" else {}


def is_unjudged(entry: RaceEntry, rows: Rows) -> bool:
    """Whether it is torch.compile's default, and known only to run.

    >>> entry = RaceEntry("inductor", Plan("inductor"), default=True)
    >>> [is_unjudged(entry, {"inductor": OutcomeRow("inductor", how=how)}) for how in ("", "beside a run in float64")]
    [True, False]
    """
    row = rows.get(entry.name)
    return is_inductors(entry) and row is not None and row.status == "ok" and not row.how


def inquired(services: Services, trace: str, row: OutcomeRow, seconds: float) -> Inquiry:
    """Why torch.compile's default is wrong, as far as that is found in so many seconds."""
    looking = FindFault(trace, seconds, row.near)
    (outcome,) = services.carry_out("looking for the op that torch.compile gets wrong", [looking])
    return outcome.inquiry or Inquiry(detail=outcome.detail)


def holds_too_much(row: OutcomeRow, memory_gib: float | None) -> bool:
    """Whether the CUDA graphs of a program that takes so much memory would hold too much of a GPU's."""
    return memory_gib is not None and (row.peak_bytes or 0) / 2**30 > HOLDS * memory_gib


def right_of(entries: Iterable[RaceEntry], rows: Rows) -> list[RaceEntry]:
    """Those that were found right.

    >>> entries = [RaceEntry("a"), RaceEntry("b"), RaceEntry("c")]
    >>> [one.name for one in right_of(entries, {"a": OutcomeRow("a"), "b": OutcomeRow("b", "wrong")})]
    ['a']
    """
    return [entry for entry in entries if entry.name in rows and rows[entry.name].status == "ok"]


def is_torchs(entry: RaceEntry) -> bool:
    """Whether it is a default of torch's own, which is waited for whatever it takes."""
    return entry.default and not is_ours(entry)


def is_inductors(entry: RaceEntry) -> bool:
    """Whether it is what torch.compile makes of the program, under whichever launch."""
    return entry.default and planned(entry).host == "inductor"


def differ_in_launch(one: Plan, other: Plan) -> bool:
    """Whether two plans differ in that, and in nothing else.

    >>> differ_in_launch(Plan("aten"), Plan("aten", launch="cudagraph")), differ_in_launch(Plan("aten"), Plan("aten"))
    (True, False)
    """
    return one.launch != other.launch and replace(one, launch="plain") == replace(other, launch="plain")
