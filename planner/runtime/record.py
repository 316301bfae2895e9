"""What is remembered of each program that was compiled, for `explain`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fuseplan.errors import PlanError
from fuseplan.graph import Graph
from fuseplan.options import Fuel
from fuseplan.plan import Plan
from fuseplan.runtime.graph_memory import ProgramGraphs
from fuseplan.runtime.merged import Merging
from fuseplan.runtime.padding import PaddingTally


@dataclass(frozen=True)
class GraphRecord:
    """One ATen graph of a program: its role, the Graph, and what became of each region of its plan."""

    role: str
    graph: Graph
    regions: tuple[RegionRecord, ...] = ()


@dataclass(frozen=True)
class RegionRecord:
    """One region as it runs: which ops, under which executor, and why not under the planned one."""

    ops: tuple[int, ...]
    executor: str
    variant: str
    fallback: str | None = None
    failed: Graph | None = None  # the region, where its executor said no or failed
    status: str = "ok"  # as the tuning database says it


@dataclass
class Program:
    """A program that was compiled here. Its graphs are added as AOTAutograd makes them, the backward last."""

    key: str | None
    unkeyable: str | None
    plan: Plan  # with the digests of its sites, once it is carried out
    why: str
    fuel: Fuel | None = None  # how many fusions may be applied; None for all of them
    fell_back: Callable[[RegionRecord], object] | None = None  # told of each region that a stored plan cannot have here
    refuse: Callable[[PlanError], object] | None = None  # told where a stored plan does not fit a backward
    graphs: list[GraphRecord] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)  # what the plan asks for and this program cannot have
    guard: Callable[[], str] | None = (
        None  # says what is seen of a stored plan in production, where that is looked after
    )
    rewrites: list[str] = field(default_factory=list)  # a line on each site of the kinds of rewrite that the plan has
    cuda_graphs: ProgramGraphs = field(
        default_factory=ProgramGraphs
    )  # what they hold, where the plan launches it through some
    merging: Merging = field(
        default_factory=Merging
    )  # the weights that it reads merged, where the plan merges siblings
    padding: PaddingTally | None = None  # what was padded of its calls, where the plan pads
    unpadded: Callable[..., Any] | None = None  # the default, where it is compiled: for calls that it does not take


class CompiledPrograms(list[Program]):
    """What was compiled for one call of torch.compile. It hangs on an object of torch's, which goes where a model goes: a copy of
    the model tells of the same programs, for what was compiled is its code too; a file, or another process, gets none.
    """

    def __deepcopy__(self, memo: object) -> CompiledPrograms:
        return CompiledPrograms(self)

    def __reduce__(self) -> tuple[type[CompiledPrograms], tuple[()]]:
        return CompiledPrograms, ()
