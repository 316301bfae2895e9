"""One program: what was gained, where, by which moves, and against whom."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from fuseplan.errors import FuseplanError
from fuseplan.graph.words import counted
from fuseplan.objective import Objective
from fuseplan.plan import Plan
from fuseplan.segment.moves import Move
from fuseplan.tuning_db.dashboard import drift, race
from fuseplan.tuning_db.dashboard.across import ACROSS, PlaceLine, across
from fuseplan.tuning_db.dashboard.ask import Ask, Filters, NotThere, Param
from fuseplan.tuning_db.dashboard.charts import Figure
from fuseplan.tuning_db.dashboard.formats import launched
from fuseplan.tuning_db.dashboard.lanes import lanes_of
from fuseplan.tuning_db.dashboard.page import Page
from fuseplan.tuning_db.dashboard.pictures import DrawnGraph, cuts_of
from fuseplan.tuning_db.dashboard.queries import program as query
from fuseplan.tuning_db.dashboard.queries.drift import drift_of
from fuseplan.tuning_db.dashboard.queries.program import DefaultRow, PlanLine, PlanRow
from fuseplan.tuning_db.dashboard.queries.slots import Slot, slots
from fuseplan.tuning_db.dashboard.race import RaceLine
from fuseplan.tuning_db.dashboard.reader import Reader
from fuseplan.tuning_db.dashboard.region_lines import MOST_REGIONS, RegionLine, region_lines
from fuseplan.tuning_db.dashboard.table import ShownColumn

MOST_EXPORTED = 40
"""Programs that have a page in an exported file: those that gained or lost most."""
MOST_MOVES = 400
"""Rows of the table of moves."""


@dataclass(frozen=True)
class TimeBar:
    """One way to run the program, and how long that takes."""

    name: str
    us: float
    width: float
    """In percent of the longest."""
    role: str
    """`plan`, `best` for the best default, or `default`."""


PLANS: tuple[ShownColumn[PlanLine], ...] = (
    ShownColumn("plan", "Plan", "link", lambda one: _code(one.key[:12]), to=lambda one: ("program", {"key": one.program, "plan": one.key})),
    ShownColumn("status", "Status", "standing", lambda one: one.standing),
    ShownColumn("device", "Device", "text", lambda one: one.device),
    ShownColumn("torch", "torch", "text", lambda one: one.torch),
    ShownColumn("launch", "Launch", "text", lambda one: launched(one.launch, one.objective)),
    ShownColumn("sizes", "Sizes", "sizes", lambda one: one.sizes),
    ShownColumn("us", "A call", "us", lambda one: one.wall_us),
    ShownColumn("best", "Best default", "us", lambda one: one.best_default_us),
    ShownColumn("changed", "Changed", "when", lambda one: one.changed_at),
)  # fmt: skip


def _code(text: str) -> Markup:
    return Markup("<code>{}</code>").format(text)


@dataclass(frozen=True)
class ProgramPage:
    """All that the page shows."""

    key: str
    name: str | None
    plan: PlanRow | None
    slot: Slot | None
    slots: tuple[Slot, ...]
    plans: tuple[PlanLine, ...]
    bars: tuple[TimeBar, ...] = ()
    lanes: tuple[RaceLine, ...] = ()
    race: Figure | None = None
    moves: tuple[Move, ...] = ()
    cuts: tuple[DrawnGraph, ...] = ()
    regions: tuple[RegionLine, ...] = ()
    regions_us: float = 0.0
    """What all regions take on the device together."""
    longest_us: float = 0.0
    """The end of the scale of their bars."""
    left_out: int = 0
    executors: Mapping[str, float] = field(default_factory=dict)
    """What each executor takes of that."""
    drift: Figure | None = None
    """How fast the plan was in production."""
    across: tuple[PlaceLine, ...] = ()
    """Its plans on other machines and under other versions beside this one."""
    json: str = ""
    what: str = ""
    commands: tuple[tuple[str, str], ...] = ()

    plan_columns = PLANS
    across_columns = ACROSS

    @property
    def title(self) -> str:
        """Its name, else the beginning of its key."""
        return self.name or self.key[:12]

    @property
    def speedup(self) -> float | None:
        """Over the best default; None where that was not raced."""
        return self.slot.speedup() if self.slot is not None else None

    @property
    def saved_us(self) -> float | None:
        """What a call takes less than under the best default."""
        if self.speedup is None or self.slot is None or self.slot.best_us is None or self.slot.plan_us is None:
            return None
        return self.slot.best_us - self.slot.plan_us

    @property
    def failed(self) -> tuple[RaceLine, ...]:
        """The candidates that ran into something."""
        return tuple(lane for lane in self.lanes if lane.status != "ok")


def load(reader: Reader, ask: Ask) -> ProgramPage:
    """Find the plan that stands for the program, or the one that is asked for."""
    key = ask["key"]
    there, name = reader.read(lambda connection: query.name_of(connection, key))
    if not there:
        raise NotThere("there is no such program")
    every = reader.remembered(("slots", Filters()), lambda connection: slots(connection, Filters()))
    own = tuple(slot for slot in every if slot.program == key)
    plans = tuple(reader.read(lambda connection: query.plans_of(connection, key)))
    slot = _chosen(own, ask)
    wanted = ask["plan"] or (slot.plan if slot is not None else None)
    plan = reader.read(lambda connection: query.plan_row(connection, wanted)) if wanted else None
    if ask["plan"] and (plan is None or plan.program != key):
        raise NotThere("there is no such plan of this program")
    if plan is not None and (slot is None or slot.plan != plan.key):
        slot = next((one for one in own if one.plan == plan.key), None)
    page = ProgramPage(key, name, plan, slot, own, plans)
    return _filled(reader, page)


def _chosen(own: Sequence[Slot], ask: Ask) -> Slot | None:
    """The place that is shown: one that the filters let through, and of those the one with most to see."""
    filters = ask.filters

    def fits(slot: Slot) -> bool:
        return (
            filters.gpu in ("", slot.device)
            and filters.torch in ("", slot.torch)
            and all(slot.versions.get(name, "none") == version for name, version in filters.versions)
            and filters.launch in ("", slot.launch)
        )

    return max(own, key=lambda slot: (fits(slot), slot.speedup() is not None, slot.changed_at), default=None)


def _filled(reader: Reader, page: ProgramPage) -> ProgramPage:
    plan, slot = page.plan, page.slot
    place = (
        (plan.environment, plan.launch, plan.sizes)
        if plan
        else (slot.environment, slot.launch, slot.sizes)
        if slot
        else None
    )
    timed: list[DefaultRow] = []
    if place is not None:
        run = plan.run if plan is not None else None
        timed = reader.read(lambda connection: query.defaults_of(connection, page.key, *place, run))
    parsed = _parsed(plan)
    lanes = lanes_of(plan, timed)
    regions, left_out = region_lines(reader, plan)
    graphs = reader.read(lambda connection: query.graphs_of(connection, page.key))
    executors: dict[str, float] = {}
    for one in regions:
        executors[one.executor] = executors.get(one.executor, 0.0) + one.total_us
    best = plan.best_default if plan is not None else None
    return ProgramPage(
        **{
            **vars(page),
            "bars": _bars(plan, lanes),
            "lanes": lanes,
            "race": race.figure(lanes, best or "the best default", slot.noise if slot is not None else None),
            "moves": worthiest_first(plan.moves) if plan is not None else (),
            "cuts": cuts_of(graphs, parsed, best, plan.evidence) if plan is not None else (),
            "regions": regions[:MOST_REGIONS],
            "regions_us": sum(one.total_us for one in regions),
            "longest_us": max(
                (max(one.known_us or 0.0, one.predicted_device_us or 0.0) for one in regions), default=0.0
            ),
            "left_out": left_out,
            "executors": dict(sorted(executors.items(), key=lambda item: -item[1])),
            "drift": drift.figure(reader.read(lambda connection: drift_of(connection, plan.key)))
            if plan is not None
            else None,
            "across": across(
                reader, page.key, {one.plan for one in page.slots if one.plan}, None if plan is None else plan.key
            ),
            "json": _pretty(plan.json) if plan is not None else "",
            "what": _told(parsed),
            "commands": _commands(page, reader.file),
        }
    )


def worthiest_first(moves: Sequence[Move]) -> tuple[Move, ...]:
    """The first moves of a plan, by what they gained; those of unknown worth stand last."""
    return tuple(sorted(moves[:MOST_MOVES], key=lambda move: (move.total_us is None, move.total_us or 0.0)))


def _parsed(plan: PlanRow | None) -> Plan | None:
    try:
        return Plan.from_json(plan.json) if plan is not None else None
    except FuseplanError:
        return None


def _bars(plan: PlanRow | None, lanes: Sequence[RaceLine]) -> tuple[TimeBar, ...]:
    """The plan, and every default that ran."""
    best = plan.best_default if plan is not None else None
    shown = [
        (lane, "best" if lane.name == best else "default") for lane in lanes
        if lane.status == "ok" and lane.wall_us and lane.default
    ]  # fmt: skip
    found = [(lane.name, lane.wall_us or 0.0, role) for lane, role in shown]
    if plan is not None and plan.wall_us and plan.standing == "default":  # one of them is the plan
        found = [
            (f"{name}, which runs", us, "plan") if role == "best" else (name, us, role) for name, us, role in found
        ]
    elif plan is not None and plan.wall_us:
        found.append(("the plan", plan.wall_us, "plan"))
    longest = max((us for _, us, _ in found), default=0.0)
    ordered = sorted(found, key=lambda one: (-one[1], one[2] == "plan"))
    return tuple(TimeBar(name, us, 100 * us / longest, role) for name, us, role in ordered)


def _pretty(text: str) -> str:
    """A plan's JSON with a line for each region: as long as it is, and as short as it can be read."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(document, dict):
        return text
    return json.dumps(document, indent=1, ensure_ascii=False) if len(text) < 3000 else _by_region(document)


def _by_region(document: Mapping[str, object]) -> str:
    text = json.dumps(document, separators=(", ", ": "), ensure_ascii=False)
    return (
        text.replace('{"executor"', '\n  {"executor"')
        .replace('{"ops"', '\n  {"ops"')
        .replace('{"graph"', '\n {"graph"')
    )


def _told(plan: Plan | None) -> str:
    """What a plan does, in a sentence."""
    if plan is None:
        return ""
    if plan.host != "aten":
        mode = "" if plan.settings == "default" else f" in mode {plan.settings}"
        sites = Counter(one.kind for one in plan.rewrites)
        told = " and ".join(counted(many, f"{kind} site") for kind, many in sites.items())
        chosen = f", with {told} written in another way" if sites else ""
        chosen += f", {counted(len(plan.regions), 'region')} of it carved out for others" if plan.carve_outs else ""
        chosen += f", each call padded from {plan.padding}" if plan.padded else ""
        return f"The whole program under {'torch.compile' if plan.host == 'inductor' else plan.host}{mode}{chosen}."
    if plan.greedy:
        return f"Everything that {plan.greedy} takes is fused as far as may be."
    counts = Counter(region.executor for region in plan.regions)
    told = ", ".join(f"{count} under {executor}" for executor, count in counts.most_common())
    return f"Cut into {counted(counts.total(), 'region')}: {told}." if counts else "Every op runs alone under ATen."


def _commands(page: ProgramPage, database: str) -> tuple[tuple[str, str], ...]:
    """What to paste to see it for oneself; a file goes by its name, since where it lies is nobody's business."""
    file = f" --db {shlex.quote(database)}"
    launch = page.plan.launch if page.plan is not None else "plain"
    found = []
    if page.plan is not None:
        plan = f"{page.plan.key[:12]}{file}"
        if page.plan.standing == "unverified":
            found.append(("Verify it here", f"fuseplan db verify {plan}"))
        found += [("Race it here", f"fuseplan bench {plan}"), ("Read it", f"fuseplan explain {plan}")]
    again = " --again" if page.plan is not None else ""
    found.append(
        (
            "Tune it",
            f"fuseplan tune {page.key[:12]}{again} --effort full --launch {launch}{_objective(page.plan)}{file}",
        )
    )
    return tuple(found)


def _objective(plan: PlanRow | None) -> str:
    """The option of tune that is for the objective of a plan."""
    return "" if plan is None else Objective.parse(plan.objective).option


def _exports(reader: Reader, ask: Ask) -> Iterable[Mapping[str, str]]:
    """The programs that gained or lost most, each once."""
    found = reader.remembered(("slots", ask.filters), lambda connection: slots(connection, ask.filters))
    ranked = sorted(found, key=lambda slot: -abs((slot.speedup() or 1.0) - 1.0))
    keys = list(dict.fromkeys(slot.program for slot in ranked if slot.speedup() is not None))
    return [{"key": key} for key in keys[:MOST_EXPORTED]]


PAGE = Page(
    "program", "Program", "program.html", load, (Param("key", r"[0-9a-f]{64}"), Param("plan", r"([0-9a-f]{32})?")),
    exports=_exports,
)  # fmt: skip
