"""Compiling the regions of one graph: equal regions once, and ATen where an executor fails here."""

from __future__ import annotations

import operator
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from torch.fx import Node

from fuseplan.capture.fx.from_fx import Captured
from fuseplan.errors import ExecutorError, FuseplanError, GraphError, PlanError, UnsupportedError
from fuseplan.executors import GAPS, Compiled, Executor, Recalling, executors
from fuseplan.executors.flat import RegionCall
from fuseplan.graph import Graph
from fuseplan.host.carving import given_by
from fuseplan.log import logger
from fuseplan.options import Fuel, Fusion
from fuseplan.plan import Plan
from fuseplan.runtime.declared import at_risk, with_declared_dtypes, with_declared_strides
from fuseplan.runtime.record import RegionRecord
from fuseplan.runtime.settings import settings
from fuseplan.segment import (
    Region,
    Segmentation,
    check_segmentation,
    extract,
    flow_of,
    has_effect,
    leaving,
    maximal_regions,
)
from fuseplan.stats import count

_live: WeakValueDictionary[tuple[str, str, str, tuple[str, ...], str], Compiled] = WeakValueDictionary()
_lock = threading.Lock()


@dataclass(frozen=True)
class KeptRegion:
    """What another process found out of a region: which Graph it is and where, and under which name its code is kept."""

    key: str
    devices: tuple[str, ...]
    code: str | None

    @property
    def fields(self) -> tuple[str, tuple[str, ...], str | None]:
        """As plain data."""
        return self.key, self.devices, self.code


class NobodyRunsError(PlanError):
    """Not even ATen runs a region as one, and the values that it computes again may be nowhere else to be had."""


class RegionCompiler:
    """Compiles the regions that a plan gives one captured graph, and remembers what became of each."""

    def __init__(
        self,
        captured: Captured,
        role: str = "inference",
        fuel: Fuel | None = None,
        known: Mapping[Region, KeptRegion] | None = None,
    ) -> None:
        self.captured = captured
        self.role = role
        self.fuel = fuel
        self.risky = at_risk(captured.graph, role)
        self.executors: dict[str, Executor] = executors()
        self.records: list[RegionRecord] = []
        self.known = dict(known or {})
        self.settings = settings()
        self.leaving = leaving(captured.graph) if role == "inference" else frozenset[str]()

    def compile(self, segmentation: Segmentation) -> list[RegionCall]:
        """Return a call for each region that does not simply run under ATen, and for the ops that need not run at all."""
        flow = flow_of(self.captured.graph, segmentation)
        calls = [self._region(region, flow.wanted) for region in segmentation.regions]
        return [call for call in calls if call is not None] + [self._nothing((op,)) for op in sorted(flow.dead)]

    def _region(self, region: Region, wanted: frozenset[str]) -> RegionCall | None:
        plain = region.executor == "aten" and region.variant == "default"
        if plain and not region.recompute:
            self._record(region, None)  # what ATen runs stands in the flat function itself
            return None
        if region.executor not in self.executors:
            raise PlanError(f"there is no executor {region.executor!r}; known are {', '.join(self.executors)}")
        graph = extract(self.captured.graph, region.ops, region.recompute, wanted)
        if not graph.outputs and not any(has_effect(op) or op.mutates for op in graph.ops):
            self._record(region, None)
            return self._nothing(region.ops)
        call = self._call(region, graph, plain)
        if call is None:
            return None
        values = self.captured.values
        outputs = tuple(values[ref.name] for ref in given_by(graph))
        return RegionCall(self._nodes(region.ops), tuple(values[v.name] for v in graph.inputs), outputs, call)

    def _call(self, region: Region, graph: Graph, plain: bool) -> Compiled | None:
        """What runs the region as one; None where its ops run one by one."""
        fusion = Fusion(self.role, region.executor, region.variant, region.ops, graph)
        if not plain and self.fuel is not None and not self.fuel.take(fusion):
            self._record(region, "the fuel is spent")
            return self._alone(region, graph) if region.recompute else None
        try:
            if region.variant == GAPS and any(ref.name not in self.leaving for ref in given_by(graph)):
                raise UnsupportedError("gaps may be left in what an inference program gives out, and nowhere else")
            call = self._shared(self.executors[region.executor], graph, region.variant, region)
        except (UnsupportedError, ExecutorError, GraphError) as error:
            self._fall_back(region, graph, error)
            return self._alone(region, graph) if region.recompute else None
        self._record(region, None)
        return call if plain else self._guarded(call, graph, region.executor)

    def _guarded(self, call: Compiled, graph: Graph, executor: str) -> Compiled:
        if executor == "aten":  # takes what comes
            return _or_aten(lambda args: call, graph, executor)
        as_declared = with_declared_strides(call, graph, self.risky)
        return _or_aten(partial(with_declared_dtypes, as_declared, graph), graph, executor)

    def _alone(self, region: Region, graph: Graph) -> Compiled:
        """The region under ATen as one call."""
        try:
            return self._shared(self.executors["aten"], graph, "default")
        except (UnsupportedError, ExecutorError, GraphError) as error:
            first = f"op {region.ops[0]} ({self.captured.graph.ops[region.ops[0]].target})"
            raise NobodyRunsError(
                f"the region at {first} recomputes what it needs, and is no call of its own: {error}"
            ) from None

    def _nothing(self, ops: Sequence[int]) -> RegionCall:
        return RegionCall(self._nodes(ops), (), (), None)

    def _shared(self, executor: Executor, graph: Graph, variant: str, region: Region | None = None) -> Compiled:
        """Equal regions on equal devices, under equal settings, share one compiled callable for as long as any lives."""
        kept = self.known.get(region) if region is not None else None
        # in order: a region from cuda:0 to cuda:1 has the key of its mirror image
        same, devices = (graph.key, graph.devices) if kept is None else (kept.key, kept.devices)
        key = executor.name, variant, same, devices, self.settings
        with _lock:
            found = _live.get(key)
        if found is None:
            count("regions compiled")
            if kept is not None and kept.code is not None and isinstance(executor, Recalling):
                found = executor.recall(graph, variant, kept.code)
            found = found or executor.compile(graph, variant)
            with _lock:
                _live[key] = found
        if region is not None:
            code = executor.kept(found) if isinstance(executor, Recalling) else None
            self.known[region] = KeptRegion(same, devices, code)
        return found

    def _nodes(self, ops: Sequence[int]) -> frozenset[Node]:
        found = [self.captured.nodes[op] for op in ops]
        parts = [user for node in found for user in node.users if user.target is operator.getitem]
        return frozenset([*found, *parts])

    def _fall_back(self, region: Region, graph: Graph, error: FuseplanError) -> None:
        self.records.append(fallen_back(region, graph, error, "ATen"))

    def _record(self, region: Region, fallback: str | None) -> None:
        self.records.append(RegionRecord(region.ops, region.executor, region.variant, fallback))


def fallen_back(region: Region, graph: Graph, error: FuseplanError, instead: str) -> RegionRecord:
    """Note that a region runs under another than its executor."""
    count("regions fallen back")
    status = "refused" if isinstance(error, UnsupportedError) else "compile-error"
    text = f"a region of {len(region.ops)} ops runs under {instead}: {error}"
    logger.warning(text)
    warnings.warn(f"fuseplan: {text}", stacklevel=3)
    return RegionRecord(region.ops, region.executor, region.variant, str(error), graph, status)


def _or_aten(choose: Callable[[list[Any]], Compiled], graph: Graph, executor: str) -> Compiled:
    """What `choose` says for the inputs of the first call, until it fails at run time with its inputs still there; from then
    on the same region under ATen.

    What writes to its inputs may have done so before it failed, and is not tried again.
    """
    chosen: Compiled | None = None
    final = any(op.mutates for op in graph.ops)

    def guarded(args: list[Any]) -> Sequence[Any]:
        nonlocal chosen, final
        try:
            if chosen is None:
                chosen = choose(args)
            return chosen(args)
        except RuntimeError as error:
            if final or len(args) != len(graph.inputs):
                raise
            final, chosen = True, executors()["aten"].compile(graph)
            failed_at_run_time(graph, executor, error)
        return chosen(args)

    return guarded


def failed_at_run_time(graph: Graph, executor: str, error: Exception) -> None:
    """Say that a region runs under ATen from now on."""
    count("regions failed at run time")
    text = f"a region of {len(graph.ops)} ops failed under {executor} and runs under ATen: {error}".splitlines()[0]
    logger.warning(text)
    warnings.warn(f"fuseplan: {text}", stacklevel=3)


def segmentation_of(plan: Plan, role: str, graph: Graph) -> Segmentation:
    """Return how `plan` cuts this graph: as stored, else greedily if it says so, else not at all."""
    cut = plan.cut(role, None if graph.opaque else graph.key) if plan.carve_outs else None
    if cut is not None:
        check_segmentation(graph, cut)
        return cut
    return Segmentation() if plan.greedy is None else _greedy(plan.greedy, graph)


def _greedy(name: str, graph: Graph) -> Segmentation:
    known = executors()
    if name not in known:
        raise PlanError(f"there is no executor {name!r}; known are {', '.join(known)}")
    missing = known[name].available()
    if missing is not None:
        warnings.warn(f"fuseplan: all runs under ATen, since {name} cannot run here: {missing}", stacklevel=2)
        return Segmentation()
    takes = [known[name].supports(op, graph) is None for op in graph.ops]
    return maximal_regions(graph, takes, name)
