"""The problem of tuning one program: what capturing it has found, and who could run what of it. Nothing in it changes."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field
from functools import cached_property

from fuseplan.capture.trace.edit import identity
from fuseplan.capture.trace.format import Trace
from fuseplan.errors import GraphError
from fuseplan.executors import GAPS, Executor, executors
from fuseplan.executors.known import EXECUTORS, traits_of
from fuseplan.graph import Graph, Ref
from fuseplan.measure.jobs import Capture, CapturedProgram
from fuseplan.objective import TIME, Objective
from fuseplan.plan import Rewrite
from fuseplan.segment import leaving
from fuseplan.solver.coarse import Coarse
from fuseplan.solver.costs import Runner, fusible_ops
from fuseplan.tuning.effort import Effort
from fuseplan.tuning.program.rewriting import preferred_ways, rewrites_of
from fuseplan.tuning.program.services import Services
from fuseplan.tuning_db import Box

ORDER = ("inference", "joint", "forward", "backward")
"""In which the graphs of a program run; the joint one is both that come after it."""
JOINER = next(traits.name for traits in EXECUTORS if traits.joins_anchors)
"""Who runs regions that hold anchors: what it has no kernel of its own for, it calls."""


@dataclass(frozen=True)
class ProgramLaunch:
    """A program under one launch, the sizes that a plan of it is for, and its objective."""

    key: str
    name: str
    launch: str
    sizes: Box = field(default_factory=Box)
    objective: Objective = TIME
    """What a plan of it is chosen by."""


@dataclass(frozen=True)
class Problem:
    """A program under one launch: its graphs, and who could run what of them."""

    program: ProgramLaunch
    found: CapturedProgram
    """What capturing gave."""
    roles: tuple[str, ...]
    """Of the graphs that can be cut, in the order in which they run."""
    graphs: tuple[Graph, ...]
    runners: tuple[tuple[Runner, ...], ...]
    """Of each graph, the executors and what they take of it."""

    @property
    def launch(self) -> str:
        """How calls of the program reach the device."""
        return self.program.launch

    @property
    def trains(self) -> bool:
        """Whether it has a backward."""
        return self.found.trains or "backward" in self.roles

    @cached_property
    def rewrites(self) -> tuple[Rewrite, ...]:
        """The preferred way of each site, of whatever kind: that of the graphs that are cut."""
        return rewrites_of(self.found.sites, preferred_ways(self.found.sites))

    @cached_property
    def fusible(self) -> tuple[tuple[bool, ...], ...]:
        """Of each graph, which ops some executor beside ATen takes, anchors apart."""
        return tuple(fusible_ops(graph, each) for graph, each in zip(self.graphs, self.runners, strict=True))

    @cached_property
    def coarse(self) -> tuple[Coarse, ...]:
        """Of each graph, where regions across anchors could be."""
        return tuple(
            Coarse(graph, fusible, _takes(JOINER, runners) or [False] * len(graph.ops))
            for graph, fusible, runners in zip(self.graphs, self.fusible, self.runners, strict=True)
        )


def captured(
    services: Services, trace: Trace, kinds: tuple[str, ...] | None = None, *, cuts: bool = True
) -> CapturedProgram | str:
    """The graphs of a program, each site of these kinds, else of all, in its preferred way; or why it cannot be captured. Where it is
    not cut it is the sites alone.
    """
    job = Capture(trace.to_json(), preferring=True, kinds=kinds, sites_alone=not cuts)
    (outcome,) = services.carry_out("capturing", [job])
    if outcome.found is None:
        return f"it cannot be captured in a worker: {outcome.detail}"
    if outcome.found.key != trace.key and trace.key != identity(trace.fields):  # an edited one has a new key
        return "the rebuilt program is another one: record it again, and if that does not help, please report its trace"
    return outcome.found


def problem_of(found: CapturedProgram, program: ProgramLaunch, effort: Effort, device: str) -> Problem:
    """What there is to tune in a program that was captured, on a type of device."""
    by_role = {role: graph for role, graph in found.graphs if not graph.opaque}
    roles = tuple(role for role in ORDER if role in by_role)
    graphs = tuple(by_role[role] for role in roles)
    runners = tuple(_runners(graph, effort, role, device) for role, graph in zip(roles, graphs, strict=True))
    return Problem(program, found, roles, graphs, runners)


def _takes(name: str, runners: tuple[Runner, ...]) -> tuple[bool, ...]:
    return next((runner.takes for runner in runners if runner.name == name), ())


def _runners(graph: Graph, effort: Effort, role: str, device: str) -> tuple[Runner, ...]:
    runners, free = [], leaving(graph) if role == "inference" else frozenset[str]()
    for executor in executors().values():
        if executor.available() is not None or not traits_of(executor.name).runs_on(device):
            continue
        takes = tuple(executor.supports(op, graph) is None for op in graph.ops)
        runners.append(Runner(executor.name, takes, executor.refuses, _variants(executor, effort, free)))
    return tuple(runners)


def _variants(executor: Executor, effort: Effort, free: Set[str]) -> Callable[[Graph], tuple[str, ...]]:
    """All variants where the effort is full; a quick one takes those that cost no search of their own. Gaps may be left in
    values that are `free`: nobody in the program reads them.
    """
    left_out = () if effort.name == "full" else traits_of(executor.name).searching

    def variants(region: Graph) -> tuple[str, ...]:
        try:
            found = executor.variants(region)
        except GraphError:
            return ()
        gaps = all(isinstance(arg, Ref) and arg.name in free for arg in region.outputs)
        return tuple(one for one in found if one not in left_out and (gaps or one != GAPS))

    return variants
