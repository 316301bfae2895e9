"""Whole plans of one program: which ones there are beside the segmented, vetting them, the race, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fuseplan.measure.jobs import PLAN_RULE, Found, Job, Outcome, RacePlans, Row, Side, VetPlan
from fuseplan.measure.pool import COMPILING
from fuseplan.measure.race import NOISY, RaceResult
from fuseplan.plan import AnchorChoice, Plan, SegmentedPlan, WholePlan
from fuseplan.tuning.budget import spelled
from fuseplan.tuning.searching import searching_s
from fuseplan.tuning.session import Session

LEAST_RACE_S = 3.0
RACE_SHARE = 0.4
"""Of the time with the device that an effort grants, what a race of whole plans may take at most."""
FAIR_RACE_S = 11.0
"""What a race should have for its blocks at least, if plans beside the defaults are to be in it."""
BLOCK_S = 0.06
"""What a block of one plan takes on a GPU, and so many of its steps more:"""
BLOCK_STEPS = 5.0
LATE = 1.2
"""So many times as long as is expected may a plan take to be compiled and checked."""
KEEPING_S = 2.0
"""What is left to do when a race has ended, its last round among it."""
PATIENCE_S = 3600.0
"""What checking and racing plans may take that somebody has named: none is left out for want of time."""
LEAST_LIMIT_S = 20.0
"""How long a plan that is no default may keep a worker silent at least, however little of the budget is left."""
GREEDY_SHARE = 1 / 3
"""Of the wall time of an effort, what compiling a default of ours may take: nvFuser needs
seconds for each region that is not like another. Torch's own are waited for, whatever they take."""
KERNELS = ("cudnn", "flash", "efficient")
SEARCHING = "max-autotune-no-cudagraphs"
"""Inductor's mode in which it looks for kernels by itself."""


@dataclass(frozen=True)
class Entry:
    """One plan in the race: its name there, whether nobody had to tune for it, and what was predicted."""

    name: str
    plan: Plan
    default: bool = False
    predicted_us: float | None = None
    searching_s: float = 0.0
    """About how long Inductor looks for kernels, where it does and that is known."""

    @property
    def searches(self) -> bool:
        """Whether Inductor looks for kernels by itself: that takes long."""
        return isinstance(self.plan, WholePlan) and self.plan.mode == SEARCHING

    @property
    def side(self) -> Side:
        """As a job has it."""
        return Side(self.name, self.plan)


@dataclass(frozen=True)
class Verdict:
    """What the race decided: the plan to keep, and what it has to be better than."""

    winner: Entry
    best_default: Entry
    result: RaceResult
    rows: dict[str, Row]

    @property
    def tuned(self) -> bool:
        """Whether a plan that nobody had before won beyond the noise."""
        return not self.winner.default


def proven(found: Found) -> tuple[AnchorChoice, ...]:
    """For each attention call the variant that keeps it whole and drops a mask that is proven to change nothing."""
    return tuple(AnchorChoice(call.call, call.proven) for call in found.attention)


def defaults(session: Session, launch: str) -> list[Entry]:
    """The plans that need no tuning; the first is the one that ties go to."""
    entries = [Entry("inductor", WholePlan("inductor", launch=launch), default=True)]
    if launch == "plain":
        entries.append(Entry("eager", WholePlan("eager"), default=True))
    if session.environment.nvfuser is not None:
        entries.append(Entry("nvfuser-greedy", SegmentedPlan(greedy="nvfuser", launch=launch), default=True))
    return [entry for entry in entries if session.environment.inductor or "inductor" not in entry.name]


def whole_candidates(session: Session, found: Found, launch: str) -> list[Entry]:
    """Whole-program plans that differ from the defaults in their anchors, or in Inductor's own mode."""
    if session.environment.inductor is None:
        return []
    anchors = proven(found)
    base = WholePlan("inductor", launch=launch)
    entries = [Entry("inductor, attention proven", replace(base, anchors=anchors))] if anchors else []
    if session.effort.name == "full":
        entries += [
            Entry(f"inductor, attention {kernel}", replace(base, anchors=chosen))
            for kernel in KERNELS
            if (chosen := _under(found, kernel))
        ]
        if session.on_gpu:
            searched = WholePlan("inductor", SEARCHING, anchors, launch)
            name = "inductor max-autotune" + (", attention proven" if anchors else "")
            entries.append(Entry(name, searched, searching_s=searching_s(graph for _, graph in found.graphs)))
    return entries


def _under(found: Found, kernel: str) -> tuple[AnchorChoice, ...]:
    """Every attention call under one kernel, with what is proven of its mask; none where a call cannot."""
    chosen = []
    for call in found.attention:
        _, plus, ending = call.proven.partition("+")
        variant = f"{kernel}{plus}{ending}"
        if variant not in call.variants:
            return ()
        chosen.append(AnchorChoice(call.call, variant))
    return tuple(chosen)


def vetted(session: Session, trace: str, entries: Sequence[Entry], rows: dict[str, Row]) -> list[Entry]:
    """Those of `entries` that compile here and compute what eager computes; `rows` gets the row of each.

    Torch's defaults are vetted whatever it takes. Candidates are as long as there is time to race them too, and those that
    there is none for stay without a row.
    """

    def heard(job: Job, outcome: Outcome) -> None:
        assert isinstance(job, VetPlan)
        row = next(iter(outcome.rows), Row(job.side.name, outcome.status, outcome.detail))
        rows[job.side.name] = row
        if row.status != "ok":
            session.progress.note(f"{session.program}: {job.side.name} is out: {row.status}, {row.detail}")

    def vet(chosen: Sequence[Entry], racing: int) -> None:
        more = sum(not entry.default for entry in chosen)  # the defaults are among those that race already
        most = session.left_s - session.again_s(racing) - _race_s(session, racing + more)
        limits = [_patience(session, entry) if entry.default else _limit(entry, most) for entry in chosen]
        jobs = [
            VetPlan(trace, one.side, session.prepares, early=_early(one), limit_s=limit)
            for one, limit in zip(chosen, limits, strict=True)
        ]
        outcomes = session.carry_out("compiling and checking plans", jobs, heard)
        session.unprepared += sum(outcome.ok and not outcome.prepared for outcome in outcomes)

    def in_time(others: Sequence[Entry]) -> list[Entry]:
        """Those that are not known to take longer than there is time for."""
        left_s = _left_s(session, _racing(rows) or len(known), rows)
        return [entry for entry in others if not entry.searches or LATE * entry.searching_s <= left_s]

    known, rest = ([entry for entry in entries if entry.default is default] for default in (True, False))
    waiting = in_time(rest)
    if known:  # a worker that these leave without work takes the first of the others
        beside = min(max(0, session.at_once - len(known)), _room(session, len(known), rows))
        vet([*known, *waiting[:beside]], len(known))
        waiting = in_time(waiting[beside:])
    while waiting and (room := _room(session, racing := _racing(rows), rows)):
        count = min(room, session.at_once)
        vet(waiting[:count], racing)
        waiting = in_time(waiting[count:])
    for entry in rest:
        if entry.searches and entry.name not in rows:
            takes = f": it takes some {spelled(entry.searching_s)}" if entry.searching_s else ""
            session.progress.note(f"{session.program}: there is no time for {entry.name}{takes}")
    return [entry for entry in entries if entry.name in rows and rows[entry.name].status == "ok"]


def _limit(entry: Entry, most: float) -> float:
    """How long a plan that is no default may keep a worker silent, of the seconds that are left. One that takes long to search
    takes a while to be compiled for its race, too.
    """
    return max(LEAST_LIMIT_S, most / LATE if entry.searches else most)


def _patience(session: Session, default: Entry) -> float | None:
    """How long a default may keep a worker silent; None: as long as any job."""
    if isinstance(default.plan, WholePlan):
        return None
    return max(LEAST_LIMIT_S, session.effort.wall_s * GREEDY_SHARE)


def _early(entry: Entry) -> bool:
    """Whether a default is compiled for its race at once: Inductor keeps what it compiled on disk, nvFuser does not."""
    return entry.default and not (isinstance(entry.plan, WholePlan) and entry.plan.executor == "inductor")


def _racing(rows: Mapping[str, Row]) -> int:
    """How many are right so far."""
    return sum(row.status == "ok" for row in rows.values())


def _room(session: Session, racing: int, rows: Mapping[str, Row]) -> int:
    """How many more plans there is time to compile and check, as many at once as can be, and to race."""
    return next((more for more in range(session.at_once, 0, -1) if _left_s(session, racing, rows, more) >= 0), 0)


def _left_s(session: Session, racing: int, rows: Mapping[str, Row], more: int = 1) -> float:
    """The seconds that are left beside compiling and checking so many more plans at once, and a fair race of all."""
    known = rows.get("inductor")
    whole = known.compile_s if known is not None and known.compile_s is not None else 0.0
    checking = max(2 * session.trace_s, whole)  # a cut one compiles about as much as all at once
    checking *= max(1.0, more / COMPILING)  # beyond these the cores are taken
    preparing = more * session.trace_s
    racing_s = session.again_s(racing) + _race_s(session, racing + more)
    return session.left_s - LATE * (checking + preparing) - racing_s


def _race_s(session: Session, plans: int) -> float:
    """What a race of so many plans takes for the rounds that it has at least, the incumbent's duplicate among them. A CPU has
    short blocks.
    """
    step_s = (session.against_us or 0.0) / 1e6
    block_s = BLOCK_S + BLOCK_STEPS * step_s if session.on_gpu else step_s
    return max(FAIR_RACE_S, PLAN_RULE.least * (plans + 1) * block_s)


def decide(
    session: Session, trace: str, entries: Sequence[Entry], rows: dict[str, Row], rounds: int | None = None
) -> Verdict | None:
    """Race all plans; None where not one default runs. The best default wins ties, whichever it is.

    `rows` has what vetting found of each, and gets what the races find. A race has so many `rounds` at most; without a word,
    as many as the effort grants.
    """
    most = max(PLAN_RULE.least, session.effort.plan_blocks if rounds is None else rounds)
    able = list(entries)
    while known := [entry for entry in able if entry.default]:
        incumbent, racing = known[0], able
        while (result := _raced(session, trace, racing, incumbent, rows, most)) is not None:
            verdict, best = _judged(racing, result, rows, known)
            if verdict is not None:
                return verdict
            incumbent, racing = best, [best, *(entry for entry in racing if _may_win(entry, result))]
        # It failed in the place of the one that all are compared with: another default takes that.
        able = [entry for entry in able if entry is not incumbent and rows[entry.name].status == "ok"]
    return None


def _judged(
    racing: Sequence[Entry], result: RaceResult, rows: dict[str, Row], known: Sequence[Entry]
) -> tuple[Verdict | None, Entry]:
    """The verdict, if the race was against the best default, or one that ties with it; and which that is. `known` are the
    defaults in their order.
    """
    times = _times(result)
    here = [entry for entry in racing if entry.default and entry.name in times]
    incumbent = next(entry for entry in racing if entry.name == result.incumbent)
    best = min(here, key=lambda entry: (times[entry.name], entry is not incumbent))
    winner = next(entry for entry in racing if entry.name == result.winner)
    if winner.default or result.noise > NOISY:
        stands = _first_of_equals(known, result)
        return Verdict(stands, stands, result, rows), stands
    tied = times[best.name] * (1 + result.noise) >= 1.0
    if best is incumbent or (tied and times[winner.name] * (1 + result.noise) < times[best.name]):
        return Verdict(winner, incumbent, result, rows), incumbent
    return None, best


def _times(result: RaceResult) -> dict[str, float]:
    """What each took, as a multiple of the incumbent: by the differences of what ran side by side. One that was dropped has few
    of these, of which a single block that was disturbed would make anything; there it is by the medians.
    """
    base = result.lane(result.incumbent).medians
    found = {}
    for lane in result.lanes:
        if lane.status == "ok" and lane.ratio is not None:
            few = lane.medians if lane.dropped is not None else None
            found[lane.name] = lane.ratio if few is None or base is None else few.wall_us / base.wall_us
    return found


def _first_of_equals(known: Sequence[Entry], result: RaceResult) -> Entry:
    """The first of the defaults that none is faster than by more than the noise; where noise decides nothing, the first. What
    was dropped was much slower than another.
    """
    times = _times(result)
    able = [entry for entry in known if entry.name in times]
    if result.noise > NOISY:
        return able[0]
    able = [entry for entry in able if result.lane(entry.name).dropped is None]
    least = min(times[entry.name] for entry in able)
    return next(entry for entry in able if times[entry.name] <= least * (1 + result.noise))


def _may_win(entry: Entry, result: RaceResult) -> bool:
    """Whether a plan that somebody had to tune for came to the end of a race at least as fast as its incumbent."""
    lane = next((lane for lane in result.lanes if lane.name == entry.name), None)  # none if it did not get that far
    return not entry.default and lane is not None and lane.status == "ok" and (lane.ratio or 2.0) <= 1.0


def _raced(
    session: Session, trace: str, entries: Sequence[Entry], incumbent: Entry, rows: dict[str, Row], most: int
) -> RaceResult | None:
    """One race; None where the incumbent fails in it, which its row says then."""
    left = session.left_s - session.again_s(len(entries)) - KEEPING_S
    seconds = max(LEAST_RACE_S, min(RACE_SHARE * session.effort.device_s, left))
    rule = replace(PLAN_RULE, most=most, seconds=seconds)
    rivals = tuple(entry.name for entry in entries if entry.default and entry is not incumbent)
    job = RacePlans(trace, tuple(entry.side for entry in entries), incumbent.name, rule, rivals)
    (outcome,) = session.carry_out("racing whole plans", [job])
    session.unprepared = len(entries)  # a race keeps nothing for the next
    rows |= {row.name: _merged(rows.get(row.name), row) for row in outcome.rows}
    if outcome.race is None and rows[incumbent.name].status == "ok":
        status = "error" if outcome.ok else outcome.status
        rows[incumbent.name] = replace(rows[incumbent.name], status=status, detail=outcome.detail)
    return outcome.race


def _merged(vetted_row: Row | None, raced: Row) -> Row:
    """What vetting found of memory and compiling beside what the race found of time."""
    if vetted_row is None:
        return raced
    return replace(
        raced,
        compile_s=vetted_row.compile_s if raced.compile_s is None else raced.compile_s,
        peak_bytes=vetted_row.peak_bytes if raced.peak_bytes is None else raced.peak_bytes,
    )
