"""How a program is cut, drawn: under its plan, under the default that it is compared with, and where its moves start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fuseplan.drawing import svg
from fuseplan.errors import FuseplanError
from fuseplan.executors.known import traits_of
from fuseplan.graph import Graph
from fuseplan.graph.words import counted
from fuseplan.plan import Plan, named_plans
from fuseplan.segment import Region, Segmentation
from fuseplan.tuning_db.dashboard.formats import us
from fuseplan.tuning_db.evidence import Evidence

MOST_SVG = 2**20
"""Characters of a drawing that is still shown."""


@dataclass(frozen=True)
class Drawing:
    """One drawing, or why there is none."""

    title: str
    text: str
    """For who cannot see it, and below it."""
    svg: str = ""
    trouble: str = ""


@dataclass(frozen=True)
class DrawnGraph:
    """One graph of a program: the default, the plan, and where the moves start."""

    role: str
    ops: int
    default: Drawing
    tuned: Drawing
    start: Drawing | None = None
    differ: bool = True
    """Whether the plan is another than the default."""


def cuts_of(
    graphs: Iterable[tuple[str, str, int, str]], plan: Plan | None, default: str | None, evidence: Evidence
) -> tuple[DrawnGraph, ...]:
    """Drawings of each graph; `graphs` are roles, keys, numbers of ops and JSON."""
    parts = {one.role: one for one in plan.carve_outs} if plan is not None else {}
    found = []
    for role, key, ops, text in _meant(graphs, {role: part.graph for role, part in parts.items()}):
        graph = _graph(text)
        if isinstance(graph, str):
            found.append(DrawnGraph(role, ops, Drawing("", "", trouble=graph), Drawing("", "", trouble=graph)))
            continue
        own = parts[role].segmentation if role in parts and parts[role].graph == key else None
        begun = next((one for one in evidence.start if one.role == role), None)
        fused = None if begun is None else Segmentation(tuple(Region(ops, begun.executor) for ops in begun.regions))
        executor = "" if begun is None else begun.executor
        labels = {
            one.region: us(one.device_us) for one in evidence.regions if one.role == role and one.device_us is not None
        }
        tuned = _tuned(graph, plan, own, labels)
        first = _default(graph, default, executor, fused)
        differ = default is None or plan is None or not _same(plan, default)
        found.append(DrawnGraph(role, ops, first, tuned, _start(graph, executor, fused, default), differ))
    return tuple(found)


def _same(plan: Plan, default: str) -> bool:
    """Whether a plan is that default, whatever its launch."""
    return replace(plan, launch="plain") == _named(default)


def _named(default: str | None) -> Plan | None:
    """The plan of a default; None for one that this process does not know by its name."""
    return Plan.named(default) if default in named_plans() else None


def _meant(
    graphs: Iterable[tuple[str, str, int, str]], wanted: Mapping[str, str]
) -> Sequence[tuple[str, str, int, str]]:
    """One graph of each role: the one that the plan cuts, else the latest."""
    chosen: dict[str, tuple[str, str, int, str]] = {}
    for graph in graphs:
        role, key = graph[0], graph[1]
        if role not in chosen or chosen[role][1] != wanted.get(role) or key == wanted.get(role):
            chosen[role] = graph
    order = ("inference", "forward", "backward")
    return sorted(chosen.values(), key=lambda graph: order.index(graph[0]) if graph[0] in order else len(order))


def _graph(text: str) -> Graph | str:
    if not text:
        return "This graph is too long to be drawn."
    try:
        return Graph.from_json(text)
    except FuseplanError:
        return "This graph cannot be read: its row is damaged."


def _default(graph: Graph, default: str | None, executor: str, fused: Segmentation | None) -> Drawing:
    plan, title = _named(default), default or "eager"
    if plan is not None and plan.greedy:
        return _greedy(graph, plan.greedy, fused if plan.greedy == executor else None, title)
    if plan is not None and plan.host == "inductor":
        return _drawn(graph, _whole(graph), title, "all of it goes to Inductor, which cuts it by its own rules", {})
    return _drawn(graph, Segmentation(), title, "every op runs alone, one kernel or more each", {})


def _greedy(graph: Graph, executor: str, fused: Segmentation | None, title: str) -> Drawing:
    """All that an executor takes, as far as it is known how it fuses that."""
    name = traits_of(executor).title or executor
    if fused is None:
        return _drawn(graph, None, title, f"the islands within which {name} fuses all that it takes", {})
    return _drawn(graph, fused, title, f"every op that {name} takes, fused as far as may be", {})


def _whole(graph: Graph) -> Segmentation:
    return Segmentation((Region(tuple(range(len(graph.ops))), "inductor"),))


def _tuned(graph: Graph, plan: Plan | None, cut: Segmentation | None, labels: Mapping[int, str]) -> Drawing:
    if cut is not None:
        rest = "under ATen, op by op" if plan is None or plan.host == "aten" else f"under {plan.host}, as one"
        text = f"{counted(len(cut.regions), 'region')}; what is in none runs {rest}"
        return _drawn(graph, cut, "the plan", text, labels)
    if plan is not None and plan.host == "inductor":
        return _drawn(graph, _whole(graph), "the plan", "all of it goes to Inductor" + _how(plan), {})
    if plan is not None and plan.greedy:
        return _greedy(graph, plan.greedy, None, "the plan")
    return _drawn(graph, Segmentation(), "the plan", "every op runs alone under ATen", {})


def _how(plan: Plan) -> str:
    more = [f"in mode {plan.settings}"] if plan.settings != "default" else []
    more += [
        f"{one.kind} {'call' if one.kind == 'attention' else 'site'} {one.site} as {one.way}"
        for one in plan.rewrites[:8]
    ]
    return ", " + ", ".join(more) if more else ""


def _start(graph: Graph, executor: str, fused: Segmentation | None, default: str | None) -> Drawing | None:
    """The cut that moves lead away from, where that is not the default anyway."""
    plan = _named(default)
    if fused is None or (plan is not None and plan.greedy == executor):
        return None
    return _greedy(graph, executor, fused, "where the moves start")


def _drawn(graph: Graph, cut: Segmentation | None, title: str, text: str, labels: Mapping[int, str]) -> Drawing:
    try:
        drawn = svg(graph, cut, title=title, labels=labels)
    except (FuseplanError, LookupError, ValueError, RecursionError) as error:
        return Drawing(title, text, trouble=f"This cut does not fit its graph: {type(error).__name__}.")
    if len(drawn) > MOST_SVG:
        return Drawing(title, text, trouble="The drawing would be too large to look at.")
    return Drawing(title, text, drawn)
